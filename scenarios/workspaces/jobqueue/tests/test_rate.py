import time
import unittest

from jobqueue import Queue, RateLimit


class RateTest(unittest.TestCase):
    def test_starts_are_spread(self):
        started = time.monotonic()
        with Queue(threads=4, rate=RateLimit(per_second=8, burst=2)) as jobs:
            for _ in range(10):
                jobs.add(lambda: None)
        self.assertGreaterEqual(time.monotonic() - started, 0.99)

    def test_an_idle_bucket_holds_no_more_than_its_burst(self):
        rate = RateLimit(per_second=2, burst=2)
        time.sleep(1.0)
        waits = [rate.take() for _ in range(3)]
        self.assertEqual([wait > 0 for wait in waits], [False, False, True])
