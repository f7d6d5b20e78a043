"""Live progress of a run: a line for each running session where there is a terminal, a line now and then in a log."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentprof.clock import now_ns
from agentprof.records.progress import SessionStatus
from agentprof.runs.plan import PlannedSession, session_title
from agentprof.runs.recording import Observer

LOG_EVERY_S = 30.0
"""How often a log says how far the running sessions are."""


class RunProgress(Observer):
    """Shows a run on stderr. A context manager: it shows as long as the block lasts."""

    def __init__(self, console: Console, *, log_every_s: float = LOG_EVERY_S) -> None:
        self._console = console
        self._log_every_s = log_every_s
        self._live: Live | None = None
        self._is_over = threading.Event()
        self._running: dict[int, tuple[SessionStatus, int]] = {}
        self._total = 0
        self._ended = 0
        self._started_ns = now_ns()
        self._message = ""

    def __enter__(self) -> RunProgress:
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=5, transient=True)
            self._live.start()
        else:
            threading.Thread(target=self._log, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._live is not None:
            self._live.stop()

    def waiting(self, message: str) -> None:
        """Say what is waited for; in a log only when it changes."""
        if message != self._message and self._live is None:
            self._print(message)
        self._message = message

    def planned(self, sessions: Sequence[PlannedSession]) -> None:
        """Take the number of sessions for the ETA, and say it."""
        self._message = ""
        self._total = len(sessions)
        self._started_ns = now_ns()
        warmups = sum(session.is_warmup for session in sessions)
        of = f", {warmups} of them to warm up" if warmups else ""
        self._print(f"running {self._total} session{'s' if self._total != 1 else ''}{of}")

    def started(self, status: SessionStatus) -> None:
        """Show a session from now on."""
        self._running[id(status)] = (status, now_ns())

    def ended(self, status: SessionStatus) -> None:
        """Print the ended session's line."""
        _, started_ns = self._running.pop(id(status))
        self._ended += 1
        steps = f"{status.step} step{'s' if status.step != 1 else ''}"
        seconds = _seconds_since(started_ns) if status.wall_ns is None else status.wall_ns / 1e9
        line = f"{_title(status)}: {status.outcome}, {steps}, {_tokens(status)}, {seconds:.1f} s"
        self._print(f"[{self._ended}/{self._total}] {line}{self._eta()}")

    def _print(self, line: str) -> None:
        with suppress(OSError):  # whoever read the progress has gone; the measurement hasn't
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _eta(self) -> str:
        """Time left, from the sessions that have ended and how far the running ones are."""
        left = self._total - self._ended
        done = self._ended + sum(_share(status) for status, _ in list(self._running.values()))
        if left <= 0 or done <= 0:
            return ""
        return f"; about {_seconds_since(self._started_ns) / done * (self._total - done):.0f} s left"

    def _log(self) -> None:
        while not self._is_over.wait(self._log_every_s):
            for words in self._states():
                self._print(f"… {words[0]}: {', '.join(filter(None, words[1:]))}{self._eta()}")

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for title, *words in self._states():
            table.add_row(Text(title, style="bold"), *words)
        head = self._message or f"{self._ended} of {self._total} sessions done{self._eta()}"
        return Group(Text(head, style="dim"), table)

    def _states(self) -> Iterator[tuple[str, ...]]:
        """The running sessions: title, step, phase, tokens, time."""
        for status, started_ns in list(self._running.values()):
            of = f"/{status.steps_total}" if status.steps_total else ""
            step = f"step {status.step}{of}" if status.step else ""
            yield _title(status), step, status.phase, _tokens(status), f"{_seconds_since(started_ns):.0f} s"


def _title(status: SessionStatus) -> str:
    return session_title(status.scenario, status.backend, status.repetition, is_warmup=status.is_warmup)


def _tokens(status: SessionStatus) -> str:
    """Tokens so far; events stand in for those of the call that is open."""
    if status.is_calling and status.tokens:
        return f"~{status.session_tokens + status.tokens:,} tokens"
    return f"{status.session_tokens:,} tokens"


def _seconds_since(started_ns: int) -> float:
    return (now_ns() - started_ns) / 1e9


def _share(status: SessionStatus) -> float:
    """How much of a running session is done, 0 to 1; 0 where its length isn't known."""
    return max(0, status.step - 1) / status.steps_total if status.steps_total else 0.0
