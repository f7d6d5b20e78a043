"""Waiting until absolute monotonic times, on the event loop.

One Linux timerfd serves all waits, since the timers of asyncio and uvloop end on whole milliseconds. Elsewhere those
are used.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import sys
from itertools import count

from agentprof.clock import now_ns

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Deadlines:
    """All waits of a server process. Create it inside the running loop; close it at the end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create failed")
            self._loop.add_reader(self._fd, self._fire)

    def close(self) -> None:
        """Release the timer; waits that are still open never end."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def until(self, at_ns: int) -> None:
        """Return at or just after `at_ns`. When it has passed, others still get their turn first."""
        if at_ns <= now_ns():
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = self._loop.create_future()
        entry = (at_ns, next(self._order), future)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._arm(at_ns)
        await future

    def _arm(self, at_ns: int) -> None:
        if self._fd < 0:
            self._loop.call_later(max(0.0, (at_ns - now_ns()) / 1e9), self._fire)
            return
        spec = _Itimerspec(0, 0, at_ns // 10**9, at_ns % 10**9)
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)

    def _fire(self) -> None:
        if self._fd >= 0:
            try:
                os.read(self._fd, 8)
            except BlockingIOError:
                return
        now = now_ns()
        while self._heap and self._heap[0][0] <= now:
            _, _, future = heapq.heappop(self._heap)
            if not future.done():
                future.set_result(None)
        if self._heap:
            self._arm(self._heap[0][0])
