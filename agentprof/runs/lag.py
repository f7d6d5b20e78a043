"""Measuring the measurer: how late the client's own event loop runs, and what share of a core it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from agentprof.clock import now_ns

_PERIOD_NS = 5_000_000
_EXACT, _PARTS, _POWERS = 64, 32, 32  # buckets: 64 of 1 µs, then every doubling in 32 parts


@dataclass(frozen=True, slots=True)
class Lag:
    """Event-loop lateness over a stretch of time, in nanoseconds, rounded up by 3 % at most; None without samples."""

    samples: int
    p50_ns: int | None
    p99_ns: int | None
    max_ns: int | None


class LagMeter:
    """Asks to be woken every 5 ms and notes how much later it is, wherever that could have delayed a stamp.

    `is_streaming`: whether any stream is open; lateness at other times touches no figure. Runs while sessions do.
    Samples are counted in buckets, since sorting minutes of them would itself hold the loop up.
    """

    def __init__(self, is_streaming: Callable[[], bool] = lambda: True) -> None:
        self._is_streaming = is_streaming
        self._counts = [0] * (_EXACT + _PARTS * _POWERS)
        self._task: asyncio.Task[None] | None = None
        self._started_ns = 0
        self._started_cpu_ns = 0

    def start(self) -> None:
        """Begin to sample."""
        self._started_ns, self._started_cpu_ns = now_ns(), time.process_time_ns()
        self._task = asyncio.create_task(self._sample())

    async def stop(self) -> None:
        """End sampling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def mark(self) -> Sequence[int]:
        """A position to ask `since` about."""
        return tuple(self._counts)

    def since(self, mark: Sequence[int] = ()) -> Lag:
        """Lateness since a mark, or since the start."""
        counts = [now - before for now, before in zip(self._counts, mark, strict=True)] if mark else self._counts
        sums = list(accumulate(counts))
        samples = sums[-1]
        if not samples:
            return Lag(0, None, None, None)
        p50, p99, most = (
            next(bucket for bucket, seen in enumerate(sums) if seen > rank)
            for rank in (samples // 2, samples * 99 // 100, samples - 1)
        )
        return Lag(samples, _upper_ns(p50), _upper_ns(p99), _upper_ns(most))

    @property
    def cpu_share(self) -> float:
        """This process's CPU time over wall time since the start; 1.0 is one core."""
        wall_ns = now_ns() - self._started_ns
        return (time.process_time_ns() - self._started_cpu_ns) / wall_ns if wall_ns else 0.0

    def note(self, late_ns: int) -> None:
        """Take one sample."""
        self._counts[_bucket(late_ns)] += 1

    async def _sample(self) -> None:
        while True:  # uvloop's own clock ticks in milliseconds, so ours is read
            was_streaming = self._is_streaming()
            due_ns = now_ns() + _PERIOD_NS
            await asyncio.sleep(_PERIOD_NS / 1e9)
            if was_streaming or self._is_streaming():
                self.note(max(0, now_ns() - due_ns))


def _bucket(late_ns: int) -> int:
    late_us = late_ns // 1000
    if late_us < _EXACT:
        return late_us
    shift = late_us.bit_length() - _EXACT.bit_length() + 1
    return min(_EXACT + (shift - 1) * _PARTS + (late_us >> shift) - _PARTS, _EXACT + _PARTS * _POWERS - 1)


def _upper_ns(bucket: int) -> int:
    """The upper edge of a bucket."""
    if bucket < _EXACT:
        return (bucket + 1) * 1000
    doubling, part = divmod(bucket - _EXACT, _PARTS)
    return ((part + _PARTS + 1) << (doubling + 1)) * 1000
