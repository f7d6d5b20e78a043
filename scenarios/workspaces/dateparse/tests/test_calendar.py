import unittest

from dateparse import Date
from dateparse.leap import days_in_month, is_leap


class CalendarTest(unittest.TestCase):
    def test_leap_years(self):
        self.assertTrue(is_leap(2024))
        self.assertTrue(is_leap(2000))
        self.assertFalse(is_leap(2023))

    def test_century_years(self):
        self.assertFalse(is_leap(1900))

    def test_lengths(self):
        self.assertEqual([days_in_month(2023, month) for month in (1, 2, 4, 12)], [31, 28, 30, 31])

    def test_day_of_year(self):
        self.assertEqual(Date(2024, 12, 31).day_of_year(), 366)
        self.assertEqual(Date(2023, 3, 1).day_of_year(), 60)

    def test_days_left(self):
        self.assertEqual(Date(2024, 12, 30).days_left(), 1)
