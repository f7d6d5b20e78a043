import time
import unittest

from jobqueue import Queue


class WorkerTest(unittest.TestCase):
    def test_jobs_run_side_by_side(self):
        started = time.monotonic()
        with Queue(threads=4) as jobs:
            for _ in range(8):
                jobs.add(lambda: time.sleep(0.5))
        self.assertGreaterEqual(time.monotonic() - started, 1.0)

    def test_leaving_waits_for_all(self):
        with Queue(threads=1) as jobs:
            added = [jobs.add(lambda: time.sleep(0.1)) for _ in range(3)]
        self.assertTrue(all(job.is_done for job in added))

    def test_errors_are_kept(self):
        with Queue() as jobs:
            job = jobs.add(lambda: {}["missing"], attempts=2)
        self.assertEqual((type(job.error), job.tried), (KeyError, 2))
