"""What a running session is doing right now: written by the loop and the wire, read by whoever shows progress."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SessionStatus:
    """The live state of one session; every field may change between two looks.

    steps_total: 0 where it isn't known (live mode). tokens: stream events so far in this step, a lower bound of its
    tokens. is_calling: a call to the model is open. outcome: None while it runs. wall_ns: how long it took, workspace
    and checks apart; None while it runs, and where it never began.
    """

    scenario: str
    backend: str
    repetition: int
    is_warmup: bool
    steps_total: int
    step: int = 0
    phase: str = "workspace"
    tokens: int = 0
    session_tokens: int = 0
    is_calling: bool = False
    outcome: str | None = None
    wall_ns: int | None = None
