"""At most so many starts in a second."""

import threading
import time


class RateLimit:
    """A bucket of `burst` tokens that refills at `per_second`; every start takes one, and waits for it."""

    def __init__(self, per_second, burst=1):
        self.per_second = per_second
        self.burst = burst
        self._tokens = float(burst)
        self._filled_at = time.monotonic()
        self._lock = threading.Lock()

    def take(self):
        """Take a token, waiting for it if there is none; returns the seconds that were waited."""
        with self._lock:
            now = time.monotonic()
            self._tokens += (now - self._filled_at) * self.per_second
            self._filled_at = now
            self._tokens -= 1
            wait = max(0.0, -self._tokens / self.per_second)
        if wait:
            time.sleep(wait)
        return wait
