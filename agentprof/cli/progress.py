"""Live progress of a replay: one line a running session where there is a terminal, one line an ended one in a log."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentprof.clock import now_ns
from agentprof.records.progress import SessionStatus
from agentprof.runs.plan import PlannedSession, session_title
from agentprof.runs.recording import Observer


class ReplayProgress(Observer):
    """Shows a replay on stderr. A context manager: the live display lasts as long as the block."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._running: dict[int, tuple[SessionStatus, int]] = {}
        self._total = 0
        self._ended = 0
        self._ended_ns = 0
        self._started_ns = now_ns()
        self._message = ""

    def __enter__(self) -> ReplayProgress:
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=5, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        elapsed_s = (now_ns() - started_ns) / 1e9
        steps = f"{status.step} step{'s' if status.step != 1 else ''}"
        tokens = f"{status.session_tokens:,} tokens"
        line = f"{_title(status)}: {status.outcome}, {steps}, {tokens}, {elapsed_s:.1f} s"
        self._print(f"[{self._ended}/{self._total}] {line}{self._eta()}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _eta(self) -> str:
        """Time left, from the sessions that have ended and how far the running ones are."""
        left = self._total - self._ended
        done = self._ended + sum(_share(status) for status, _ in self._running.values())
        if left <= 0 or done <= 0:
            return ""
        elapsed_s = (now_ns() - self._started_ns) / 1e9
        return f"; about {elapsed_s / done * (self._total - done):.0f} s left"

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for status, started_ns in list(self._running.values()):
            of = f"/{status.steps_total}" if status.steps_total else ""
            table.add_row(
                Text(_title(status), style="bold"),
                f"step {status.step}{of}",
                status.phase,
                f"{status.tokens} events",
                f"{status.session_tokens} tokens",
                f"{(now_ns() - started_ns) / 1e9:.0f} s",
            )
        head = self._message or f"{self._ended} of {self._total} sessions done{self._eta()}"
        return Group(Text(head, style="dim"), table)


def _title(status: SessionStatus) -> str:
    return session_title(status.scenario, status.backend, status.repetition, is_warmup=status.is_warmup)


def _share(status: SessionStatus) -> float:
    """How much of a running session is done, 0 to 1; 0 where its length isn't known."""
    return max(0, status.step - 1) / status.steps_total if status.steps_total else 0.0
