import unittest

from gridcalc import Sheet
from gridcalc.parser import parse
from gridcalc.shifting import Shift


class ShiftingTest(unittest.TestCase):
    def check(self, shift, cases):
        for formula, expected in cases.items():
            with self.subTest(formula=formula):
                self.assertEqual(str(shift.formula(parse(formula))), expected)

    def test_rows_inserted(self):
        self.check(Shift.inserted_rows(2, 2), {"A2": "A2", "A3": "A5", "$A$3": "$A$5", "SUM(A1:A5)": "SUM(A1:A7)"})

    def test_rows_deleted(self):
        shift = Shift.deleted_rows(2, 2)
        self.check(shift, {"A2": "A2", "A3": "#REF!", "A5": "A3", "SUM(A1:A9)": "SUM(A1:A7)"})
        self.check(shift, {"SUM(A3:A4)": "SUM(#REF!)", "SUM(A4:A6)": "SUM(A3:A4)", "SUM(A1:A3)": "SUM(A1:A2)"})

    def test_columns(self):
        self.check(Shift.inserted_columns(1, 1), {"A1+B1": "A1+C1", "SUM(A1:B2)": "SUM(A1:C2)"})
        self.check(Shift.deleted_columns(1, 1), {"A1+B1": "A1+#REF!", "C1": "B1"})

    def test_cells_move_with_their_formulas(self):
        sheet = Sheet()
        sheet.fill("A1", [["1"], ["2"], ["=A1+A2"]])
        sheet.insert_rows(2)
        self.assertEqual(sheet.text("A4"), "=A1+A3")
        self.assertEqual(sheet.value("A4"), 3)
        sheet.delete_rows(1)
        self.assertEqual(sheet.text("A3"), "=#REF!+A2")
