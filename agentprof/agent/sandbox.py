"""Bubblewrap around commands that a model wrote: no network, a read-only system, one writable folder.

What the sandbox shows is an allow-list. The home folder, the current folder and the rest of the disk aren't on it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agentprof.agent.environment import tool_environment
from agentprof.agent.workspace import SEEN_ROOT, SEEN_SCRATCH, Workspace
from agentprof.errors import SandboxError

_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
)
_NAMESPACES = ("--unshare-all", "--unshare-user", "--disable-userns")
_OLDER_NAMESPACES = ("--unshare-all",)  # bubblewrap before 0.8 can't forbid further user namespaces
_PROBE_S = 20.0


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A bubblewrap that works here. `python_folders`: where the running interpreter and its packages are."""

    bwrap: str
    namespaces: tuple[str, ...]
    python_folders: tuple[Path, ...]

    def wrap(self, argv: Sequence[str], workspace: Workspace) -> list[str]:
        """The command that runs `argv` inside: the workspace is /workspace and the current folder, its scratch is /tmp.

        All processes inside end when the command does, or when agentprof does.
        """
        return [
            self.bwrap,
            *self.namespaces,
            *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "workspace"),
            *("--ro-bind", "/usr", "/usr"),
            *_mount_system(),
            *("--proc", "/proc", "--dev", "/dev"),
            *self._mount_scratch(workspace),
            *(word for folder in self.python_folders for word in ("--ro-bind", str(folder.resolve()), str(folder))),
            *("--bind", str(workspace.root), SEEN_ROOT, "--remount-ro", "/", "--chdir", SEEN_ROOT),
            "--clearenv",
            *(
                word
                for name, value in tool_environment(SEEN_ROOT, SEEN_SCRATCH).items()
                for word in ("--setenv", name, value)
            ),
            "--",
            *argv,
        ]

    def _mount_scratch(self, workspace: Workspace) -> tuple[str, ...]:
        # Mount points for an interpreter below /tmp would be made in a folder that the commands can write to.
        if any(folder.is_relative_to(SEEN_SCRATCH) for folder in self.python_folders):
            return ("--tmpfs", SEEN_SCRATCH)
        return ("--bind", str(workspace.scratch), SEEN_SCRATCH)


def _mount_system() -> list[str]:
    words = []
    for folder in map(Path, _SYSTEM_FOLDERS):
        if folder.is_symlink():
            words += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            words += ["--ro-bind", str(folder), str(folder)]
    for file in _SYSTEM_FILES:
        words += ["--ro-bind-try", file, file]
    return words


def find_sandbox() -> Sandbox:
    """The sandbox of this machine, tried out once per process.

    Raises SandboxError, in one line, where bubblewrap is missing or doesn't work.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError(
            "bubblewrap (bwrap) is not installed, and commands that a model wrote run inside it: install it (Debian, "
            "Ubuntu, Fedora: the package bubblewrap), or give --allow-unsandboxed to run them unprotected"
        )
    return _try_out(bwrap)


@lru_cache(maxsize=8)
def _try_out(bwrap: str) -> Sandbox:
    folders = _python_folders()
    reason = ""
    for namespaces in (_NAMESPACES, _OLDER_NAMESPACES):
        sandbox = Sandbox(bwrap, namespaces, folders)
        reason = _fault(sandbox)
        if not reason:
            return sandbox
    raise SandboxError(
        f"bubblewrap is installed but does not work here ({reason}): allow unprivileged user namespaces, or give "
        "--allow-unsandboxed to run commands that a model wrote unprotected"
    )


def _fault(sandbox: Sandbox) -> str:
    """Why the sandbox doesn't work, empty where it does: start Python inside, with the workspace writable."""
    with tempfile.TemporaryDirectory(prefix="agentprof-") as folder:
        workspace = Workspace(Path(folder).resolve() / "probe")
        workspace.root.mkdir()
        workspace.scratch.mkdir()
        probe = ["bash", "-c", '>written && exec "$0" -c ""', sys.executable]
        try:
            ended = subprocess.run(
                sandbox.wrap(probe, workspace),
                env=tool_environment(SEEN_ROOT, SEEN_SCRATCH),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if ended.returncode == 0:
        return ""
    said = ended.stderr.decode(errors="replace").strip().splitlines()
    return said[0] if said else f"exit code {ended.returncode}"


def _python_folders() -> tuple[Path, ...]:
    """Folders of the running interpreter outside /usr, as spelled and with links followed.

    Raises SandboxError where one of them holds the home folder, which must not be seen.
    """
    home = Path(os.path.realpath(Path("~").expanduser()))
    folders: list[Path] = []
    for prefix in (sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix):
        for folder in (Path(prefix), Path(prefix).resolve()):
            if folder.is_relative_to("/usr") or folder in folders:
                continue
            if home.is_relative_to(folder.resolve()):
                raise SandboxError(
                    f"Python is installed in {folder}, which holds the home folder {home}: a sandbox would show it. "
                    "Run agentprof from a virtual environment, or give --allow-unsandboxed"
                )
            folders.append(folder)
    return tuple(folders)
