"""Whether the machine is itself: how much longer work takes after a pause than in a loop, and who else uses its cores.

A client's code runs once per call, after a pause in which its data have left the caches. On a virtual machine it is the
neighbours who push them out: the same work then takes four to six times as long as in a loop, while a loop takes no
longer than before and the load average says nothing. What is measured in such minutes, or while other processes had
more than a twentieth of the cores, is measured again, whatever came out.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

_SOURCE = textwrap.dedent(inspect.getsource(textwrap.TextWrapper))
_TEXT = json.dumps([{"a": number, "b": [str(number)] * 3} for number in range(200)])
_LOOPS, _PAUSES = 30, 10
_PAUSE_S = 0.1
_WAIT_S = 10.0
_FOREIGN = 0.05  # share of the cores

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


def _foreign_s() -> float:
    """CPU seconds that neither this process nor its descendants had; only differences mean anything.

    What the host took away (steal) counts among them.
    """
    first_line = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first_line.split()[1:9])
    return (user + nice + system + irq + softirq + steal - _own_ticks()) / os.sysconf("SC_CLK_TCK")


def _own_ticks() -> int:
    """CPU time of this process, its descendants, and those of them that have ended."""
    ticks: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        children[int(fields[1])].append(int(folder.name))
        ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    tree = [os.getpid()]
    for pid in tree:
        tree += children[pid]
    return sum(ticks.get(pid, 0) for pid in tree)


@dataclass(slots=True)
class Calm:
    """Waits for a strain of at most `limit`, for `patience_s` in all; with 0 it only looks.

    busiest: the largest share of the cores that others had while something was measured that then counted.
    """

    limit: float
    patience_s: float
    busiest: float = 0.0

    def strain(self) -> float:
        """How many times as long some work takes after a pause of 0.1 s, of ten the median, as at best in a loop."""
        least_ns = min(_work_ns() for _ in range(_LOOPS))
        return median(_work_after_a_pause_ns() for _ in range(_PAUSES)) / least_ns

    def foreign_s(self) -> float:
        """CPU seconds that others have had so far."""
        return _foreign_s()

    def around(self, measure: Callable[[], T]) -> tuple[T, float]:
        """What `measure` returns, and the larger strain of just before and after it.

        Waits for calm, and measures again where it was over by the end, or where others were at work meanwhile, as
        long as there is patience.
        """
        while True:
            before = self._wait()
            started_s, foreign_s = time.monotonic(), self.foreign_s()
            measured = measure()
            took_s = time.monotonic() - started_s
            others = (self.foreign_s() - foreign_s) / took_s / (os.cpu_count() or 1)
            worst = max(before, self.strain())
            if (worst <= self.limit and others <= _FOREIGN) or self.patience_s <= 0:
                self.busiest = max(self.busiest, others)
                return measured, worst
            self.patience_s -= took_s
            if others > _FOREIGN:
                print(f"other processes had {others:.0%} of the cores meanwhile; measuring again", file=sys.stderr)

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
