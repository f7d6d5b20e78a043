import unittest

from gridcalc import CellError, FormulaError, Sheet


class SheetTest(unittest.TestCase):
    def setUp(self):
        self.sheet = Sheet()

    def test_what_is_written(self):
        for text, value in (("12", 12), ("1.5", 1.5), ("true", True), ("word", "word"), ("'12", "12"), ("", None), ("nan", "nan")):
            with self.subTest(text=text):
                self.sheet.set("A1", text)
                self.assertEqual(self.sheet.value("A1"), value)

    def test_formulas_follow_their_cells(self):
        self.sheet.set("A1", "2")
        self.sheet.set("B1", "=A1*21")
        self.sheet.set("C1", "=B1+1")
        self.assertEqual(self.sheet.value("C1"), 43)
        self.sheet.set("A1", "3")
        self.assertEqual(self.sheet.value("C1"), 64)

    def test_only_what_is_reached_is_computed(self):
        self.sheet.fill("A1", [["1", "=A1"], ["2", "=A2"], ["3", "=A3"]])
        before = self.sheet.computed
        self.sheet.set("A2", "5")
        self.assertEqual(self.sheet.computed - before, 1)

    def test_a_bad_formula_changes_nothing(self):
        self.sheet.set("A1", "=1+1")
        self.assertRaises(FormulaError, self.sheet.set, "A1", "=1+")
        self.assertEqual(self.sheet.text("A1"), "=1+1")

    def test_cycles_are_marked_and_heal(self):
        self.sheet.set("A1", "=B1")
        self.sheet.set("B1", "=A1")
        self.assertEqual(self.sheet.value("A1"), CellError("#CYCLE!"))
        self.sheet.set("B1", "4")
        self.assertEqual(self.sheet.value("A1"), 4)

    def test_copying_moves_references(self):
        self.sheet.fill("A1", [["1", "10", "=A1+$B$1"], ["2", "20"]])
        self.sheet.copy("C1", "C2")
        self.assertEqual(self.sheet.text("C2"), "=A2+$B$1")
        self.assertEqual(self.sheet.value("C2"), 12)
        self.sheet.copy("C1", "A3")
        self.assertEqual(self.sheet.text("A3"), "=#REF!+$B$1")

    def test_used(self):
        self.assertIsNone(self.sheet.used())
        self.sheet.set("C2", "x")
        self.assertEqual(str(self.sheet.used()), "A1:C2")
