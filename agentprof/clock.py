"""One monotonic clock for every duration; the wall clock only places spans."""

from __future__ import annotations

import time
from dataclasses import dataclass

now_ns = time.perf_counter_ns
"""Nanoseconds on the monotonic clock that every duration comes from."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """One reading of both clocks: places monotonic times on the wall clock without touching differences."""

    wall_ns: int
    monotonic_ns: int

    @classmethod
    def take(cls) -> Anchor:
        """Read both clocks, keeping the tightest of a few readings."""
        readings = []
        for _ in range(5):
            before = now_ns()
            wall = time.time_ns()
            after = now_ns()
            readings.append((after - before, wall, (before + after) // 2))
        _, wall, monotonic = min(readings)
        return cls(wall, monotonic)

    def to_wall_ns(self, monotonic_ns: int) -> int:
        """Unix time in nanoseconds of a monotonic reading."""
        return self.wall_ns + (monotonic_ns - self.monotonic_ns)


ANCHOR = Anchor.take()
"""Taken once per process."""
