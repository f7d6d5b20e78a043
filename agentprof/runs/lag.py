"""Measuring the measurer: how late the client's own event loop runs, and what share of a core it takes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from agentprof.clock import now_ns

_PERIOD_NS = 5_000_000


@dataclass(frozen=True, slots=True)
class Lag:
    """Event-loop lateness over a stretch of time, in nanoseconds; None where there were no samples."""

    samples: int
    p50_ns: int | None
    p99_ns: int | None
    max_ns: int | None


class LagMeter:
    """Asks to be woken every 5 ms and notes how much later it is. Runs while sessions do."""

    def __init__(self) -> None:
        self._late_ns: list[int] = []
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

    def mark(self) -> int:
        """A position to ask `since` about."""
        return len(self._late_ns)

    def since(self, mark: int = 0) -> Lag:
        """Lateness since a mark."""
        late = sorted(self._late_ns[mark:])
        if not late:
            return Lag(0, None, None, None)
        return Lag(len(late), late[len(late) // 2], late[min(len(late) - 1, len(late) * 99 // 100)], late[-1])

    @property
    def cpu_share(self) -> float:
        """This process's CPU time over wall time since the start; 1.0 is one core."""
        wall_ns = now_ns() - self._started_ns
        return (time.process_time_ns() - self._started_cpu_ns) / wall_ns if wall_ns else 0.0

    async def _sample(self) -> None:
        while True:  # uvloop's own clock ticks in milliseconds, so ours is read
            due_ns = now_ns() + _PERIOD_NS
            await asyncio.sleep(_PERIOD_NS / 1e9)
            self._late_ns.append(max(0, now_ns() - due_ns))
