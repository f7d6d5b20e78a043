"""Threads that take jobs and run them."""

import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable


@dataclass
class Job:
    """Something to run, and what came of it: `result` or `error` once it `is_done`."""

    run: Callable[[], Any]
    attempts: int = 1
    result: Any = None
    error: Exception | None = None
    tried: int = 0
    _done: threading.Event = field(default_factory=threading.Event)

    @property
    def is_done(self):
        return self._done.is_set()

    def wait(self, timeout=None):
        """Wait until it is done; returns whether it is."""
        return self._done.wait(timeout)


class Queue:
    """Runs jobs in `threads` threads. Leaving its `with` block waits for all that were added."""

    def __init__(self, threads=2, backoff=None, rate=None):
        self._jobs = queue.Queue()
        self._backoff = backoff
        self._rate = rate
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception):
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def add(self, run, attempts=1):
        """Add a job, tried up to `attempts` times."""
        job = Job(run, attempts)
        self._jobs.put(job)
        return job

    def _work(self):
        while (job := self._jobs.get()) is not None:
            self._try(job)
            job._done.set()

    def _try(self, job):
        while job.tried < job.attempts:
            job.tried += 1
            if self._backoff:
                time.sleep(self._backoff.wait(job.tried))
            if self._rate:
                self._rate.take()
            try:
                job.result, job.error = job.run(), None
                return
            except Exception as error:
                job.error = error
