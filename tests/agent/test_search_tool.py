from __future__ import annotations

import os
import random

import pytest
from tool_calls import CallTool, limits

from agentprof.agent.workspace import Workspace


def test_matches_are_sorted_by_path_and_then_by_line(workspace: Workspace, call: CallTool) -> None:
    for name in ("b/z", "b/a:5", "a.txt", "c"):
        path = workspace.root / "deep" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("hit: 1\nmiss\n" + "x\n" * 8 + "hit: 11\n")
    assert call("search", pattern="^hit").output.splitlines() == [
        f"deep/{name}:{line}: hit: {line}" for name in ("a.txt", "b/a:5", "b/z", "c") for line in (1, 11)
    ]


def test_a_folder_or_a_file_narrows_the_search(call: CallTool) -> None:
    assert call("search", pattern="return", path="src").output.splitlines() == [
        "src/one.py:4:     return two.two() - 1",
        "src/two.py:2:     return 2",
    ]
    assert call("search", pattern="return", path="/workspace/src/two.py").output == "src/two.py:2:     return 2\n"
    assert call("search", pattern="r(e|x)turn 2$", path=".").output == "src/two.py:2:     return 2\n"


def test_nothing_found_is_no_error(call: CallTool) -> None:
    result = call("search", pattern="nothing like it")
    assert (result.output, result.exit_code, result.is_error, result.output_bytes) == ("no matches", 1, False, 0)


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}"])
def test_a_wrong_pattern_is_told(call: CallTool, pattern: str) -> None:
    result = call("search", pattern=pattern)
    assert result.is_error
    assert result.output.startswith("grep: ")


def test_a_pattern_is_never_an_option_or_a_command(workspace: Workspace, call: CallTool) -> None:
    (workspace.root / "-r").write_text("--help $(touch made)\n")
    assert call("search", pattern="--help").output == "-r:1: --help $(touch made)\n"
    assert call("search", pattern="$(touch made)", path="-r").output == "no matches"
    assert not (workspace.root / "made").exists()


def test_what_is_no_text_of_the_project_is_left_out(workspace: Workspace, call: CallTool) -> None:
    (workspace.root / ".git").mkdir()
    (workspace.root / ".git" / "config").write_text("first\n")
    (workspace.root / "binary").write_bytes(b"first\0\n")
    os.mkfifo(workspace.root / "pipe")
    (workspace.root / "out").symlink_to("/etc")
    assert call("search", pattern="first|root").output == "notes.txt:1: first\n"
    assert call("search", pattern="first", path="pipe").output == "no matches"


def test_a_search_is_bounded_and_ends_at_its_limit(workspace: Workspace, call: CallTool) -> None:
    (workspace.root / "large").write_text("needle\n" * 100_000)
    result = call("search", pattern="needle", limits=limits(output_bytes=1024))
    assert result.is_truncated
    assert len(result.output.encode()) <= 1024
    assert result.output.startswith("large:1: needle\n")
    assert result.output.endswith("large:100000: needle\n")
    assert result.output_bytes > 1_000_000

    (workspace.root / "line").write_text("".join(random.Random(1).choices("ab", k=20_000)))
    slow = call("search", pattern=r"^(.+)(.+)(.+)\1\2\3\1$", limits=limits(0.3), path="line")
    assert slow.is_timed_out
    assert slow.is_error
    assert slow.output == "[stopped at the time limit of 0.3 s]"
    assert 0.3e9 <= slow.ended_ns - slow.started_ns < 3e9
