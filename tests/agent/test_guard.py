"""The guard: what a killed agentprof leaves is removed, what it released is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agentprof.agent.guard import Guard
from agentprof.agent.workspace import copy_workspace, remove_workspace

_PARENT = """
import os, subprocess, sys, time
from pathlib import Path
from agentprof.agent.guard import Guard
from agentprof.agent.survivors import MARK
from agentprof.agent.workspace import copy_workspace
source = Path(sys.argv[1])
with Guard() as guard:
    kept, left = copy_workspace(source), copy_workspace(source)
    guard.watch(kept)
    guard.watch(left)
    guard.release(kept)
    # A process that fled into a session of its own, as a tool's may.
    fled = subprocess.Popen(["sleep", "300"], env={MARK: left.mark + "1"}, start_new_session=True)
    print(kept.root, left.root, fled.pid, guard._process.pid, flush=True)
    time.sleep(300)
"""


def wait_until(condition: Callable[[], bool], deadline_s: float = 15) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def make_source(folder: Path) -> Path:
    source = folder / "source"
    source.mkdir()
    (source / "a.txt").write_text("a")
    return source


def test_a_killed_process_leaves_neither_processes_nor_watched_workspaces(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(make_source(tmp_path))],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with parent:
        assert parent.stdout is not None
        kept, left, fled, guard = parent.stdout.readline().split()
        assert is_alive(int(fled))
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(int(guard)))
    assert not is_alive(int(fled))
    assert not Path(left).exists()
    assert (Path(kept) / "a.txt").read_text() == "a"  # released: not the guard's to remove


def test_it_ends_with_its_block(tmp_path: Path) -> None:
    workspace = copy_workspace(make_source(tmp_path))
    with Guard() as guard:
        guard.watch(workspace)
        remove_workspace(workspace)
        guard.release(workspace)
        assert guard._process is not None
        pid = guard._process.pid
    assert not is_alive(pid)


def test_a_guard_that_was_killed_stops_nobody(tmp_path: Path) -> None:
    workspace = copy_workspace(make_source(tmp_path))
    try:
        with Guard() as guard:
            assert guard._process is not None
            guard._process.kill()
            guard._process.wait()
            guard.watch(workspace)
            guard.release(workspace)
    finally:
        remove_workspace(workspace)
