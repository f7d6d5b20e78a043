"""How long to wait before a job is tried again."""

import random


class Backoff:
    """Waits that double from `first` seconds up to `longest`, each varied by up to `jitter` of itself."""

    def __init__(self, first=0.1, longest=2.0, jitter=0.0, seed=None):
        if first <= 0 or longest < first or not 0 <= jitter < 1:
            raise ValueError("first must be above 0, longest at least first, jitter from 0 to below 1")
        self.first = first
        self.longest = longest
        self.jitter = jitter
        self._random = random.Random(seed)

    def wait(self, attempt):
        """Seconds before an attempt; 0 before the first one, which has number 1."""
        if attempt <= 1:
            return 0.0
        wait = self.first * 2 ** (attempt - 1)
        return wait * (1 + self.jitter * (2 * self._random.random() - 1))

    def total(self, attempts):
        """Seconds of all waits of a job that takes so many attempts."""
        return sum(self.wait(attempt) for attempt in range(1, attempts + 1))
