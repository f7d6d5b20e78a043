"""The order of sessions: warm-ups first and whole, then repetitions with backends in balanced order."""

from __future__ import annotations

from itertools import chain

from agentprof.runs.plan import PlannedSession, plan_sessions


def labels(waves: list[list[PlannedSession]]) -> list[str]:
    """A wave as `scenario/backend numbers`, warm-ups marked with w."""
    return [
        f"{wave[0].scenario}/{wave[0].backend} "
        + " ".join(("w" if session.is_warmup else "") + str(session.repetition) for session in wave)
        for wave in waves
    ]


def test_backends_alternate_in_balanced_order_after_their_warmups() -> None:
    waves = plan_sessions(["s"], ["a", "b"], repeat=4, concurrency=1, warmup=1)
    assert labels(waves) == ["s/a w1", "s/b w1", "s/a 1", "s/b 1", "s/b 2", "s/a 2", "s/a 3", "s/b 3", "s/b 4", "s/a 4"]


def test_a_wave_holds_as_many_sessions_as_run_at_once() -> None:
    waves = plan_sessions(["s"], ["a"], repeat=5, concurrency=2, warmup=2)
    assert labels(waves) == ["s/a w1 w2", "s/a w3 w4", "s/a 1 2", "s/a 3 4", "s/a 5"]


def test_every_session_is_planned_once() -> None:
    waves = plan_sessions(["s", "t"], ["a", "b", "c"], repeat=7, concurrency=3, warmup=1)
    sessions = list(chain(*waves))
    assert len(set(sessions)) == len(sessions) == 2 * 3 * (7 + 3)
    assert all(len({(session.scenario, session.backend, session.is_warmup) for session in wave}) == 1 for wave in waves)
    first_measured = next(index for index, session in enumerate(sessions) if not session.is_warmup)
    assert not any(session.is_warmup for session in sessions[first_measured:])


def test_without_a_warmup_only_repetitions_run() -> None:
    assert labels(plan_sessions(["s"], ["a"], repeat=1, concurrency=1, warmup=0)) == ["s/a 1"]


def test_titles_say_which_session_it_is() -> None:
    assert PlannedSession("fix", "new", 2, False).title == "fix on new, repetition 2"
    assert PlannedSession("fix", "new", 1, True).title == "fix on new, warm-up 1"
