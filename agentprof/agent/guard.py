"""Cleans up after agentprof where it can't do so itself: killed by SIGKILL, or by the kernel for want of memory.

A process of its own reads from a pipe which workspaces are in use. The end of the pipe means that agentprof is gone;
then the processes of what is still in use are killed, and the folders removed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

from agentprof.agent.workspace import Workspace, remove_workspace
from agentprof.errors import RunError

_END_S = 10.0


class Guard:
    """The guard's process, as long as the block. It ends by itself once this process has."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agentprof.agent.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal isn't meant for it
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        cast("IO[bytes]", self._process.stdin).close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def watch(self, workspace: Workspace) -> None:
        """Have a workspace and its processes removed, should this process die; it need not be there yet."""
        self._tell("watch", workspace)

    def release(self, workspace: Workspace) -> None:
        """The workspace is gone, or somebody else's."""
        self._tell("release", workspace)

    def _tell(self, verb: str, workspace: Workspace) -> None:
        if self._process is not None:
            with suppress(BrokenPipeError):  # somebody killed the guard: the run is no worse for it
                line = json.dumps([verb, str(workspace.root)]).encode() + b"\n"
                cast("IO[bytes]", self._process.stdin).write(line)


def main() -> None:
    """The guard's process: reads until its pipe ends, then removes what is left."""
    watched: dict[str, None] = {}
    for line in sys.stdin.buffer:
        verb, root = json.loads(line)
        if verb == "watch":
            watched[root] = None
        else:
            watched.pop(root, None)
    for root in watched:
        with suppress(RunError):
            remove_workspace(Workspace(Path(root)))


if __name__ == "__main__":
    main()
