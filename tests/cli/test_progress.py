"""Progress as a log and as a terminal show it."""

from __future__ import annotations

import io
import re
import time

from rich.console import Console

from agentprof.cli.progress import RunProgress
from agentprof.records.progress import SessionStatus
from agentprof.runs.plan import PlannedSession

PLAN = [PlannedSession("fix", "new", 1, True), PlannedSession("fix", "new", 1, False)]


def status(number: int = 1, steps: int = 4, *, is_warmup: bool = False) -> SessionStatus:
    return SessionStatus("fix", "new", number, is_warmup, steps)


def show(is_terminal: bool, log_every_s: float = 60) -> tuple[str, RunProgress]:
    """What is written while two sessions run, with a look at the second one in its third step."""
    file = io.StringIO()
    progress = RunProgress(Console(file=file, force_terminal=is_terminal, width=100), log_every_s=log_every_s)
    with progress:
        progress.waiting('waiting for backend "new"')
        progress.waiting('waiting for backend "new"')
        progress.planned(PLAN)
        first = status(is_warmup=True)
        progress.started(first)
        first.step, first.session_tokens, first.outcome = 4, 1234, "completed"
        progress.ended(first)
        second = status()
        progress.started(second)
        second.step, second.phase, second.session_tokens, second.tokens, second.is_calling = 3, "receiving", 64, 8, True
        time.sleep(0.5)
        second.outcome, second.is_calling = "failed", False
        progress.ended(second)
    return file.getvalue(), progress


def test_a_log_has_a_line_for_what_happens() -> None:
    lines = show(is_terminal=False)[0].splitlines()
    assert lines[0] == 'waiting for backend "new"'
    assert lines[1] == "running 2 sessions, 1 of them to warm up"
    assert re.fullmatch(
        r"\[1/2\] fix on new, warm-up 1: completed, 4 steps, 1,234 tokens, 0\.\d s; about 0 s left", lines[2]
    )
    assert re.fullmatch(r"\[2/2\] fix on new, repetition 1: failed, 3 steps, 64 tokens, 0\.\d s", lines[3])
    assert len(lines) == 4


def test_a_log_says_now_and_then_how_far_it_is() -> None:
    lines = [line for line in show(is_terminal=False, log_every_s=0.1)[0].splitlines() if line.startswith("…")]
    assert 2 <= len(lines) <= 6
    assert re.fullmatch(r"… fix on new, repetition 1: step 3/4, receiving, ~72 tokens, 0 s; about 0 s left", lines[0])


def test_a_terminal_shows_the_running_session_and_keeps_the_ended_ones() -> None:
    written = show(is_terminal=True)[0]
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert "1 of 2 sessions done; about" in plain
    assert re.search(r"fix on new, repetition 1 +step 3/4 +receiving +~72 tokens +0 s", plain)
    assert re.search(r"\[2/2\] fix on new, repetition 1: failed", plain)
    assert written.endswith("\x1b[?25h") or "\x1b[?25h" in written[-40:]  # the cursor is back


def test_the_time_left_counts_what_running_sessions_have_done() -> None:
    progress = RunProgress(Console(file=io.StringIO()))
    progress.planned(PLAN)
    progress._started_ns -= 60 * 10**9
    running = status()
    progress.started(running)
    assert progress._eta() == ""
    running.step = 3  # half of one of two sessions in 60 s: 180 s are left
    assert progress._eta() == "; about 180 s left"
    progress.started(status(2, steps=0))  # live: its length isn't known
    assert progress._eta() == "; about 180 s left"


def test_a_session_of_unknown_length_shows_its_step_alone() -> None:
    progress = RunProgress(Console(file=io.StringIO()))
    progress.planned(PLAN)
    live = status(steps=0)
    progress.started(live)
    assert next(progress._states())[:2] == ("fix on new, repetition 1", "")
    live.step = 2
    assert next(progress._states())[1] == "step 2"
