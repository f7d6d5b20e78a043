"""Runs the real command in a process of its own, and finds what it left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_COMMAND = [sys.executable, "-m", "agentprof"]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def complaints(self) -> list[str]:
        """Its lines on stderr that begin with its name."""
        return [line for line in self.err.splitlines() if line.startswith("agentprof:")]


@dataclass
class Running:
    """A command that runs. Its processes carry a mark in their environment."""

    process: subprocess.Popen[str]
    mark: str
    started: float = field(default_factory=time.monotonic)

    def wait_for(self, condition: Callable[[], bool], deadline_s: float = 90) -> None:
        """Wait until something is so, while the command runs."""
        until = time.monotonic() + deadline_s
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            if time.monotonic() > until:
                self.process.kill()
                pytest.fail(f"not so within {deadline_s:g} s: {self.process.communicate()}")
            time.sleep(0.01)

    def signal(self, number: signal.Signals, *, again: bool = False) -> Ended:
        """Send a signal, maybe twice, and wait for the end."""
        self.process.send_signal(number)
        if again:
            time.sleep(0.02)
            self.process.send_signal(number)
        return self.end()

    def end(self, timeout_s: float = 150) -> Ended:
        """Wait for the end."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"no end within {timeout_s:g} s: {self.process.communicate()}")
        return Ended(self.process.returncode, out, err, time.monotonic() - self.started)

    def survivors(self) -> list[int]:
        """Processes of this command that are still alive."""
        return [pid for pid in _pids() if _environment(pid).get("AGENTPROF_TEST") == self.mark]


def start(*arguments: str, cwd: Path, **environment: str) -> Running:
    """Start a command; keywords are environment variables."""
    mark = uuid.uuid4().hex
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    process = subprocess.Popen(
        [*_COMMAND, *arguments],
        cwd=cwd,
        env={**kept, "AGENTPROF_TEST": mark, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Running(process, mark)


def run(*arguments: str, cwd: Path, **environment: str) -> Ended:
    """Run a command to its end."""
    ended = start(*arguments, cwd=cwd, **environment).end()
    assert "Traceback" not in ended.err, ended.err
    return ended


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _environment(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in raw.decode(errors="replace").split("\0") if "=" in entry)
