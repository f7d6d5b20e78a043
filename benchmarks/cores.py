"""Processor cores for servers alone, and cores that don't sleep while something short is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

_LOOP = """
import os
os.sched_setaffinity(0, [{core}])
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
parent = os.getppid()
while os.getppid() == parent:
    pass
"""


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores that servers get, and those that can be kept awake."""

    server: frozenset[int]
    sleepless: frozenset[int]

    @classmethod
    def as_they_are(cls) -> Cores:
        """All of them for everyone, asleep when they have nothing to do."""
        return cls(frozenset(os.sched_getaffinity(0)), frozenset())

    @classmethod
    def divide(cls) -> Cores:
        """The first core for servers; this process, and what it starts, keeps to the others if there are any."""
        every = os.sched_getaffinity(0)
        os.sched_setaffinity(0, every - {min(every)} or every)
        return cls(frozenset({min(every)}), frozenset(every))

    @contextmanager
    def for_server(self) -> Iterator[None]:
        """What is started meanwhile runs on the servers' cores."""
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.server)
        try:
            yield
        finally:
            os.sched_setaffinity(0, own)

    @contextmanager
    def kept_awake(self) -> Iterator[None]:
        """Meanwhile each core runs a loop at idle priority, which gives way to everything else."""
        with ExitStack() as stack:
            for core in self.sleepless:
                process = stack.enter_context(subprocess.Popen([sys.executable, "-c", _LOOP.format(core=core)]))
                stack.callback(process.kill)
            yield
