"""The run folder: what is written is read back, and what is damaged is named and costs nothing else."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentprof import semconv
from agentprof.errors import InputError, RunError
from agentprof.records.spans import Arrivals, Span, SpanRef
from agentprof.runs.store import FORMAT_VERSION, RunWriter, list_runs, read_arrivals, read_run

KEY = "sk-tests-0123456789abcdef"


def planned(*numbers: int) -> list[dict[str, Any]]:
    return [{"scenario": "fix", "backend": "new", "repetition": number, "is_warmup": False} for number in numbers]


def session(number: int, trace: int | None = None) -> list[Span]:
    """A session's two spans."""
    root = SpanRef(trace or number, 1)
    attributes = {semconv.SCENARIO: "fix", semconv.BACKEND: "new", semconv.REPETITION: number, semconv.WARMUP: False}
    step = Span(SpanRef(root.trace_id, 2), root, "step 1", 110, 190)
    return [step, Span(root, None, "invoke_agent fix", 100, 200, attributes=attributes)]


def write_run(folder: Path, *numbers: int, plan: tuple[int, ...] = (1, 2, 3)) -> RunWriter:
    writer = RunWriter(folder, {"planned": planned(*plan), "scenarios": {"fix": {}}})
    for number in numbers:
        writer.write_session(session(number), [], [], {"service.name": "agentprof"})
    return writer


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "r"
    writer = write_run(folder, 1, 2, 3)
    writer.update(is_finished=True)
    data = read_run(folder)
    assert list(data.spans) == session(1) + session(2) + session(3)
    assert (data.sessions, data.problems, writer.spans_written) == (3, [], 6)
    assert data.facts["is_finished"] is True
    assert data.facts["format"] == FORMAT_VERSION
    assert sorted(path.name for path in folder.iterdir()) == ["chunks.jsonl", "run.json", "spans.jsonl"]


def test_arrivals_and_content_are_kept(tmp_path: Path) -> None:
    writer = write_run(tmp_path / "r")
    span = SpanRef(5, 7)
    arrivals = [Arrivals(span, 1, [10, 20], "rc", [1, None], [0, 0]), Arrivals(span, 2, [], "", [], [])]
    content = [(span, "request", {"messages": ({"role": "user"},)}), (span, "reply", "words")]
    writer.write_session(session(1), arrivals, content, {})
    first, second = read_arrivals(tmp_path / "r")
    assert first == {
        "trace": f"{5:032x}",
        "span": f"{7:016x}",
        "attempt": 1,
        "at_us": [10, 20],
        "kinds": "rc",
        "tokens": [1, None],
        "reads": [0, 0],
    }
    assert second["attempt"] == 2
    request, reply = map(json.loads, (tmp_path / "r" / "content.jsonl").read_text().splitlines())
    assert request["content"] == {"messages": [{"role": "user"}]}
    assert reply == {"trace": f"{5:032x}", "span": f"{7:016x}", "kind": "reply", "content": "words"}


def test_a_truncated_last_line_is_skipped_and_the_session_named(tmp_path: Path) -> None:
    write_run(tmp_path / "r", 1, 2, 3)
    spans = tmp_path / "r" / "spans.jsonl"
    spans.write_bytes(spans.read_bytes()[:-40])
    data = read_run(tmp_path / "r")
    assert list(data.spans) == session(1) + session(2)
    assert data.problems == [
        f"{spans}:3: not a whole line of spans; that session is left out.",
        f"{tmp_path / 'r'}: 1 of 3 sessions are missing: fix on new: repetition 3.",
    ]


@pytest.mark.parametrize(
    "damage",
    [
        b"\x00\xff garbage",
        b"[]",
        b"{}",
        b"3",
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz"}]}]}]}',
    ],
)
def test_a_damaged_line_in_the_middle_costs_only_its_session(tmp_path: Path, damage: bytes) -> None:
    write_run(tmp_path / "r", 1, 2, 3)
    spans = tmp_path / "r" / "spans.jsonl"
    lines = spans.read_bytes().splitlines()
    spans.write_bytes(b"\n".join([lines[0], damage, lines[2]]) + b"\n")
    data = read_run(tmp_path / "r")
    assert list(data.spans) == session(1) + session(3)
    assert data.problems[0].startswith(f"{spans}:2: not a whole line")
    assert "repetition 2" in data.problems[1]


def test_a_line_that_breaks_in_its_middle_gives_no_half_session(tmp_path: Path) -> None:
    write_run(tmp_path / "r", 1)
    spans = tmp_path / "r" / "spans.jsonl"
    line = json.loads(spans.read_text())
    del line["resourceSpans"][0]["scopeSpans"][0]["spans"][1]["name"]
    spans.write_text(json.dumps(line) + "\n")
    assert read_run(tmp_path / "r").spans == []


def test_missing_spans_name_every_session(tmp_path: Path) -> None:
    write_run(tmp_path / "r")
    data = read_run(tmp_path / "r")
    assert data.spans == []
    assert data.problems == [
        f"{tmp_path / 'r'}: 3 of 3 sessions are missing: fix on new: repetition 1, repetition 2, repetition 3."
    ]


def test_a_missing_warm_up_is_called_that(tmp_path: Path) -> None:
    plan = [{"scenario": "fix", "backend": "new", "repetition": 1, "is_warmup": is_it} for is_it in (True, False)]
    RunWriter(tmp_path / "r", {"planned": plan}).write_session(session(1), [], [], {})
    assert read_run(tmp_path / "r").problems == [
        f"{tmp_path / 'r'}: 1 of 2 sessions are missing: fix on new: warm-up 1."
    ]


def test_an_append_after_a_cut_line_starts_a_line_of_its_own(tmp_path: Path) -> None:
    writer = write_run(tmp_path / "r", 1)
    spans = tmp_path / "r" / "spans.jsonl"
    spans.write_bytes(spans.read_bytes() + b'{"resourceSp')
    writer.write_session(session(3), [], [], {})
    data = read_run(tmp_path / "r")
    assert list(data.spans) == session(1) + session(3)
    assert len(data.problems) == 2


def test_a_write_that_fails_is_one_line_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = write_run(tmp_path / "r", 1)
    before = (tmp_path / "r" / "spans.jsonl").read_bytes()
    real = os.write

    def fill_up(fd: int, data: bytes) -> int:
        if len(data) > 30:
            return real(fd, data[:30])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fill_up)
    with pytest.raises(RunError, match=r"spans\.jsonl: can't write: No space left on device\. The sessions before"):
        writer.write_session(session(2), [], [], {})
    monkeypatch.undo()
    assert (tmp_path / "r" / "spans.jsonl").read_bytes() == before
    writer.write_session(session(2), [], [], {})
    assert list(read_run(tmp_path / "r").spans) == session(1) + session(2)


def test_a_plan_that_can_not_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = write_run(tmp_path / "r", 1)
    before = (tmp_path / "r" / "run.json").read_bytes()

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"run\.json: can't write: No space left on device"):
            writer.update(is_finished=True)
    assert (tmp_path / "r" / "run.json").read_bytes() == before
    assert not (tmp_path / "r" / "run.tmp").exists()


def test_an_existing_folder_or_file_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "f").write_text("mine")
    (tmp_path / "l").symlink_to(tmp_path / "nowhere")
    for name in ("r", "f", "l"):
        with pytest.raises(InputError, match="already exists"):
            RunWriter(tmp_path / name, {})
    with pytest.raises(InputError, match="can't make the run folder: Not a directory"):
        RunWriter(tmp_path / "f" / "r", {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no run folder: it has no run.json"),
        ("{", "is damaged"),
        ("[]", "has no format version"),
        ('{"format": true}', "has no format version"),
        ('{"format": 0}', "has no format version"),
        ('{"name": "x"}', "has no format version"),
        (json.dumps({"format": FORMAT_VERSION + 1}), f"format {FORMAT_VERSION + 1} is newer than"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        read_run(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(InputError, match="no run folder"):
        read_run(tmp_path / "f")


@pytest.mark.parametrize("name", ["run.json", "spans.jsonl"])
def test_a_folder_in_a_files_place_is_one_line(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "r", 1)
    (tmp_path / "r" / name).unlink()
    (tmp_path / "r" / name).mkdir()
    with pytest.raises(InputError, match=rf"{name}: can't be read: Is a directory"):
        read_run(tmp_path / "r")


def test_an_unreadable_plan_is_no_obstacle(tmp_path: Path) -> None:
    writer = write_run(tmp_path / "r", 1)
    for plan in (None, 7, [None, 3], [{}]):
        writer.update(planned=plan)
        assert list(read_run(tmp_path / "r").spans) == session(1)


def test_secrets_are_taken_out_wherever_they_turn_up(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "r", {"backends": {"new": {"extra": KEY}}}, [KEY, "EMPTY"])
    root = Span(SpanRef(1, 1), None, "s", 0, 1, attributes={"said": f"Bearer {KEY}", "model": "EMPTY"}, error=KEY)
    writer.write_session([root], [], [(root.ref, "reply", [f"your key is {KEY}"])], {"host": KEY})
    writer.update(more=KEY)
    for path in (tmp_path / "r").iterdir():
        assert KEY not in path.read_text()
    assert read_run(tmp_path / "r").spans[0].attributes == {"said": "Bearer (key, not kept)", "model": "EMPTY"}


def test_content_that_json_can_not_hold_is_kept_as_well_as_can_be(tmp_path: Path) -> None:
    writer = write_run(tmp_path / "r")
    root = Span(SpanRef(1, 1), None, "s", 0, 1, attributes={"half": "a\ud800b"})
    writer.write_session([root], [], [(root.ref, "reply", {"big": 2**70, "half": "\udc00", 3: {4}})], {})
    assert read_run(tmp_path / "r").spans[0].attributes == {"half": "a?b"}
    (line,) = (tmp_path / "r" / "content.jsonl").read_text().splitlines()
    assert json.loads(line)["content"] == {"big": 2**70, "half": "?", "3": [4]}


def test_broken_arrivals_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "chunks.jsonl").write_text('{"attempt": 1}\n{"attem\n3\n{"attempt": 2}')
    assert [entry["attempt"] for entry in read_arrivals(tmp_path)] == [1, 2]
    assert list(read_arrivals(tmp_path / "nowhere")) == []


def test_runs_are_listed_by_age_not_by_name(tmp_path: Path) -> None:
    RunWriter(tmp_path / "z", {"created": "2026-01-01T00:00:00+00:00"})
    RunWriter(tmp_path / "a", {"created": "2026-02-01T00:00:00+00:00"})
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    (tmp_path / "no-run").mkdir()
    assert [path.name for path in list_runs(tmp_path)] == ["damaged", "z", "a"]
    assert list_runs(tmp_path / "nowhere") == []
