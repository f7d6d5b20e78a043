import unittest

from gridcalc.errors import CellError
from gridcalc.evaluate import evaluate
from gridcalc.parser import parse
from gridcalc.refs import Ref

CELLS = {"A1": 2, "A2": 3, "A3": None, "A4": "five", "A5": True, "B1": CellError("#DIV/0!"), "C1": "x", "C2": "y", "C3": "X"}


def value(formula):
    return evaluate(parse(formula), lambda ref: CELLS.get(str(ref)))


class EvaluateTest(unittest.TestCase):
    def check(self, cases):
        for formula, expected in cases.items():
            with self.subTest(formula=formula):
                self.assertEqual(value(formula), expected)

    def test_arithmetic(self):
        self.check({"1+2*3": 7, "2^3^2": 64, "-2^2": -4, "7/2": 3.5, "6/2": 3, "50%": 0.5, "10-4-3": 3, "A1*A2": 6})

    def test_text_and_comparison(self):
        self.check({'"a"&1&TRUE': "a1TRUE", '"A"="a"': True, "2<3": True, '9<"a"': True, "A3=0": True, 'A3=""': True})

    def test_errors_spread(self):
        self.check({"1/0": CellError("#DIV/0!"), "B1+1": CellError("#DIV/0!"), "A4+1": CellError("#VALUE!")})
        self.check({"NONE(1)": CellError("#NAME?"), "A1:A2": CellError("#VALUE!"), "(0-8)^0.5": CellError("#VALUE!")})
        self.check({"IFERROR(B1,7)": 7, "IF(TRUE,1,B1)": 1, "SUM(B1:B2)": CellError("#DIV/0!")})

    def test_totals(self):
        self.check({"SUM(A1:A5)": 5, "AVERAGE(A1:A5)": 2.5, "COUNT(A1:A5)": 2, "COUNTA(A1:A5)": 4, "MAX(A1:A5,9)": 9})
        self.check({"MEDIAN(1,9,5)": 5, "PRODUCT(A1:A2)": 6, "MIN(C1:C3)": 0, "AVERAGE(C1:C3)": CellError("#DIV/0!")})

    def test_numbers(self):
        self.check({"ROUND(2.5)": 3, "ROUND(0-2.5)": -3, "ROUND(1.005*100,0)": 100, "MOD(7,3)": 1, "INT(0-1.5)": -2, "ABS(0-3)": 3})
        self.check({"SQRT(9)": 3, "SQRT(0-1)": CellError("#VALUE!"), "MOD(1,0)": CellError("#DIV/0!")})

    def test_texts(self):
        self.check({'LEFT("abc",2)': "ab", 'RIGHT("abc",2)': "bc", 'MID("abc",2,1)': "b", 'LEN("abc")': 3, 'TRIM(" a  b ")': "a b"})
        self.check({"CONCAT(C1:C3)": "xyX", 'UPPER("a")': "A", 'RIGHT("abc",0)': ""})

    def test_conditions(self):
        self.check({"AND(TRUE,1)": True, "OR(FALSE,0)": False, "NOT(TRUE)": False, "IF(FALSE,1)": False})
        self.check({'COUNTIF(C1:C3,"x")': 2, 'COUNTIF(A1:A5,">2")': 1, 'SUMIF(C1:C2,"y",A1:A2)': 3, 'COUNTIF(C1:C3,"<>x")': 1})

    def test_look_up(self):
        self.check({"VLOOKUP(3,A1:B2,1)": 3, "VLOOKUP(2.5,A1:A2,1)": 2, "VLOOKUP(1,A1:A2,1)": CellError("#N/A")})
        self.check({"VLOOKUP(2,A1:A2,2)": CellError("#VALUE!"), "VLOOKUP(9,A1:A2,1,FALSE)": CellError("#N/A")})
