"""A workspace of three files, and a way to call tools in it on either event loop."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tool_calls import LIMITS, CallTool

from agentprof.agent.sandbox import Sandbox, find_sandbox
from agentprof.agent.tools import ToolLimits, ToolResult, execute
from agentprof.agent.workspace import Workspace, copy_workspace, remove_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """A workspace with `notes.txt`, `src/one.py` and `src/two.py`."""
    source = tmp_path / "source"
    (source / "src").mkdir(parents=True)
    (source / "notes.txt").write_text("first\nsecond\nthird\n")
    (source / "src" / "two.py").write_text("def two():\n    return 2\n")
    (source / "src" / "one.py").write_text("import two\n\ndef one():\n    return two.two() - 1\n")
    made = copy_workspace(source)
    yield made
    remove_workspace(made)


@pytest.fixture
def call(workspace: Workspace) -> CallTool:
    """Run one tool call to its end: `call("bash", command="ls", limits=…, sandbox=…)`."""

    def run(name: str, limits: ToolLimits = LIMITS, sandbox: Sandbox | None = None, **arguments: object) -> ToolResult:
        return asyncio.run(execute(name, arguments, workspace, limits, sandbox))

    return run


@pytest.fixture
def sandbox() -> Sandbox:
    """The sandbox of this machine; the test is skipped where bubblewrap itself can do nothing here, and only there."""
    plain = ["--unshare-all", "--ro-bind", "/", "/", "true"]
    bwrap = shutil.which("bwrap")
    if bwrap is None or subprocess.run([bwrap, *plain], check=False, capture_output=True).returncode:
        pytest.skip("bubblewrap is not installed, or may not make namespaces here")
    return find_sandbox()
