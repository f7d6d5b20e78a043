import unittest

from gridcalc import Sheet


class HistoryTest(unittest.TestCase):
    def setUp(self):
        self.sheet = Sheet()
        self.sheet.fill("A1", [["1", "=A1*2"]])

    def test_undo_and_redo(self):
        self.sheet.set("A1", "5")
        self.assertTrue(self.sheet.undo())
        self.assertEqual(self.sheet.value("B1"), 2)
        self.assertTrue(self.sheet.redo())
        self.assertEqual(self.sheet.value("B1"), 10)
        self.assertFalse(self.sheet.redo())

    def test_a_batch_is_undone_at_once(self):
        self.sheet.undo()
        self.assertIsNone(self.sheet.value("A1"))
        self.assertIsNone(self.sheet.used())

    def test_a_change_ends_what_can_be_redone(self):
        self.sheet.set("A1", "5")
        self.sheet.undo()
        self.sheet.set("A1", "7")
        self.assertFalse(self.sheet.redo())

    def test_inserted_rows_are_undone(self):
        self.sheet.insert_rows(1)
        self.assertEqual(self.sheet.text("B2"), "=A2*2")
        self.sheet.undo()
        self.assertEqual(self.sheet.text("B1"), "=A1*2")
        self.assertEqual(self.sheet.text("B2"), "")
