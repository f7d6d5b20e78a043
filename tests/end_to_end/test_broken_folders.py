"""Full disks, damaged files, older and newer formats: one clear line each, and what was finished loads."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Ended, start
from living import are_gone, of_workspaces_in
from small_scenarios import write_scenario
from tiny_server import tiny_server

from agentprof.cli.main import run

FULL = "The sessions before it are kept."


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 192 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "agentprof-test", str(folder)], capture_output=True, text=True
    )
    if mounting.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounting.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def replay(folder: Path, out: Path, *options: str, max_file_bytes: int | None = None, **scenario: Any) -> Ended:
    """Ten sessions into a run folder; asserts that no tool and no workspace is left."""
    temporary = folder / "tmp"
    temporary.mkdir()
    write_scenario(folder, **scenario)
    with tiny_server() as tiny:
        server = ["--base-url", tiny.base_url, "--model", "tiny", "--warmup", "0", "--out", str(out)]
        running = start("replay", "tiny.yaml", *server, "--repeat", "10", *options, cwd=folder, TMPDIR=str(temporary))
        if max_file_bytes is not None:
            resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
        ended = running.end()
    assert "Traceback" not in ended.err
    assert are_gone(running.survivors)
    assert are_gone(lambda: of_workspaces_in(temporary))
    assert list(temporary.iterdir()) == []
    return ended


def explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]], list[str]]:
    """Exit code, sessions and complaints of `explain`, which tells the same as text."""
    code = run(["explain", str(folder), "--json"])
    told = capsys.readouterr()
    assert run(["explain", str(folder)]) == code
    again = capsys.readouterr()
    assert again.err == told.err
    assert "Traceback" not in told.err
    sessions: list[dict[str, Any]] = json.loads(told.out)["sessions"]
    for session in sessions:
        assert sum(ns or 0 for ns in session["ledger"].values()) == session["wall_ns"]
    return code, sessions, told.err.splitlines()


def check_cut_short(ended: Ended, out: Path, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended.code == 4
    assert len(ended.complaints) == 1
    assert ended.complaints[0].startswith(f"agentprof: {out}/")
    assert ended.complaints[0].endswith(f"jsonl: can't write: {reason}. {FULL}")
    code, sessions, complaints = explained(out, capsys)
    assert code == 4
    assert 1 <= len(sessions) < 10
    assert [session["outcome"] for session in sessions] == ["completed"] * len(sessions)
    assert len(complaints) == 1
    assert f"{10 - len(sessions)} of 10 sessions are missing" in complaints[0]


@pytest.mark.parametrize("options", [(), ("--capture-content", "--concurrency", "2")])
def test_a_disk_that_fills_up(
    tmp_path: Path, small_disk: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (small_disk / "other").write_bytes(b"x" * 80_000)
    ended = replay(tmp_path, small_disk / "out", *options)
    check_cut_short(ended, small_disk / "out", "No space left on device", capsys)


def test_a_disk_that_a_tool_fills(tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = tmp_path / "places"
    command = f"echo x >> {places}; if [ $(wc -l < {places}) = 3 ]; then cat /dev/zero > {small_disk}/fill; fi; true"
    steps = [{"calls": [{"bash": {"command": command}}], "output_tokens": 2}, {"answer": "Done.", "output_tokens": 2}]
    ended = replay(tmp_path, small_disk / "out", turns=[{"user": "Go.", "steps": steps}])
    check_cut_short(ended, small_disk / "out", "No space left on device", capsys)
    assert len(explained(small_disk / "out", capsys)[1]) == 2


def test_a_disk_that_is_full_from_the_start(tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "other").write_bytes(b"x" * 192 * 1024)
    ended = replay(tmp_path, small_disk / "out")
    assert (ended.code, ended.out) == (4, "")
    assert ended.complaints == [f"agentprof: {small_disk}/out/run.json: can't write: No space left on device."]


def test_a_tool_that_fills_the_temporary_folder(
    tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = tmp_path / "places"
    filling = f"rm large.bin; cat /dev/zero > {small_disk}/fill"
    command = f"echo x >> {places}; if [ $(wc -l < {places}) = 3 ]; then {filling}; fi"
    steps = [{"calls": [{"bash": {"command": command}}], "output_tokens": 2}, {"answer": "Done.", "output_tokens": 2}]
    write_scenario(tmp_path, turns=[{"user": "Go.", "steps": steps}])
    (tmp_path / "work" / "large.bin").write_bytes(b"x" * 50_000)
    with tiny_server() as tiny:
        server = ["--base-url", tiny.base_url, "--model", "tiny", "--warmup", "0", "--repeat", "5", "--out", "out"]
        ended = start("replay", "tiny.yaml", *server, cwd=tmp_path, TMPDIR=str(small_disk)).end()
    assert ended.code == 4
    assert len(ended.complaints) == 1
    assert "can't be copied: " in ended.complaints[0]
    assert "No space left on device" in ended.complaints[0]
    assert ended.complaints[0].endswith(FULL)
    assert [path.name for path in small_disk.iterdir()] == ["fill"]
    code, sessions, _ = explained(tmp_path / "out", capsys)
    assert (code, len(sessions)) == (4, 3)


def test_a_file_that_may_not_grow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a disk with quotas; it needs no rights."""
    ended = replay(tmp_path, tmp_path / "out", max_file_bytes=40_000)
    check_cut_short(ended, tmp_path / "out", "File too large", capsys)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten sessions."""
    folder = tmp_path_factory.mktemp("whole")
    assert replay(folder, folder / "out").code == 0
    return folder / "out"


def damage_lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        spans = folder / "spans.jsonl"
        spans.write_bytes(b"".join(change(spans.read_bytes().splitlines(keepends=True))))

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "the last line cut": (damage_lines(lambda lines: [*lines[:9], lines[9][:-100]]), 9, "spans.jsonl:10"),
    "the last line cut to a byte": (damage_lines(lambda lines: [*lines[:9], b"{"]), 9, "spans.jsonl:10"),
    "a line in the middle cut": (damage_lines(lambda lines: [*lines[:4], lines[4][:99], *lines[5:]]), 8, "jsonl:5"),
    "bits that fell": (
        damage_lines(lambda lines: [*lines[:2], bytes(byte ^ 0x55 for byte in lines[2][:-1]) + b"\n", *lines[3:]]),
        9,
        "not a whole line",
    ),
    "zeros, as after a crash": (damage_lines(lambda lines: [*lines[:9], b"\0" * 4096]), 9, "spans.jsonl:10"),
    "spans without ids": (
        damage_lines(lambda lines: [lines[0].replace(b'"traceId"', b'"trace"'), *lines[1:]]),
        9,
        "spans.jsonl:1",
    ),
    "no spans": (lambda folder: (folder / "spans.jsonl").unlink(), 0, "10 of 10 sessions are missing"),
    "empty spans": (lambda folder: (folder / "spans.jsonl").write_bytes(b""), 0, "10 of 10 sessions are missing"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_lines_cost_their_sessions(
    tmp_path: Path, whole_run: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, left, words = DAMAGES[kind]
    folder = tmp_path / "out"
    shutil.copytree(whole_run, folder)
    damage(folder)
    code, sessions, complaints = explained(folder, capsys)
    assert (code, len(sessions)) == (4, left)
    assert words in "\n".join(complaints)
    assert f"{10 - left} of 10 sessions are missing" in complaints[-1]


def test_damaged_arrivals_and_content_cost_nothing(
    tmp_path: Path, whole_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(whole_run, folder)
    (folder / "chunks.jsonl").write_bytes(b'{"trace": "\xff\xff')
    (folder / "content.jsonl").write_bytes(b"\0\0\0")
    (folder / "run.tmp").write_text("{")  # a kill between writing and renaming leaves it
    code, sessions, complaints = explained(folder, capsys)
    assert (code, len(sessions), complaints) == (0, 10, [])


def strip(folder: Path, keep: set[str]) -> None:
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({key: value for key, value in facts.items() if key in keep}))


@pytest.mark.parametrize(
    "keep",
    [
        {"format", "is_finished"},
        {"format", "is_finished", "planned"},
        {"format", "is_finished", "name", "created", "command", "planned", "scenarios", "backends", "options", "host"},
    ],
)
def test_a_first_format_without_what_came_later_loads(
    tmp_path: Path, whole_run: Path, keep: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys of run.json and attributes of spans may be added without raising the format."""
    folder = tmp_path / "out"
    shutil.copytree(whole_run, folder)
    strip(folder, keep)
    spans = folder / "spans.jsonl"
    kept = ("agentprof.scenario", "agentprof.backend", "agentprof.repetition", "agentprof.warmup")
    lines = [json.loads(line) for line in spans.read_text().splitlines()]
    for line in lines:
        for span in line["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            span["attributes"] = [entry for entry in span.get("attributes", []) if entry["key"] in kept]
    spans.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "chunks.jsonl").unlink()
    code, sessions, complaints = explained(folder, capsys)
    assert (code, len(sessions), complaints) == (0, 10, [])
    assert [session["outcome"] for session in sessions] == [None] * 10


def test_keys_of_a_later_version_are_passed_over(
    tmp_path: Path, whole_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(whole_run, folder)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "colour": {"of": ["the", "moon"]}}))
    code, sessions, complaints = explained(folder, capsys)
    assert (code, len(sessions), complaints) == (0, 10, [])


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"format": 2}, "format 2 is newer than this agentprof reads (1); upgrade it."),
        ({"format": 99}, "format 99 is newer"),
        ({"format": 0}, "has no format version"),
        ({"format": "1"}, "has no format version"),
        ({}, "has no format version"),
    ],
)
def test_other_formats_are_refused(
    tmp_path: Path, whole_run: Path, facts: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(whole_run, folder)
    (folder / "run.json").write_text(json.dumps(facts))
    assert run(["explain", str(folder)]) == 2
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 1)
    assert words in told.err
