import unittest

from dateparse import Date, DateError, parse


class ParseTest(unittest.TestCase):
    def test_forms(self):
        for text in ("2024-02-29", "29.2.2024", "29 Feb 2024", " 29 February 2024 "):
            with self.subTest(text=text):
                self.assertEqual(parse(text), Date(2024, 2, 29))

    def test_what_is_no_date(self):
        for text in ("", "2024-2-9", "31.4.2024", "2023-02-29", "1 Foo 2024", "2024-13-01"):
            with self.subTest(text=text):
                self.assertRaises(DateError, parse, text)

    def test_century_year_is_refused(self):
        self.assertRaises(DateError, parse, "29.2.1900")
