"""Processes that are still alive, found in /proc: what tests assert that nothing left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from agentprof.agent.survivors import MARK


def with_argument(argument: str) -> set[int]:
    """Living processes one of whose arguments is exactly this."""
    return {pid for pid in _pids() if os.fsencode(argument) in _read(pid, "cmdline").split(b"\0")}


def of_workspaces_in(folder: Path) -> set[int]:
    """Living processes that a tool started in a workspace somewhere below a folder."""
    mark = os.fsencode(f"{MARK}={folder.resolve()}/")
    return {pid for pid in _pids() if any(entry.startswith(mark) for entry in _read(pid, "environ").split(b"\0"))}


def are_gone(find: Callable[[], object], within_s: float = 20.0) -> bool:
    """Whether nothing is found any more, after a moment: the kernel takes a killed process away in its own time."""
    until = time.monotonic() + within_s
    while find():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
