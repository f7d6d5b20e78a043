import io
import tempfile
import unittest
from pathlib import Path

from gridcalc import CellError
from gridcalc.cli import main
from gridcalc.csvio import dump, load
from gridcalc.formats import show, table


class ShowTest(unittest.TestCase):
    def test_values(self):
        for value, shown in ((None, ""), (True, "TRUE"), (3.0, "3"), (0.1 + 0.2, "0.3"), (CellError("#N/A"), "#N/A"), ("x", "x")):
            with self.subTest(shown=shown):
                self.assertEqual(show(value), shown)

    def test_forms(self):
        for value, form, shown in (
            (1234.5, "0", "1235"),
            (1234.5, "#,##0.00", "1,234.50"),
            (0.125, "0.0%", "12.5%"),
            (2.675, "0.00", "2.68"),
            (-0.5, "0", "-1"),
        ):
            with self.subTest(form=form):
                self.assertEqual(show(value, form), shown)
        self.assertRaises(ValueError, show, 1, "hh:mm")

    def test_tables(self):
        self.assertEqual(table([["item", "price"], ["tea", 3], ["coffee", 12]]), "item    price\ntea         3\ncoffee     12")


class FilesTest(unittest.TestCase):
    def test_there_and_back(self):
        text = "item;price\ntea;3\nall;=SUM(B2:B2)\n"
        sheet = load(text)
        self.assertEqual(sheet.value("B3"), 3)
        self.assertEqual(dump(sheet, ";", has_formulas=True), text)
        self.assertEqual(dump(sheet), "item,price\ntea,3\nall,3\n")

    def test_command_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "prices.csv")
            path.write_text("tea,3\ncoffee,4\nall,=SUM(B1:B2)\n")
            out = io.StringIO()
            self.assertEqual(main([str(path), "B1=5", "insert row 1", "B4", "save"], out), 0)
            self.assertEqual(out.getvalue(), "9\n")
            self.assertEqual(path.read_text(), ",\ntea,5\ncoffee,4\nall,=SUM(B2:B3)\n")
            self.assertEqual(main([str(path), "dance"], out), 1)
