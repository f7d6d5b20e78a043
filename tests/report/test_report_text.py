"""The text of `explain`, from spans written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agentprof import semconv
from agentprof.analysis.explain import explain
from agentprof.analysis.ledger import LEDGER_ROWS
from agentprof.records.spans import Span, SpanRef
from agentprof.report.text import render_run

MS = 1_000_000
LLAMA = {"name": "r", "backends": {"local": {"fingerprint": {"engine": "llama.cpp"}}}}
LEAVES = ("connect", "send", "first_token_wait", "decode", "tail")


def session(
    trace: int = 1,
    *,
    start: int = 0,
    scale: int = 1,
    attributes: Mapping[str, Any] | None = None,
    call: Mapping[str, Any] | None = None,
    leaves: tuple[str, ...] = LEAVES,
    checks: bool | None = True,
) -> list[Span]:
    """One step of 1,000 ms (times `scale`): prepare 10, call 500 with prefill 300, parse 10, bash 470; gap 10."""
    spans: list[Span] = []

    def add(parent: int | None, name: str, begin: int, end: int, values: Mapping[str, Any] | None = None) -> int:
        ref = SpanRef(trace, len(spans) + 1)
        above = None if parent is None else SpanRef(trace, parent)
        times = (start * MS + begin * scale * MS, start * MS + end * scale * MS)
        spans.append(Span(ref, above, name, *times, "internal", values or {}))
        return ref.span_id

    facts = {
        semconv.SCENARIO: "fix-failing-test",
        semconv.BACKEND: "local",
        semconv.REPETITION: trace,
        semconv.OUTCOME: "completed",
        semconv.LAG_P99_NS: 800_000,
    }
    root = add(None, "invoke_agent fix-failing-test", 0, 1000, facts | dict(attributes or {}))
    step = add(root, "step 1", 0, 1000)
    add(step, "prepare", 0, 10)
    figures = {
        semconv.TTFT_NS: 350 * scale * MS,
        semconv.PREFILL_NS: 300 * scale * MS,
        semconv.INPUT_TOKENS: 1200,
        semconv.CACHED_TOKENS: 900,
        semconv.OUTPUT_TOKENS: 30,
        semconv.OUTPUT_TOKENS_SOURCE: "server",
        semconv.FIRST_READ_TOKENS: 1,
        semconv.FINISH_REASONS: ["tool_calls"],
    }
    values = {name: value for name, value in (figures | dict(call or {})).items() if value is not None}
    chat = add(step, "chat small", 10, 510, values)
    edges = dict(zip(LEAVES, ((10, 12), (12, 14), (14, 360), (360, 505), (505, 510)), strict=True))
    edges["generation"] = (14, 510)
    for leaf in leaves:
        add(chat, leaf, *edges[leaf])
    add(step, "parse", 510, 520)
    add(step, "execute_tool bash", 520, 990)
    if checks is not None:
        add(None, "checks", 1000, 1100, {semconv.CHECKS_PASSED: checks})
    return spans


def report(*sessions: list[Span], run: Mapping[str, Any] = LLAMA, width: int = 100) -> str:
    text = render_run(explain(run, [span for spans in sessions for span in spans]), width)
    assert all(len(line) <= width for line in text.splitlines()), text
    assert not any(line != line.rstrip() for line in text.splitlines())
    return text


def test_one_session_whole() -> None:
    assert report(session()) == (
        "fix-failing-test on local: 1.0 s for 30 tokens: 30.0 agent tok/s. Tools take 47 %, prefill 30 %,\n"
        "decode 14 %. Checks passed.\n"
        "\n"
        "  row                         ms     share\n"
        "  connect                    2.0    0.2 %  ▏\n"
        "  network                    2.0    0.2 %  ▏\n"
        "  gateway           not measured  no gateway reported its time (headers\n"
        "                                  x-litellm-overhead-duration-ms, Server-Timing)\n"
        "  queue             not measured  not split: llama.cpp reports no queue time; waiting for a slot is\n"
        "                                  in first_token_wait\n"
        "  prefill                  300.0   30.0 %  ███████▎\n"
        "  first_token_wait          46.0    4.6 %  █▏                        with queue\n"
        "  decode                   145.0   14.5 %  ███▌\n"
        "  tail                       5.0    0.5 %  ▏\n"
        "  tool                     470.0   47.0 %  ███████████▎              bash 100 %\n"
        "  agent                     20.0    2.0 %  ▌                         parse 50 %, prepare 50 %\n"
        "  unattributed              10.0    1.0 %  ▎\n"
        "  in all                 1,000.0  100.0 %\n"
        "  of it model time         500.0   50.0 %\n"
        "\n"
        "Rates: decode 200 tok/s · call 60.0 tok/s · agent 30.0 tok/s\n"
        "Prompt cache: 900 of 1,200 prompt tokens, hit rate 75.0 %\n"
        "Client lag p99: 0.8 ms\n"
        "\n"
        "                                  TTFT decode             call\n"
        "  step  prompt  cached   hit        ms  tok/s tokens        ms  finish     flags\n"
        "     1   1,200     900  75 %     350.0    200     30     500.0  tool_calls"
    )


def test_rows_without_time_are_left_out_but_unattributed_is_not() -> None:
    text = report(session())
    assert "retry" not in text
    assert "think" not in text
    spans = session()
    fitted = [
        *spans[:1],
        Span(spans[1].ref, spans[1].parent, "think", 0, 1000 * MS),
    ]
    assert "  unattributed               0.0    0.0 %\n" in report(fitted)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "--enable-per-request-metrics"),
        ("sglang", "--enable-trace"),
        ("litellm", "point base_url at the server itself"),
        ("openai", "this server reports no timings"),
    ],
)
def test_a_row_that_cannot_be_split_names_what_would_split_it(engine: str, words: str) -> None:
    run = {"backends": {"local": {"fingerprint": {"engine": engine}}}}
    text = " ".join(report(session(call={semconv.PREFILL_NS: None}), run=run).split())
    assert "queue not measured not split: " in text
    assert text.count(words) == 2


def test_what_was_not_measured_is_never_a_zero() -> None:
    missing = dict.fromkeys(
        [
            semconv.TTFT_NS,
            semconv.CACHED_TOKENS,
            semconv.OUTPUT_TOKENS,
            semconv.FIRST_READ_TOKENS,
            semconv.FINISH_REASONS,
        ]
    )
    text = report(session(call=missing, attributes={semconv.LAG_P99_NS: "?"}, checks=None))
    assert "for output tokens that weren't measured." in text
    assert "Rates: decode not measured · call not measured · agent not measured" in text
    assert "Prompt cache: not measured" in text
    assert "Client lag p99: not measured" in text
    assert "     1   1,200       –     –         –      –      –     500.0  –" in text
    assert "  – not measured" in text
    assert "Checks" not in text


def test_buffered_and_estimated_calls_are_marked() -> None:
    flags = ["buffered", "ttft_upper_bound", "estimated_tokens", "no_usage"]
    call = {semconv.FLAGS: flags, semconv.OUTPUT_TOKENS_SOURCE: "counted"}
    text = report(session(call=call, leaves=("connect", "send", "generation")))
    assert "≤350.0      –    ~30     500.0  tool_calls buffered no_usage" in text
    assert "  – not measured · ~ estimated · ≤ upper bound" in text
    assert "Rates (estimated): decode not measured · call 60.0 tok/s" in text
    assert "  decode            not measured  not split: no call could be divided at its first token" in text
    assert "Cautions:\n  * Tokens of 1 of 1 call" in text


def test_a_failed_session_says_so_first() -> None:
    call = {semconv.ERROR_KIND: "http_500", semconv.ATTEMPTS: 3, semconv.ERROR_MESSAGE: "HTTP 500"}
    text = report(session(call=call, attributes={semconv.OUTCOME: "failed"}, checks=False))
    assert "It ended as failed. Checks failed." in " ".join(text.split("\n\n")[0].split())
    assert "http_500   attempts:3" in text


def test_one_measured_session_after_a_warm_up_shows_the_cold_start() -> None:
    text = report(session(1, attributes={semconv.WARMUP: True}, scale=2), session(2, start=5000))
    assert text.startswith("fix-failing-test on local: 1.0 s for 30 tokens")
    assert "Cold start, fix-failing-test on local: the warm-up took 2.0 s, 2.00 times what followed." in text


def test_many_sessions_show_a_line_each_and_their_mean() -> None:
    text = report(
        session(1, attributes={semconv.WARMUP: True}, scale=10),
        session(2, start=20_000),
        session(3, start=30_000, scale=3),
        session(4, start=40_000, attributes={semconv.OUTCOME: "timed_out"}, scale=50),
    )
    lines = text.splitlines()
    assert lines[0].split() == [
        "scenario",
        "backend",
        "rep",
        "result",
        "wall",
        "s",
        "model",
        "s",
        "tokens",
        "agent",
        "decode",
        "hit",
    ]
    assert "warm-up, completed" in lines[1]
    assert lines[2].split()[2:6] == ["2", "completed", "1.0", "0.5"]
    assert "mean of 2 sessions on local: 2.0 s for 30 tokens: 15.0 agent tok/s" in text
    assert "  in all                 2,000.0  100.0 %" in text
    assert "1 of 3 sessions didn't complete and are left out of the mean." in text
    assert "the warm-up took 10.0 s, 5.00 times what followed" in text


def test_means_add_up_and_rates_are_sums_over_sums() -> None:
    text = report(session(1), session(2, start=5_000, scale=3, call={semconv.OUTPUT_TOKENS: 90}))
    numbers = {}
    for line in text.splitlines():
        word, *rest = line.split()[:2] or [""]
        if word in LEDGER_ROWS and rest[0] not in {"not", "and"}:
            numbers[word] = float(rest[0].replace(",", ""))
    assert sum(numbers.values()) == pytest.approx(2000.0)
    assert "Rates: decode 203 tok/s · call 60.0 tok/s · agent 30.0 tok/s" in text


def test_concurrent_sessions_have_an_aggregate_rate() -> None:
    text = report(session(1), session(2, start=500))
    assert "Aggregate on local: 40.0 tok/s over 2 sessions, up to 2 at once, in 1.5 s" in text


def test_two_backends_are_two_groups() -> None:
    text = report(session(1), session(2, start=2000, attributes={semconv.BACKEND: "other"}))
    assert "fix-failing-test on local: 1.0 s" in text
    assert "fix-failing-test on other: 1.0 s" in text


def test_cautions_that_differ_in_numbers_are_one() -> None:
    late = [session(n, start=2000 * n, attributes={semconv.LAG_P99_NS: (5 + n) * MS}) for n in (1, 2)]
    text = report(*late)
    assert text.count("The client was late by") == 1
    assert "(2 sessions, the first shown)" in " ".join(text.split())


@pytest.mark.parametrize("width", [80, 100, 140])
def test_lines_keep_to_the_width_whatever_the_names(width: int) -> None:
    names = {semconv.SCENARIO: "a-very-long-scenario-name-" * 3, semconv.BACKEND: "backend-" * 9}
    call = {semconv.FLAGS: ["short_of_forced_length", "malformed_lines", "bursts:65", "reconnected", "x" * 60]}
    report(session(1, attributes=names, call=call), width=width)
    report(session(1, attributes=names, call=call), session(2, start=9000, attributes=names, call=call), width=width)


def test_a_long_session_prints_its_first_calls() -> None:
    spans = session()
    steps = [
        Span(
            SpanRef(1, 100 + n),
            spans[0].ref,
            "chat small",
            n * MS,
            (n + 1) * MS,
            "internal",
            {semconv.OUTPUT_TOKENS: 1},
        )
        for n in range(80)
    ]
    assert "… and 21 more: see --json" in report([*spans, *steps])


def test_runs_without_sessions_or_with_warm_ups_alone() -> None:
    assert report() == "No session of this run has finished."
    only = report(session(attributes={semconv.WARMUP: True}))
    assert only.startswith("fix-failing-test on local (warm-up): 1.0 s")
    both = report(
        session(1, attributes={semconv.WARMUP: True}), session(2, start=3000, attributes={semconv.WARMUP: True})
    )
    assert both.count("warm-up, completed") == 2
