import unittest

from jobqueue.stamp import check, make


class StampTest(unittest.TestCase):
    def test_stamps_hold(self):
        for text in ("alpha", "beta", "gamma", "delta"):
            with self.subTest(text=text):
                number = make(text, 18)
                self.assertTrue(check(text, 18, number))
                self.assertFalse(check(text + "!", 18, number))
