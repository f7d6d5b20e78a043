"""The tools that need no process: read, write, edit and list files of the workspace.

They block, so they run in threads; they touch regular files only, so that nothing in the workspace can make them wait
for ever; and they give up at the deadline. Text goes in and out as UTF-8; other bytes are kept when a file is edited.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from agentprof.agent.capture import Capture
from agentprof.agent.processes import StopSignal
from agentprof.agent.workspace import ToolInputError, Workspace
from agentprof.clock import now_ns
from agentprof.records.scenario import KEPT_OUT

_PIECE_BYTES = 65_536
_LOOK_EVERY = 100  # pieces between two looks at the clock
_EDITABLE_BYTES = 64 << 20

# Calls of one step run in parallel, and two may edit one file: reading and writing it must be one act.
_WRITING = threading.Lock()


class DeadlineError(Exception):
    """A file tool ran out of time."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a file tool must end: at a time of the monotonic clock, or when it is told to stop."""

    at_ns: int
    stop: StopSignal

    def check(self) -> None:
        """Raise DeadlineError once it is over."""
        if self.stop.is_set or now_ns() > self.at_ns:
            raise DeadlineError


def read_file(workspace: Workspace, path: str, capture: Capture, deadline: Deadline) -> None:
    """Feed `capture` with the lines of a file, each after its number and a tab."""
    with _open_regular(workspace, path, os.O_RDONLY) as opened, os.fdopen(opened, "rb", closefd=False) as file:
        is_start, number, pieces = True, 0, 0
        for piece in _pieces(file):
            if is_start:
                number += 1
                capture.feed(b"%d\t" % number)
            capture.feed(piece)
            is_start = piece.endswith(b"\n")
            pieces += 1
            if pieces % _LOOK_EVERY == 0:
                deadline.check()
    if not pieces:
        capture.feed(f"{path} is empty".encode())


def _pieces(file: BufferedReader) -> Iterator[bytes]:
    return iter(lambda: file.readline(_PIECE_BYTES), b"")


def write_file(workspace: Workspace, path: str, content: str) -> str:
    """Write a whole file and say what was written; folders are made as needed, an existing file keeps its mode."""
    data = content.encode()
    with _WRITING, _open_regular(workspace, path, os.O_WRONLY | os.O_CREAT) as opened:
        _replace(opened, data)
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    return f"wrote {path}: {_count(lines, 'line')}, {_count(len(data), 'byte')}"


def edit_file(workspace: Workspace, path: str, old: str, new: str) -> str:
    """Replace the one occurrence of `old` and say in which line it began. Raises ToolInputError unless it is one."""
    if not old:
        raise ToolInputError('"old" is empty; give the text to replace, or write a whole file with write_file')
    wanted = old.encode()
    with _WRITING, _open_regular(workspace, path, os.O_RDWR) as opened:
        if os.fstat(opened).st_size > _EDITABLE_BYTES:
            raise ToolInputError(f"{path} is larger than {_EDITABLE_BYTES >> 20} MiB; edit it with a command")
        data = _read_whole(opened)
        found = _occurrences(data, wanted)
        if not found:
            raise ToolInputError(
                f'"old" does not occur in {path}; read the file and copy the text exactly, without line numbers'
            )
        lines = [data.count(b"\n", 0, at) + 1 for at in found]
        if len(found) > 1:
            where = ", ".join(map(str, lines[:5])) + (", …" if len(lines) > 5 else "")
            raise ToolInputError(
                f'"old" occurs {len(found)} times in {path} (lines {where}); add lines around it until it is unique'
            )
        _replace(opened, data[: found[0]] + new.encode() + data[found[0] + len(wanted) :])
    return f"edited {path}, line {lines[0]}"


def list_files(workspace: Workspace, path: str, capture: Capture, deadline: Deadline) -> None:
    """Feed `capture` with the sorted paths of the files below a folder, or of one file; links aren't followed."""
    start = workspace.resolve(path)
    if not start.is_dir():
        with _open_regular(workspace, path, os.O_RDONLY):
            capture.feed(workspace.name_of(start).encode(errors="surrogateescape"))
        return
    names: list[str] = []
    with workspace.open_beneath(start, os.O_RDONLY | os.O_DIRECTORY) as opened:
        for folder, folders, files, _ in os.fwalk(".", dir_fd=opened):
            deadline.check()
            at = start / folder
            folders[:] = [name for name in folders if name not in KEPT_OUT]
            names += [workspace.name_of(at / name) for name in files]
    if not names:
        capture.feed(b"no files")
    for name in sorted(names):
        capture.feed(name.encode(errors="surrogateescape") + b"\n")


@contextmanager
def _open_regular(workspace: Workspace, path: str, flags: int) -> Iterator[int]:
    """Open a regular file of the workspace; the system's refusals become ToolInputErrors."""
    resolved = workspace.resolve(path)
    try:
        with workspace.open_beneath(resolved, flags) as opened:
            mode = os.fstat(opened).st_mode
            if stat.S_ISDIR(mode):
                raise ToolInputError(f'"{path}" is a folder; list_files shows what is in it')
            if not stat.S_ISREG(mode):
                raise ToolInputError(f'"{path}" is not a regular file')
            yield opened
    except OSError as error:
        raise ToolInputError(_explain(error, workspace, path, resolved)) from error


def _explain(error: OSError, workspace: Workspace, path: str, resolved: Path) -> str:
    match error.errno:
        case errno.ENOENT:
            return f'there is no file "{path}"' + _suggest(workspace, resolved)
        case errno.EISDIR:
            return f'"{path}" is a folder; list_files shows what is in it'
        case errno.ENOTDIR | errno.ELOOP:
            return f'"{path}" goes through something that is not a folder'
        case errno.ENXIO:
            return f'"{path}" is not a regular file'
        case _:
            return f'"{path}": {error.strerror}'


def _suggest(workspace: Workspace, resolved: Path) -> str:
    folder = resolved.parent
    if not folder.is_dir():
        return "; list_files shows those that there are"
    close = difflib.get_close_matches(resolved.name, sorted(entry.name for entry in folder.iterdir()), n=1)
    return f'; did you mean "{workspace.name_of(folder / close[0])}"?' if close else ""


def _occurrences(data: bytes, wanted: bytes) -> list[int]:
    """Where `wanted` begins, overlaps included: of "aa" in "aaa", either could be meant."""
    found = []
    at = data.find(wanted)
    while at >= 0:
        found.append(at)
        at = data.find(wanted, at + 1)
    return found


def _read_whole(opened: int) -> bytes:
    with os.fdopen(opened, "rb", closefd=False) as file:
        return file.read(_EDITABLE_BYTES)


def _replace(opened: int, data: bytes) -> None:
    os.ftruncate(opened, 0)
    with os.fdopen(os.dup(opened), "wb") as file:
        file.seek(0)
        file.write(data)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
