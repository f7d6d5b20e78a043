"""What rows are made of: parts of the wait, acceptance, recomputed turns; by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from bridging import milliseconds, parts_ms, raw, session_root
from handwritten import MS, Trace, add_call

from agentprof import semconv
from agentprof.analysis.bench import benchmark_of_run
from agentprof.analysis.bridge import Bridge, build_bridge
from agentprof.records.benchmark import measured

REPORTED = {
    semconv.RTT_NS: 2 * MS,
    semconv.GATEWAY_NS: 3 * MS,
    semconv.QUEUE_NS: 10 * MS,
    semconv.PREFILL_NS: 30 * MS,
}


def one_call(*, first: float = 60, last: float = 100, root: dict[str, Any] | None = None, **figures: Any) -> Trace:
    """11 tokens; connect 1 ms, send 1 ms, then the wait."""
    trace = Trace()
    add_call(trace, session_root(trace, last + 1, **(root or {})), 0, figures, first=first, last=last)
    return trace


def test_the_wait_is_divided_as_the_server_reports() -> None:
    """60 ms: 1 connect, 1 + 2 network, 3 gateway, 10 queue, 30 prefill, 13 that nobody explains; less 100."""
    bridge = build_bridge([one_call(**REPORTED).session()], raw())
    assert parts_ms(bridge, "first_token_waits", "each_one_longer") == {
        "connect": Fraction(1, 11),
        "network": Fraction(3, 11),
        "gateway": Fraction(3, 11),
        "queue": Fraction(10, 11),
        "prefill": Fraction(30, 11),
        "rest": Fraction(13, 11),
        "benchmark_wait": Fraction(-100, 11),
    }


def test_parts_that_the_benchmark_knows_are_taken_off_one_by_one() -> None:
    """The benchmark's 100 ms: 4 connect, 60 prefill, and 36 of which it says no more."""
    parts = {"connect": milliseconds(4), "prefill": milliseconds(60)}
    bridge = build_bridge([one_call(**REPORTED).session()], raw(wait_parts_ns=parts))
    assert parts_ms(bridge, "first_token_waits", "each_one_longer") == {
        "connect": Fraction(1 - 4, 11),
        "prefill": Fraction(30 - 60, 11),
        "rest": Fraction(60 - 31 - 36, 11),
    }


def test_reports_that_exceed_the_wait_are_cut_as_in_the_ledger() -> None:
    trace = one_call(**{semconv.PREFILL_NS: 40 * MS, semconv.QUEUE_NS: 40 * MS, semconv.RTT_NS: 5 * MS})
    session = trace.session()
    parts = parts_ms(build_bridge([session], raw()), "first_token_waits", "each_one_longer")
    for part in ("prefill", "queue"):
        assert parts[part] * 11 * MS == session.ledger.rows[part]
    assert parts["rest"] == 0


def drafting(steps: int | None, accepted: int = 8, **figures: Any) -> Bridge:
    """11 tokens, 10 of them decoded in 40 ms: TPOT 4 ms, against 10 at 5 tokens a step."""
    more = {semconv.DRAFT_TOKENS: 20, semconv.ACCEPTED_TOKENS: accepted} | figures
    if steps is not None:
        more[semconv.DECODE_STEPS] = steps
    return build_bridge([one_call(**more).session()], raw(acceptance_length=measured(5)))


def test_acceptance_and_step_time_by_logarithmic_means() -> None:
    """5 tokens a step at 50 ms become 5.5 at 22 ms. The mean of 4 and 10 is 6 / ln 2.5."""
    mean = 6 / math.log(2.5)
    parts = parts_ms(drafting(2), "decode", "speed")
    assert float(parts["acceptance"]) == pytest.approx(-mean * math.log(5.5 / 5) * 10 / 11)
    assert float(parts["step_time"]) == pytest.approx(mean * math.log(22 / 50) * 10 / 11)
    assert sum(parts.values()) == Fraction(40 - 100, 11)


def test_equal_speed_still_divides_into_acceptance_and_step_time() -> None:
    """4 ms on both sides: fewer tokens a step, each step as much shorter."""
    benchmark = raw(tpot=4, acceptance_length=measured(11))
    trace = one_call(**{semconv.DRAFT_TOKENS: 20, semconv.ACCEPTED_TOKENS: 9, semconv.DECODE_STEPS: 2})
    parts = parts_ms(build_bridge([trace.session()], benchmark), "decode", "speed")
    assert float(parts["acceptance"]) == pytest.approx(4 * math.log(2) * 10 / 11)
    assert sum(parts.values()) == 0


def test_steps_follow_from_accepted_drafts() -> None:
    """11 tokens of which 9 were drafted: the model itself wrote 2, one a step."""
    assert drafting(None, accepted=9).acceptance == drafting(2).acceptance == Fraction(11, 2)


def test_llama_cpp_without_drafts_took_a_step_for_each_token() -> None:
    trace = one_call(**{semconv.SERVER_SOURCE: "llama.cpp timings"})
    bridge = build_bridge([trace.session()], raw(acceptance_length=measured(2)))
    assert bridge.acceptance == 1
    assert parts_ms(bridge, "decode", "speed")["acceptance"] > 0


def test_what_isnt_reported_on_both_sides_isnt_split() -> None:
    drafts = one_call(**{semconv.DRAFT_TOKENS: 20, semconv.ACCEPTED_TOKENS: 9}).session()
    speed = build_bridge([drafts], raw()).rows[1].parts[0]
    assert (speed.key, speed.parts) == ("speed", ())
    assert speed.why_whole == "not split: the benchmark reports no acceptance"
    plain = build_bridge([one_call().session()], raw(acceptance_length=measured(5))).rows[1].parts[0]
    assert plain.why_whole == "not split: some calls don't report decoding steps"
    assert build_bridge([one_call().session()], raw()).rows[1].parts[0].why_whole is None


SCRIPTED = {semconv.MODE: "scripted", semconv.HISTORY: "recorded"}


def conversation(root: dict[str, Any], cached: int | None = 100, prompt: int = 160) -> Bridge:
    """100 prompt tokens and 40 written, then a prompt of 160 with 100 from the cache: 60 prefilled in 30 ms."""
    trace = Trace()
    parent = session_root(trace, 202, **root)
    first = {
        semconv.INPUT_TOKENS: 100,
        semconv.OUTPUT_TOKENS: 40,
        semconv.CACHED_TOKENS: 0,
        semconv.PREFILL_NS: 50 * MS,
    }
    add_call(trace, parent, 0, first, first=60, last=100)
    second = {semconv.INPUT_TOKENS: prompt, semconv.OUTPUT_TOKENS: 10, semconv.PREFILL_NS: 30 * MS}
    if cached is not None:
        second[semconv.CACHED_TOKENS] = cached
    add_call(trace, parent, 101, second, first=161, last=201)
    return build_bridge([trace.session()], raw())


def test_turns_that_a_recorded_history_makes_the_server_prefill_again() -> None:
    """40 of the 60 uncached tokens are the assistant turn: two thirds of 30 ms."""
    parts = parts_ms(conversation(SCRIPTED), "first_token_waits", "each_one_longer")
    assert parts["recomputed_because_scripted"] == Fraction(20, 50)
    assert parts["prefill"] == Fraction(80 - 20, 50)


@pytest.mark.parametrize(
    ("root", "cached", "prompt"),
    [
        ({semconv.MODE: "scripted", semconv.HISTORY: "generated"}, 100, 160),
        ({semconv.MODE: "live", semconv.HISTORY: "recorded"}, 100, 160),
        ({}, 100, 160),
        (SCRIPTED, None, 160),
        (SCRIPTED, 0, 90),
    ],
)
def test_recomputed_turns_are_named_only_where_they_are_known(
    root: dict[str, Any], cached: int | None, prompt: int
) -> None:
    parts = parts_ms(conversation(root, cached, prompt), "first_token_waits", "each_one_longer")
    assert "recomputed_because_scripted" not in parts


def test_turns_that_were_cached_cost_nothing() -> None:
    parts = parts_ms(conversation(SCRIPTED, cached=140), "first_token_waits", "each_one_longer")
    assert parts["recomputed_because_scripted"] == 0
    assert parts["prefill"] == Fraction(80, 50)


def test_estimates_are_marked() -> None:
    longer = conversation(SCRIPTED).rows[0].parts[1]
    marked = {part.key for part in longer.parts if part.is_estimated}
    assert marked == {"recomputed_because_scripted"}


def test_a_bench_run_that_is_its_own_agent_has_a_bridge_of_its_overheads() -> None:
    """The same requests on both sides: waits and decode cancel, what is left is their tail."""
    traces = [one_call(**REPORTED)]
    sessions = [trace.session() for trace in traces]
    bridge = build_bridge(sessions, replace(benchmark_of_run({}, sessions), concurrency=measured(1)))
    assert {row.key: row.ns / MS for row in bridge.rows if row.ns} == {"tail": Fraction(1, 11)}
    assert set(parts_ms(bridge, "first_token_waits", "each_one_longer").values()) == {0}
