"""Finding and killing processes that a tool call started, wherever they fled to.

A process is known by its parent, group or session, or by the variable `MARK` in its environment, which children inherit
even where they leave the session. Linux: read from /proc.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "AGENTPROF_CALL"
"""Environment variable that every process of a tool call carries: `<workspace>#<call>`."""

_PATIENCE_S = 0.4
_PAUSE_S = 0.005
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    state: str
    parent: int
    group: int
    session: int


def kill_tree(leader: int, mark: str) -> None:
    """SIGKILL the process `leader`, its descendants, its group and session, and all that carry `mark` exactly.

    All are stopped before one is killed: a stopped process can't fork, and its children stay its children, also those
    in another session and without the mark. Gives up after 0.4 s, when what is left can't be killed. The leader itself
    may remain as a zombie, for its parent to reap.
    """

    def find() -> set[int]:
        return _tree(leader) | _marked(f"{mark}\0")

    until = time.monotonic() + _PATIENCE_S
    stopped: set[int] = set()
    while (running := find() - stopped) and time.monotonic() < until:
        _signal(running, signal.SIGSTOP)
        stopped |= running
    _signal(stopped, signal.SIGKILL)
    kill_group(leader)
    _kill_until_none(find)


def kill_marked(mark: str) -> None:
    """SIGKILL every process whose `MARK` begins with `mark`; gives up after 0.4 s."""
    _kill_until_none(lambda: _marked(mark))


def kill_group(leader: int) -> None:
    """SIGKILL a process group; nothing happens where it has no members."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _kill_until_none(find: Callable[[], set[int]]) -> None:
    """Kill what is found and look again, since a process may fork while it is looked for, until nobody is left."""
    until = time.monotonic() + _PATIENCE_S
    while (found := find()) and time.monotonic() < until:
        _signal(found, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _signal(pids: set[int], number: signal.Signals) -> None:
    """Older ones first, which parents are: a shell that sees its child stopped would say so in the output."""
    for pid in sorted(pids - {os.getpid()}):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _tree(leader: int) -> set[int]:
    """Living processes that are the leader, come from it, or share its group or session."""
    processes = _processes()
    known = {leader}
    while True:
        more = {p.pid for p in processes if p.parent in known or leader in (p.group, p.session)} - known
        if not more:
            break
        known |= more
    return {p.pid for p in processes if p.pid in known and p.state not in "ZX"}


def _processes() -> list[_Process]:
    found = []
    for pid in _pids():
        with suppress(OSError):
            # The name stands in brackets and may hold anything, brackets too: the fields begin after the last one.
            fields = Path(_PROC, str(pid), "stat").read_bytes().rpartition(b")")[2].split()
            found.append(_Process(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3])))
    return found


def _marked(start: str) -> set[int]:
    """Processes whose environment holds MARK with a value that begins with `start`; zombies have no environment."""
    wanted = os.fsencode(f"\0{MARK}={start}")
    found = set()
    for pid in _pids():
        with suppress(OSError):
            if wanted in b"\0" + Path(_PROC, str(pid), "environ").read_bytes():
                found.add(pid)
    return found


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
