"""One command of a tool, watched from a thread of its own so that a busy or slow command never delays the event loop.

The command leads a session and process group of its own. Its end is the exit of its process, not the end of its output:
what it left in the background is killed then. At a limit, everything that it started is killed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agentprof.agent.capture import Capture
from agentprof.agent.survivors import MARK, kill_group, kill_tree
from agentprof.clock import now_ns

_PIPE_BYTES = 1 << 20  # what Linux grants to every user
_LEFTOVER_BYTES = 4 * _PIPE_BYTES
_REAP_NS = 2_000_000_000
_SHELL_LIMITS = 'ulimit -c 0; ulimit -v "$1" 2>/dev/null; exec "${@:2}"'

# Threads start on demand and idle ones are used again. asyncio's own pool has as few as six: tools would queue in it.
_THREADS = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="agentprof-tool")

T = TypeVar("T")


class StopSignal:
    """Tells a thread to stop: a flag to look at, and a file descriptor to wait for."""

    __slots__ = ("fd", "is_set")

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.is_set = False

    def set(self) -> None:
        """Ask to stop."""
        self.is_set = True
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)


async def run_in_thread(work: Callable[[StopSignal], T]) -> T:
    """Run blocking work in a thread. When cancelled, tell it to stop, wait until it has, then raise CancelledError."""
    stop = StopSignal()
    running = asyncio.get_running_loop().run_in_executor(_THREADS, work, stop)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise
    finally:
        stop.close()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ran: from just before its process was made to the exit of that process.

    `exit_code`: 128 + n where signal n ended it; None where it could not be made to end.
    """

    exit_code: int | None
    started_ns: int
    ended_ns: int
    is_timed_out: bool


def with_memory_limit(argv: Sequence[str], memory_mib: int) -> list[str]:
    """The command, started by a shell that limits the address space of each of its processes and allows no core dump.

    A stricter limit that is in force already stays in force.
    """
    return ["bash", "-c", _SHELL_LIMITS, "bash", str(memory_mib * 1024), *argv]


def run_command(
    argv: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    mark: str,
    deadline_ns: int,
    capture: Capture,
    stop: StopSignal,
) -> Exit:
    """Run a command to its end, feeding `capture` with its standard output and error in the order of writing.

    Blocks; meant for a thread. At `deadline_ns` of the monotonic clock, or when `stop` is set, the command is killed
    with all that it started. `mark` names this call in the environment of its processes. Raises OSError when it can't
    be started.
    """
    output, written = os.pipe2(os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        started_ns = now_ns()
        try:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**environment, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
            )
        finally:
            os.close(written)
        code, ended_ns, is_timed_out = _watch(process, output, mark, deadline_ns, capture, stop)
    finally:
        os.close(output)
    return Exit(code, started_ns, ended_ns, is_timed_out)


def _watch(
    process: subprocess.Popen[bytes], output: int, mark: str, deadline_ns: int, capture: Capture, stop: StopSignal
) -> tuple[int | None, int, bool]:
    """Exit code, end, and whether it was stopped at its deadline."""
    try:
        exited = os.pidfd_open(process.pid)
    except OSError:
        kill_tree(process.pid, mark)
        process.wait()
        raise
    try:
        is_ended = _drain_until_exit(exited, output, deadline_ns, capture, stop)
        is_timed_out = not is_ended and not stop.is_set
        if not is_ended:
            kill_tree(process.pid, mark)
            is_ended = _drain_until_exit(exited, output, now_ns() + _REAP_NS, capture, None)
        ended_ns = now_ns()
        # The leader isn't reaped yet, so its number still names this group and no other.
        kill_group(process.pid)
        _drain_rest(output, capture)
    finally:
        os.close(exited)
    code = process.wait() if is_ended else None
    return 128 - code if code is not None and code < 0 else code, ended_ns, is_timed_out


def _drain_until_exit(exited: int, output: int, until_ns: int, capture: Capture, stop: StopSignal | None) -> bool:
    """Read output until the process ends, which is True, or until the time or the stop signal comes, which is False."""
    poll = select.poll()
    for fd in (exited, output, *([stop.fd] if stop else [])):
        poll.register(fd, select.POLLIN)
    while True:
        left_ms = -(-(until_ns - now_ns()) // 1_000_000)
        ready = {fd for fd, _ in poll.poll(max(0, left_ms))}
        if exited in ready:
            return True
        if left_ms <= 0 or (stop and stop.fd in ready):
            return False
        if output in ready:
            data = os.read(output, _PIPE_BYTES)
            if data:
                capture.feed(data)
            else:
                poll.unregister(output)  # closed, though the process lives on


def _drain_rest(output: int, capture: Capture) -> None:
    """Read what the pipe still holds. A process that fled may hold it open and write on, so not until its end."""
    os.set_blocking(output, False)
    left_bytes = _LEFTOVER_BYTES
    with suppress(BlockingIOError):
        while left_bytes > 0 and (data := os.read(output, _PIPE_BYTES)):
            capture.feed(data)
            left_bytes -= len(data)
