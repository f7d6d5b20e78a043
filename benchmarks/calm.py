"""Whether the machine is itself: how much longer work takes after a pause than in a loop.

A client's code runs once per call, after a pause in which its data have left the caches. On a virtual machine it is the
neighbours who push them out: the same work then takes four to six times as long as in a loop, while a loop takes no
longer than before and the load average says nothing. What is measured in such minutes is measured again, whatever came
out.
"""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

_SOURCE = textwrap.dedent(inspect.getsource(textwrap.TextWrapper))
_TEXT = json.dumps([{"a": number, "b": [str(number)] * 3} for number in range(200)])
_LOOPS, _PAUSES = 30, 10
_PAUSE_S = 0.1
_WAIT_S = 10.0

T = TypeVar("T")


def _work_ns() -> int:
    """Some work of many kinds, about a millisecond of it."""
    started_ns = time.perf_counter_ns()
    compile(_SOURCE, "source", "exec")
    json.dumps(json.loads(_TEXT))
    return time.perf_counter_ns() - started_ns


def _work_after_a_pause_ns() -> int:
    time.sleep(_PAUSE_S)
    return _work_ns()


@dataclass(slots=True)
class Calm:
    """Waits for a strain of at most `limit`, for `patience_s` in all; with 0 it only looks."""

    limit: float
    patience_s: float

    def strain(self) -> float:
        """How many times as long some work takes after a pause of 0.1 s, of ten the median, as at best in a loop."""
        least_ns = min(_work_ns() for _ in range(_LOOPS))
        return median(_work_after_a_pause_ns() for _ in range(_PAUSES)) / least_ns

    def around(self, measure: Callable[[], T]) -> tuple[T, float]:
        """What `measure` returns, and the larger strain of just before and after it.

        Waits for calm, and measures again where it was over by the end, as long as there is patience.
        """
        while True:
            before = self._wait()
            started_s = time.monotonic()
            measured = measure()
            worst = max(before, self.strain())
            if worst <= self.limit or self.patience_s <= 0:
                return measured, worst
            self.patience_s -= time.monotonic() - started_s

    def _wait(self) -> float:
        strain = self.strain()
        if strain > self.limit and self.patience_s > 0:
            print(
                f"after a pause, work takes {strain:.1f} times as long as in a loop; waiting for {self.limit:g}, "
                f"{max(1, round(self.patience_s / 60))} min at most",
                file=sys.stderr,
            )
        while strain > self.limit and self.patience_s > 0:
            time.sleep(_WAIT_S)
            self.patience_s -= _WAIT_S
            strain = self.strain()
        return strain
