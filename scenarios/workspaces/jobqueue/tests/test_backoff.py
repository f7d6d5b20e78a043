import time
import unittest

from jobqueue import Backoff, Queue


class BackoffTest(unittest.TestCase):
    def test_waits_double_from_the_first(self):
        backoff = Backoff(first=0.1, longest=60)
        self.assertEqual([round(backoff.wait(attempt), 3) for attempt in (1, 2, 3, 4)], [0, 0.1, 0.2, 0.4])

    def test_no_wait_is_longer_than_the_longest(self):
        backoff = Backoff(first=0.5, longest=2, jitter=0.5, seed=1)
        self.assertLessEqual(max(backoff.wait(attempt) for attempt in range(12)), 2)

    def test_a_job_that_fails_four_times_waits_in_between(self):
        started = time.monotonic()
        with Queue(threads=1, backoff=Backoff(first=0.25, longest=0.5)) as jobs:
            job = jobs.add(lambda: 1 / 0, attempts=4)
        self.assertIsInstance(job.error, ZeroDivisionError)
        waited = time.monotonic() - started
        self.assertTrue(1.25 <= waited < 2.75)
