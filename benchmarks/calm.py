"""Whether the machine is itself: how long its memory takes to answer.

On a virtual machine the neighbours' load shows there first. Code that runs once per call, its data long out of the
caches, then takes three to five times as long, while a hot loop takes no longer than before and the load average says
nothing. What is measured in such a minute is measured again, whatever came out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

_CELLS = 1_000_000  # about 40 MB: more than a core's own caches hold
_STEPS = 100_000
_PAUSE_S = 10.0

T = TypeVar("T")


def _cycle() -> list[int]:
    """A permutation that is one cycle: each cell names the next one, somewhere else."""
    order = list(range(_CELLS))
    Random(1).shuffle(order)
    following = [0] * _CELLS
    for here, there in zip(order, [*order[1:], order[0]], strict=True):
        following[here] = there
    return following


@dataclass(slots=True)
class Calm:
    """Waits for memory that answers within `limit_ns`, for `patience_s` in all; with 0 it only looks."""

    limit_ns: int
    patience_s: float
    _cells: list[int] = field(default_factory=_cycle)
    _at: int = 0

    def latency_ns(self) -> int:
        """Nanoseconds per step of a walk through memory in no order, the better of two walks."""
        walks = []
        for _ in range(2):
            cells, at = self._cells, self._at
            started_ns = time.perf_counter_ns()
            for _ in range(_STEPS):
                at = cells[at]
            walks.append((time.perf_counter_ns() - started_ns) // _STEPS)
            self._at = at
        return min(walks)

    def around(self, measure: Callable[[], T]) -> tuple[T, int]:
        """What `measure` returns, and the longest latency just before and after it.

        Waits for calm, and measures again where it was over by the end, as long as there is patience.
        """
        while True:
            before_ns = self._wait()
            started_s = time.monotonic()
            measured = measure()
            worst_ns = max(before_ns, self.latency_ns())
            if worst_ns <= self.limit_ns or self.patience_s <= 0:
                return measured, worst_ns
            self.patience_s -= time.monotonic() - started_s

    def _wait(self) -> int:
        while (latency_ns := self.latency_ns()) > self.limit_ns and self.patience_s > 0:
            print(
                f"a step through memory takes {latency_ns} ns; waiting for {self.limit_ns}, "
                f"{self.patience_s / 60:.0f} min at most",
                file=sys.stderr,
            )
            time.sleep(_PAUSE_S)
            self.patience_s -= _PAUSE_S
        return latency_ns
