"""Reports as people build them: a heading, a table, totals below; then prices change."""

import unittest

from gridcalc import Sheet

ROWS = 16


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.sheet = Sheet()
        self.sheet.fill("A1", [[f"item {row}", str(row)] for row in range(1, ROWS + 1)])
        self.sheet.set("A17", "total")
        self.sheet.set("B17", f"=SUM(B1:B{ROWS})")
        self.sheet.set("C17", "=B17*1.2")

    def test_totals_at_first(self):
        self.assertEqual(self.sheet.value("B17"), 136)
        self.assertAlmostEqual(self.sheet.value("C17"), 163.2)

    def test_totals_follow_every_price(self):
        for row in range(1, ROWS + 1):
            self.sheet.set(f"B{row}", "0")
        self.assertEqual(self.sheet.value("B17"), 0)

    def test_totals_follow_every_price_below_a_heading(self):
        self.sheet.insert_rows(1)
        self.sheet.fill("A1", [["item", "price"]])
        self.assertEqual(self.sheet.text("B18"), "=SUM(B2:B17)")
        for row in range(2, ROWS + 2):
            self.sheet.set(f"B{row}", "0")
        self.assertEqual(self.sheet.value("B18"), 0)
        self.assertEqual(self.sheet.value("C18"), 0)

    def test_averages_over_months_follow_the_last_one(self):
        self.sheet.fill("F30", [[str(month) for month in range(1, 13)]])
        self.sheet.set("A30", "=AVERAGE(F30:Q30)")
        self.assertEqual(self.sheet.value("A30"), 6.5)
        self.sheet.set("Q30", "24")
        self.assertEqual(self.sheet.value("A30"), 7.5)
        self.sheet.undo()
        self.assertEqual(self.sheet.value("A30"), 6.5)
