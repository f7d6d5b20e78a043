from __future__ import annotations

import asyncio
import os
import socket

import pytest
from tool_calls import LIMITS, CallTool, limits

from agentprof.agent.tools import execute
from agentprof.agent.workspace import Workspace


def test_read_file_numbers_its_lines(call: CallTool) -> None:
    result = call("read_file", path="notes.txt")
    assert result.output == "1\tfirst\n2\tsecond\n3\tthird\n"
    assert (result.is_error, result.is_truncated, result.is_timed_out, result.exit_code) == (False, False, False, None)
    assert result.output_bytes == len(result.output)
    assert result.ended_ns > result.started_ns


def test_read_file_takes_any_bytes(workspace: Workspace, call: CallTool) -> None:
    (workspace.root / "odd").write_bytes(b"\xff\xfe\r\nno line end")
    result = call("read_file", path="odd")
    assert result.output == "1\t��\r\n2\tno line end"
    (workspace.root / "empty").write_bytes(b"")
    assert call("read_file", path="empty").output == "empty is empty"


def test_read_file_keeps_head_and_tail_of_a_large_file(workspace: Workspace, call: CallTool) -> None:
    (workspace.root / "large").write_text("".join(f"row {number}\n" for number in range(200_000)))
    result = call("read_file", path="large")
    assert result.is_truncated
    assert not result.is_error
    assert result.output.startswith("1\trow 0\n")
    assert result.output.endswith("200000\trow 199999\n")
    assert len(result.output.encode()) <= LIMITS.output_bytes
    assert result.output_bytes > 2_000_000


def test_a_line_longer_than_a_piece_has_one_number(workspace: Workspace, call: CallTool) -> None:
    (workspace.root / "long").write_text("x" * 200_000 + "\nend\n")
    assert call("read_file", path="long").output.endswith("x\n2\tend\n")


def test_reading_without_end_stops_at_the_time_limit(workspace: Workspace, call: CallTool) -> None:
    with (workspace.root / "sparse").open("wb") as file:
        file.truncate(1 << 42)
    result = call("read_file", path="sparse", limits=limits(0.2))
    assert result.is_timed_out
    assert result.is_error
    assert result.output == "error: stopped at the time limit of 0.2 s"
    assert 0.2e9 <= result.ended_ns - result.started_ns < 5e9


def test_cancelling_stops_a_file_tool(workspace: Workspace) -> None:
    with (workspace.root / "sparse").open("wb") as file:
        file.truncate(1 << 42)

    async def cancel_soon() -> None:
        task = asyncio.create_task(execute("read_file", {"path": "sparse"}, workspace, LIMITS, None))
        await asyncio.sleep(0.1)
        task.cancel()
        async with asyncio.timeout(10):
            await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_soon())


@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file", "list_files"])
@pytest.mark.parametrize("kind", ["fifo", "socket", "link"])
def test_only_regular_files_are_opened(workspace: Workspace, call: CallTool, tool: str, kind: str) -> None:
    path = workspace.root / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        path.symlink_to("/dev/zero")
    more = {"write_file": {"content": "x"}, "edit_file": {"old": "x", "new": "y"}}.get(tool, {})
    result = call(tool, path="odd", limits=limits(5), **more)
    assert result.is_error
    assert not result.is_timed_out
    assert ("outside the workspace" if kind == "link" else "not a regular file") in result.output


def test_write_file_makes_folders_and_replaces_whole_files(workspace: Workspace, call: CallTool) -> None:
    result = call("write_file", path="new/deep/file.txt", content="é\nb")
    assert result.output == "wrote new/deep/file.txt: 2 lines, 4 bytes"
    assert (workspace.root / "new/deep/file.txt").read_text() == "é\nb"
    (workspace.root / "notes.txt").chmod(0o755)
    assert call("write_file", path="/workspace/notes.txt", content="x\n").output.endswith(": 1 line, 2 bytes")
    assert (workspace.root / "notes.txt").read_text() == "x\n"
    assert os.access(workspace.root / "notes.txt", os.X_OK)
    assert call("write_file", path="void", content="").output == "wrote void: 0 lines, 0 bytes"


def test_edit_file_replaces_one_occurrence_and_nothing_else(workspace: Workspace, call: CallTool) -> None:
    (workspace.root / "mixed").write_bytes(b"one\r\ntwo \xff\r\nthree\r\n")
    result = call("edit_file", path="mixed", old="two", new="zwei\nund")
    assert result.output == "edited mixed, line 2"
    assert (workspace.root / "mixed").read_bytes() == b"one\r\nzwei\nund \xff\r\nthree\r\n"
    assert call("edit_file", path="mixed", old="zwei\nund ", new="").output == "edited mixed, line 2"
    assert (workspace.root / "mixed").read_bytes() == b"one\r\n\xff\r\nthree\r\n"


@pytest.mark.parametrize(
    ("text", "old", "message"),
    [
        ("abc", "x", "does not occur in file"),
        ("a\nb\na\n", "a", "occurs 2 times in file (lines 1, 3)"),
        ("aaa", "aa", "occurs 2 times in file (lines 1, 1)"),
        ("a\n" * 9, "a", "occurs 9 times in file (lines 1, 2, 3, 4, 5, …)"),
        ("abc", "", '"old" is empty'),
    ],
)
def test_edit_file_refuses_what_is_not_there_exactly_once(
    workspace: Workspace, call: CallTool, text: str, old: str, message: str
) -> None:
    (workspace.root / "file").write_text(text)
    result = call("edit_file", path="file", old=old, new="y")
    assert result.is_error
    assert message in result.output
    assert (workspace.root / "file").read_text() == text


def test_parallel_edits_of_one_file_all_arrive(workspace: Workspace) -> None:
    words = [f"<{number:03d}>" for number in range(60)]
    (workspace.root / "file").write_text(" ".join(words))

    async def edit_all() -> None:
        edits = [{"path": "file", "old": word, "new": f"[{word[1:-1]}]"} for word in words]
        await asyncio.gather(*(execute("edit_file", edit, workspace, LIMITS, None) for edit in edits))

    asyncio.run(edit_all())
    assert (workspace.root / "file").read_text() == " ".join(f"[{number:03d}]" for number in range(60))


def test_list_files_is_sorted_and_leaves_byproducts_out(workspace: Workspace, call: CallTool) -> None:
    for folder in (".git", "src/__pycache__", ".pytest_cache"):
        (workspace.root / folder).mkdir()
        (workspace.root / folder / "file").write_text("x")
    (workspace.root / "src" / "alias").symlink_to("one.py")
    assert call("list_files").output == "notes.txt\nsrc/alias\nsrc/one.py\nsrc/two.py\n"
    assert call("list_files", path="src").output == "src/alias\nsrc/one.py\nsrc/two.py\n"
    assert call("list_files", path="notes.txt").output == "notes.txt"
    (workspace.root / "bare").mkdir()
    assert call("list_files", path="bare").output == "no files"


def test_list_files_does_not_leave_through_links(workspace: Workspace, call: CallTool) -> None:
    (workspace.root / "out").symlink_to("/etc")
    assert "passwd" not in call("list_files").output
    assert call("list_files", path="out").is_error


def test_list_files_is_bounded(workspace: Workspace, call: CallTool) -> None:
    for number in range(500):
        (workspace.root / f"file-{number:03d}").touch()
    result = call("list_files", limits=limits(output_bytes=512))
    assert result.is_truncated
    assert len(result.output.encode()) <= 512
    assert result.output.startswith("file-000\n")
    assert result.output.endswith("src/two.py\n")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("serach", {"pattern": "x"}, '"serach" is not a tool'),
        ("bash", {}, "command"),
        ("bash", {"command": 5}, "command"),
        ("bash", {"command": "true", "timeout": "5"}, "timeout"),
        ("bash", {"command": "echo \0"}, "NUL"),
        ("bash", {"command": "echo \ud800"}, "surrogate"),
        ("bash", {"command": "echo " + "x" * 200_000}, "can't be started"),
        ("write_file", {"path": "x", "content": "\udfff"}, "surrogate"),
        ("read_file", {"path": "a\0b"}, "NUL"),
        ("read_file", {"path": "src/onr.py"}, 'did you mean "src/one.py"?'),
        ("read_file", {"path": "nowhere/at/all"}, 'there is no file "nowhere/at/all"'),
        ("read_file", {"path": "src"}, "is a folder"),
        ("read_file", {"path": "notes.txt/x"}, "not a folder"),
        ("read_file", {"path": "n" * 5000}, "name too long"),
        ("write_file", {"path": "src", "content": "x"}, "is a folder"),
        ("write_file", {"path": ".", "content": "x"}, "is a folder"),
        ("write_file", {"path": "notes.txt/x", "content": "x"}, "not a folder"),
        ("edit_file", {"path": "missing", "old": "a", "new": "b"}, "there is no file"),
        ("list_files", {"path": "missing"}, "there is no"),
        ("search", {"pattern": "x", "path": "missing"}, "there is no file or folder"),
        ("search", {"pattern": "x", "path": "/etc"}, "outside the workspace"),
        ("write_file", {"path": "../x", "content": "x"}, "outside the workspace"),
    ],
)
def test_a_models_mistakes_are_answered(
    workspace: Workspace, name: str, arguments: dict[str, object], message: str
) -> None:
    result = asyncio.run(execute(name, arguments, workspace, LIMITS, None))
    assert result.is_error
    assert not result.is_timed_out
    assert message.lower() in result.output.lower()
    assert len(result.output.encode()) <= LIMITS.output_bytes
    assert result.ended_ns >= result.started_ns


def test_write_file_takes_any_character(workspace: Workspace, call: CallTool) -> None:
    assert not call("write_file", path="binary", content="a\0b").is_error
    assert (workspace.root / "binary").read_bytes() == b"a\0b"
