"""The machinery of benchmarks/truth.py at reduced size, with bounds that a busy machine holds too."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from cores import Cores
from truth import Line, Place, make_place, measure, print_lines, summarize
from truth_cases import Case, cases
from truth_sessions import Pair

MS = 1_000_000
CALL_ROWS = {"connect", "send", "TTFT", "TTFO", "first event", "tail", "retry", "queue", "prefill"}
LEDGER_ROWS = {"connect", "network", "queue", "prefill", "first_token_wait", "decode", "tail", "retry", "tool", "think"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("truth"), Cores.as_they_are())


def case_named(name: str) -> Case:
    return next(case for case in cases(1) if case.name == name)


def by_row(lines: list[Line], of: str) -> dict[str, Line]:
    return {line.row: line for line in lines if line.of == of}


def assert_near(lines: list[Line]) -> None:
    for line in lines:
        errors = sorted(abs(pair.measured_ns - pair.true_ns) for pair in line.pairs if pair.measured_ns is not None)
        assert len(errors) == len(line.pairs), f"{line.row}: a number is missing"
        assert median(errors) <= 200 * MS + 0.2 * line.true_ns, line.row


def test_every_row_is_near_its_truth(place: Place) -> None:
    lines = measure(case_named("vLLM metrics"), 2, 2, place)
    calls, ledger = by_row(lines, "call"), by_row(lines, "ledger")
    assert set(calls) == CALL_ROWS | {"first-token wait", "decode"}
    assert set(ledger) >= LEDGER_ROWS | {"agent, each gap", "unattributed"}
    assert_near(lines)
    assert {len(calls[row].pairs) for row in CALL_ROWS} == {2 * 3}
    assert len(ledger["agent, each gap"].pairs) == 2 * 2
    # About: 3 × 40 ms that nobody reports, 3 prefills of 40 ms, 11 steps of 8 ms, tools of 160 ms, a pause of 100 ms.
    assert ledger["first_token_wait"].true_ns >= 80 * MS
    assert ledger["prefill"].true_ns >= 80 * MS
    assert calls["decode"].true_ns >= 60 * MS
    assert ledger["tool"].true_ns >= 100 * MS
    assert ledger["think"].true_ns == 100 * MS


def test_what_a_buffer_held_back_is_generation(place: Place) -> None:
    lines = measure(case_named("buffered"), 1, 1, place)
    calls, ledger = by_row(lines, "call"), by_row(lines, "ledger")
    assert "decode" not in calls
    assert "first-token wait" not in calls
    assert calls["generation"].true_ns >= (40 + 23 * 8) * MS
    assert ledger["generation"].true_ns >= 3 * (40 + 23 * 8) * MS
    assert_near(lines)


def line_of(errors_ms: list[float | None], true_ms: float = 100, concurrency: int = 1) -> Line:
    true_ns = round(true_ms * MS)
    pairs = [Pair("call", "x", None if e is None else true_ns + round(e * MS), true_ns) for e in errors_ms]
    return Line(concurrency, "made up", "call", "x", pairs)


@pytest.mark.parametrize(
    ("errors_ms", "concurrency", "verdict"),
    [
        ([3.0, -3.0, 2.9], 1, "ok"),
        ([3.0, -3.1, 2.9], 1, "ok"),
        ([3.1, -3.1, 2.9], 1, "MISSED"),
        ([7.0, -7.0, 6.9], 16, "ok"),
        ([7.1, -7.1, 6.9], 16, "MISSED"),
        ([0.0, 0.0, None], 1, "ok"),
        ([0.0, None, None], 1, "MISSED"),
        ([0.0] * 10 + [250.0] * 9, 1, "ok"),
        ([0.0] * 9 + [250.0] * 10, 1, "MISSED"),
    ],
)
def test_a_verdict_follows_from_the_errors(errors_ms: list[float | None], concurrency: int, verdict: str) -> None:
    assert line_of(errors_ms, concurrency=concurrency).verdict == verdict


def test_the_table_shows_what_it_was_judged_by(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines([line_of([0.5, 1.5, 2.5]), line_of([0.1, None], true_ms=0)])
    busy, idle = capsys.readouterr().out.splitlines()
    assert busy == "| 1 | made up | call | x | 3 | 100.00 | 1.50 | 2.50 | 3.00 | ok |"
    assert idle == "| 1 | made up | call | x | 2 | 0.00 | inf | inf | 2.00 | ok |"


def test_one_missed_row_fails_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert summarize([line_of([1.0, 1.0])])
    assert not summarize([line_of([1.0, 1.0]), line_of([250.0, 250.0])])
    assert "MISSED: 1 at once, made up: call x" in capsys.readouterr().out
