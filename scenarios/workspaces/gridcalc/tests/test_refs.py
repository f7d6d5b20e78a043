import unittest

from gridcalc.refs import Range, Ref, column_name, column_number


class RefsTest(unittest.TestCase):
    def test_column_names(self):
        for number, name in ((0, "A"), (25, "Z"), (26, "AA"), (701, "ZZ"), (702, "AAA"), (16_383, "XFD")):
            with self.subTest(name=name):
                self.assertEqual(column_name(number), name)
                self.assertEqual(column_number(name), number)

    def test_cells(self):
        self.assertEqual(Ref.parse("B7"), Ref(6, 1))
        self.assertEqual(Ref.parse("$b$7"), Ref(6, 1))
        self.assertEqual(str(Ref(6, 1)), "B7")

    def test_what_is_no_cell(self):
        for text in ("", "7", "B", "B0", "BBBB1", "XFE1", "A9999999"):
            with self.subTest(text=text):
                self.assertRaises(ValueError, Ref.parse, text)

    def test_ranges_have_their_corners_in_order(self):
        for text in ("B2:D5", "D5:B2", "B5:D2", "D2:B5"):
            with self.subTest(text=text):
                self.assertEqual(str(Range.parse(text)), "B2:D5")

    def test_size_and_cells(self):
        area = Range.parse("B2:C4")
        self.assertEqual((area.height, area.width), (3, 2))
        self.assertEqual([str(ref) for ref in area.cells()], ["B2", "C2", "B3", "C3", "B4", "C4"])
        self.assertIn(Ref.parse("C4"), area)
        self.assertNotIn(Ref.parse("D4"), area)

    def test_overlap(self):
        self.assertTrue(Range.parse("A1:B2").overlaps(Range.parse("B2:C3")))
        self.assertFalse(Range.parse("A1:B2").overlaps(Range.parse("C1:D2")))
