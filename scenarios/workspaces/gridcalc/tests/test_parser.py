import unittest

from gridcalc.errors import FormulaError
from gridcalc.nodes import references
from gridcalc.parser import parse


class ParserTest(unittest.TestCase):
    def test_formulas_write_themselves_again(self):
        for formula in (
            "1+2*3",
            "(1+2)*3",
            "2^(3^2)",
            "-A1^2",
            "(-A1)^2",
            "10-(4-3)",
            "A1&\" \"&B1",
            "SUM(A1:B2,3)",
            "$A$1+A$1+$A1",
            "IF(A1>=2,\"yes\",\"no\"\"\")",
            "50%",
            "#REF!+1",
            "TRUE",
        ):
            with self.subTest(formula=formula):
                self.assertEqual(str(parse(formula)), formula)

    def test_spaces_case_and_semicolons(self):
        self.assertEqual(str(parse("= sum( a1 ; b2:b3 )")), "SUM(A1,B2:B3)")

    def test_references(self):
        found = references(parse("SUM(A1:B2)+C3*IF(D4,E5:E6,1)"))
        self.assertEqual([str(area) for area in found], ["A1:B2", "C3:C3", "D4:D4", "E5:E6"])

    def test_what_is_no_formula(self):
        for formula, position in (("1+", 2), ("(1", 2), ("SUM(1", 5), ("1 2", 2), ("A1:", 3), ("1 ? 2", 2), ("(" * 200, 100)):
            with self.subTest(formula=formula[:10]):
                with self.assertRaises(FormulaError) as raised:
                    parse(formula)
                self.assertEqual(raised.exception.position, position)
