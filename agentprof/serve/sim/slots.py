"""Limited places for running requests, and the queue before them."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """Runs at most `limit` requests (None: all), the others wait in the order of their arrival.

    A place is passed on with the time at which it became free by the schedule, not the time at which the loop came to
    it, so that lateness doesn't add up along the queue.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        self.running = 0

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    async def acquire(self, ready_ns: int) -> int:
        """Wait for a place; returns the time from which it is held, `ready_ns` if one was free."""
        if self._limit is None or self.running < self._limit:
            self.running += 1
            return ready_ns
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        entry = (ready_ns, future)
        self._waiting.append(entry)
        try:
            return await future
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif future.done() and not future.cancelled():
                self.release(future.result())  # the place had been passed on just before the client left
            raise

    def release(self, at_ns: int) -> None:
        """Give a place back, free from `at_ns` on."""
        while self._waiting:
            ready_ns, future = self._waiting.popleft()
            if not future.done():
                future.set_result(max(ready_ns, at_ns))
                return
        self.running -= 1
