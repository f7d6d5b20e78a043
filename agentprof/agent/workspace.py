"""The private folder that one session works in: copied fresh, never left by a path, removed with its processes."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agentprof.agent.survivors import kill_marked
from agentprof.errors import InputError, RunError
from agentprof.records.scenario import KEPT_OUT

SEEN_ROOT = "/workspace"
"""Where the model sees the workspace: the sandbox mounts it there, and masking writes it so."""

SEEN_SCRATCH = "/tmp"  # noqa: S108 - a name that the model sees, no file of ours
"""Where the model sees the session's scratch folder."""

_COPIED_AT_S = 1_767_225_600  # 2026-01-01T00:00:00Z: `ls -l` prints the same on every machine


class ToolInputError(Exception):
    """What a tool was asked for can't be done; the message is for the model."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A private copy of a scenario's files. `root` is absolute and resolved; only its owner may enter it."""

    root: Path

    @property
    def scratch(self) -> Path:
        """The session's own temporary folder, beside the root."""
        return self.root.with_name(self.root.name + ".tmp")

    @property
    def mark(self) -> str:
        """Start of the value that names this workspace in the environment of its processes."""
        return f"{self.root}#"

    def resolve(self, path: str) -> Path:
        """The absolute path that `path` means, links followed; it need not exist.

        `/workspace/…` means the root, since that is how the model sees it. Raises ToolInputError for a path that
        leaves the root: through `..`, because it is absolute, or through a symbolic link.
        """
        asked = PurePosixPath(path)
        if asked.is_relative_to(SEEN_ROOT):
            asked = asked.relative_to(SEEN_ROOT)
        resolved = Path(os.path.realpath(self.root / asked))
        if not resolved.is_relative_to(self.root):
            raise ToolInputError(f'"{path}" is outside the workspace; give a path relative to it')
        return resolved

    def name_of(self, path: Path) -> str:
        """A resolved path as the model should write it: relative, with forward slashes; the root is `.`."""
        return path.relative_to(self.root).as_posix()

    @contextmanager
    def open_beneath(self, path: Path, flags: int) -> Iterator[int]:
        """A file descriptor for a resolved path, opened folder by folder without following any link.

        A command that runs meanwhile may swap a folder for a link after `resolve` looked; so this doesn't trust it.
        With O_CREAT, missing folders are made. Never blocks on a FIFO. Raises OSError.
        """
        *folders, name = path.relative_to(self.root).parts or (".",)
        at = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for folder in folders:
                if flags & os.O_CREAT:
                    _make_folder(folder, at)
                beneath = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                os.close(at)
                at = beneath
            opened = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=at)
        finally:
            os.close(at)
        try:
            yield opened
        finally:
            os.close(opened)


def _make_folder(name: str, at: int) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=at)
    except FileExistsError:
        return


def copy_workspace(source: Path, announce: Callable[[Workspace], None] = lambda _workspace: None) -> Workspace:
    """Copy `source` into a new folder under the system's temporary folder, which nobody else may enter.

    Content, links and executable bits are kept, everything is made writable, and all times are one fixed time; names in
    `KEPT_OUT` stay behind. `announce` is told where it will be before anything is made. Raises InputError when `source`
    is no folder or can't be copied.
    """
    if not source.is_dir():
        raise InputError(f"workspace {source} is not a folder. Is the path right, relative to the scenario file?")
    workspace = _new_workspace(announce)
    try:
        shutil.copytree(source, workspace.root, symlinks=True, ignore=_left_behind, dirs_exist_ok=True)
        workspace.scratch.mkdir(mode=0o700)
        _settle(workspace.root)
    except (shutil.Error, OSError) as error:
        remove_workspace(workspace)
        raise InputError(f"workspace {source} can't be copied: {_first_reason(error)}") from error
    return workspace


def _new_workspace(announce: Callable[[Workspace], None]) -> Workspace:
    """An empty folder of a name that nobody can guess."""
    try:
        workspace = Workspace(Path(tempfile.gettempdir()).resolve() / f"agentprof-{secrets.token_hex(6)}")
        announce(workspace)
        workspace.root.mkdir(mode=0o700)
    except OSError as error:
        raise InputError(f"no workspace can be made in the temporary folder: {error.strerror}; set TMPDIR.") from error
    return workspace


def _left_behind(_folder: str, names: list[str]) -> set[str]:
    return set(names) & KEPT_OUT


def _settle(root: Path) -> None:
    """Shut the root, make all in it writable by its owner, and give everything one time, deepest first."""
    root.chmod(0o700)
    for folder, folders, files in os.walk(root, topdown=True):
        for name in folders:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o700)
        for file in files:
            path = Path(folder, file)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o600)
    for folder, folders, files in os.walk(root, topdown=False):
        for name in (*folders, *files):
            os.utime(Path(folder, name), (_COPIED_AT_S, _COPIED_AT_S), follow_symlinks=False)
    os.utime(root, (_COPIED_AT_S, _COPIED_AT_S))


def _first_reason(error: OSError) -> str:
    """The first of the many reasons that `shutil.Error` carries, or the one that an OSError is."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        path, _, reason = error.args[0][0]
        return f"{path}: {reason}"
    return str(error)


def remove_workspace(workspace: Workspace) -> None:
    """Kill every process that this workspace's tools left behind, then delete the folder and its scratch.

    Does nothing where the folder is gone already. Raises RunError when something can't be deleted.
    """
    kill_marked(workspace.mark)
    for folder in (workspace.root, workspace.scratch):
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            _unlock(folder)
            shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            raise RunError(f"workspace {folder} can't be deleted; delete it by hand")


def _unlock(root: Path) -> None:
    """Let the owner into folders that a command has locked, so that they can be deleted."""
    root.chmod(0o700)
    for folder, folders, _ in os.walk(root, topdown=True):
        for name in folders:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o700)
