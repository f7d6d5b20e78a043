"""Which sessions a run holds, in which order, and which of them run at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """One session to run. `repetition` counts from 1 per scenario and backend, warm-ups by themselves."""

    scenario: str
    backend: str
    repetition: int
    is_warmup: bool

    @property
    def title(self) -> str:
        """As it is printed."""
        return session_title(self.scenario, self.backend, self.repetition, is_warmup=self.is_warmup)


def session_title(scenario: str, backend: str, repetition: int, *, is_warmup: bool) -> str:
    """A session as it is printed, such as `fix-failing-test on local, repetition 2`."""
    return f"{scenario} on {backend}, {'warm-up' if is_warmup else 'repetition'} {repetition}"


def plan_sessions(
    scenarios: Sequence[str], backends: Sequence[str], repeat: int, concurrency: int, warmup: int
) -> list[list[PlannedSession]]:
    """Waves of sessions: those of one wave run at once, on one backend and scenario.

    Each warm-up pass runs at the target concurrency. Repetitions interleave backends, in balanced order: A B, B A.
    """
    waves: list[list[PlannedSession]] = []
    for scenario in scenarios:
        for backend in backends:
            for index in range(warmup):
                first = index * concurrency + 1
                waves.append([PlannedSession(scenario, backend, first + n, True) for n in range(concurrency)])
    blocks = [list(range(first, min(first + concurrency, repeat + 1))) for first in range(1, repeat + 1, concurrency)]
    for index, block in enumerate(blocks):
        for scenario in scenarios:
            ordered = backends if index % 2 == 0 else backends[::-1]
            waves.extend([PlannedSession(scenario, backend, number, False) for number in block] for backend in ordered)
    return waves
