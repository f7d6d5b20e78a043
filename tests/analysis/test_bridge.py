"""The bridge on sessions written by hand: every formula against figures worked out on paper."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from bridging import milliseconds, parts_ms, raw, rows_ms, session_root
from handwritten import MS, Trace, add_call

from agentprof import semconv
from agentprof.analysis.bridge import BRIDGE_ROWS, build_bridge
from agentprof.errors import InputError
from agentprof.records.benchmark import ABSENT, Benchmark, measured


def report(ttft: str, tpot: str) -> Benchmark:
    return raw(ttft, tpot, 1024)


def test_the_field_report_gives_its_rates() -> None:
    assert report("324.37", "4.89").call_tok_s == pytest.approx(192.2, abs=0.05)
    assert report("230.70", "53.42").call_tok_s == pytest.approx(18.66, abs=0.005)


def test_a_turn_of_66_seconds_is_bridged_to_41() -> None:
    """2,700 tokens in 66 s: 24.4 ms each, of which 5.2 are the benchmark's."""
    trace = Trace()
    root = session_root(trace, 66_000)
    add_call(trace, root, 0, {semconv.OUTPUT_TOKENS: 2700}, first=1_000, last=15_000)
    trace.add(root, "execute_tool bash", 15_001, 66_000)
    bridge = build_bridge([trace.session()], report("324.37", "4.89"))
    assert bridge.agent_tok_s == pytest.approx(40.9, abs=0.05)
    assert bridge.benchmark_tok_s == pytest.approx(192.2, abs=0.05)
    rows = rows_ms(bridge)
    assert rows["tool"] == Fraction(50_999, 2700)
    assert sum(rows.values()) == pytest.approx(24.444 - 5.202, abs=0.001)


def two_calls() -> Trace:
    """220 ms, 22 tokens: waits of 60 and 40 ms, decodes of 40 and 20 ms for 2 × 10 tokens, 2 ms tail, 58 ms tools."""
    trace = Trace()
    root = session_root(trace, 220)
    add_call(trace, root, 0, first=60, last=100)  # tail to 101
    trace.add(root, "execute_tool bash", 101, 159, {semconv.TOOL_NAME: "bash"})
    add_call(trace, root, 159, first=199, last=219)  # tail to 220
    return trace


def test_every_row_by_hand() -> None:
    """w = 220/22 = 10; w_b = 19. Waits 100/22 − 100/10, decode 60/22 − 10·9/10."""
    bridge = build_bridge([two_calls().session()], raw())
    assert bridge.agent_ns == 10 * MS
    assert bridge.benchmark_ns == 19 * MS
    assert rows_ms(bridge) == {
        "first_token_waits": Fraction(100, 22) - 10,
        "decode": Fraction(60, 22) - 9,
        "tail": Fraction(2, 22),
        "tool": Fraction(58, 22),
    }
    assert [row.key for row in bridge.rows] == list(BRIDGE_ROWS)


def test_more_of_them_and_each_one_longer_or_shorter() -> None:
    """2 calls for 22 tokens, where the benchmark has 2.2; waits of 50 ms on average, not 100."""
    bridge = build_bridge([two_calls().session()], raw())
    assert parts_ms(bridge, "first_token_waits") == {
        "more_of_them": 100 * (Fraction(2, 22) - Fraction(1, 10)),
        "each_one_longer": Fraction(100 - 2 * 100, 22),
    }


def test_speed_and_count() -> None:
    """20 decoded tokens of 22 at 3 ms, where the benchmark decodes 9 of 10 at 10 ms."""
    bridge = build_bridge([two_calls().session()], raw())
    assert parts_ms(bridge, "decode") == {
        "speed": Fraction(60 - 20 * 10, 22),
        "count": 10 * (Fraction(20, 22) - Fraction(9, 10)),
    }


def test_tokens_of_the_first_read_arent_decoded() -> None:
    trace = Trace()
    root = session_root(trace, 101)
    add_call(trace, root, 0, {semconv.FIRST_READ_TOKENS: 4}, first=50, last=100)
    bridge = build_bridge([trace.session()], raw())
    assert bridge.totals.decoded_tokens == 7
    assert parts_ms(bridge, "decode")["speed"] == Fraction(50 - 7 * 10, 11)


def test_a_buffered_call_is_generation() -> None:
    """One split call of 11 tokens, one buffered of 33: its 90 ms from attempt to last token aren't divided."""
    trace = Trace()
    root = session_root(trace, 201)
    add_call(trace, root, 0, first=60, last=100)
    figures = {semconv.OUTPUT_TOKENS: 33, semconv.FIRST_READ_TOKENS: 33, semconv.FLAGS: ["buffered"]}
    chat = trace.add(root, "chat small", 101, 201, figures | {semconv.TTFT_NS: 90 * MS}, kind="client")
    trace.add(chat, "connect", 101, 111)
    trace.add(chat, "send", 111, 121)
    trace.add(chat, "generation", 121, 191)
    trace.add(chat, "tail", 191, 201)
    bridge = build_bridge([trace.session()], raw())
    assert rows_ms(bridge) == {
        "first_token_waits": Fraction(60, 44) - Fraction(1, 4) * 10,
        "decode": Fraction(40, 44) - Fraction(1, 4) * 9,
        "generation": Fraction(90, 44) - Fraction(3, 4) * 19,
        "tail": Fraction(11, 44),
    }
    assert any("1 of 2 calls couldn't be split" in caution for caution in bridge.cautions)


def test_retries_and_pool_wait_stand_apart() -> None:
    """A failed attempt of 30 ms, 20 ms back-off, then 5 ms waiting for the pool; the wait itself is 45 ms."""
    trace = Trace()
    root = session_root(trace, 160)
    figures = {
        semconv.OUTPUT_TOKENS: 11,
        semconv.FIRST_READ_TOKENS: 1,
        semconv.TTFT_NS: 45 * MS,
        semconv.POOL_WAIT_NS: 5 * MS,
        semconv.ATTEMPTS: 2,
    }
    chat = trace.add(root, "chat small", 0, 150, figures, kind="client")
    trace.add(chat, "attempt 1", 0, 30, error="HTTP 503")
    trace.add(chat, "backoff", 30, 50)
    attempt = trace.add(chat, "attempt 2", 50, 150)
    trace.add(attempt, "connect", 50, 65)
    trace.add(attempt, "send", 65, 70)
    trace.add(attempt, "first_token_wait", 70, 100)
    trace.add(attempt, "decode", 100, 140)
    trace.add(attempt, "tail", 140, 150)
    bridge = build_bridge([trace.session()], raw())
    assert rows_ms(bridge) == {
        "first_token_waits": Fraction(45, 11) - 10,
        "decode": Fraction(40, 11) - 9,
        "tail": Fraction(10, 11),
        "pool_wait": Fraction(5, 11),
        "retry": Fraction(50, 11),
        "unattributed": Fraction(10, 11),
    }


def test_a_failed_call_is_retry_and_brings_no_tokens() -> None:
    trace = Trace()
    root = session_root(trace, 141)
    chat = trace.add(
        root, "chat small", 0, 40, {semconv.ERROR_KIND: "truncated", semconv.OUTPUT_TOKENS: 5}, error="cut"
    )
    trace.add(chat, "attempt 1", 0, 40, error="cut")
    add_call(trace, root, 40, first=100, last=140)
    bridge = build_bridge([trace.session()], raw())
    rows = rows_ms(bridge)
    assert bridge.totals.tokens == 11
    assert rows["retry"] == Fraction(40, 11)
    assert rows["first_token_waits"] == Fraction(60, 11) - 10
    assert any(caution.startswith("1 of 2 calls failed") for caution in bridge.cautions)


def test_what_calls_save_by_running_at_once_is_overlap_alone() -> None:
    """The same call twice side by side: 100 ms each of waiting and decoding, once on the clock."""
    trace = Trace()
    root = session_root(trace, 101)
    for _ in range(2):
        add_call(trace, root, 0, first=60, last=100)
    bridge = build_bridge([trace.session()], raw())
    rows = rows_ms(bridge)
    assert rows["overlap"] == Fraction(-101, 22)
    assert rows["first_token_waits"] == Fraction(2 * 60, 22) - 10
    assert rows["decode"] == Fraction(2 * 40, 22) - 9


def test_sessions_are_summed_and_warm_ups_and_failures_left_out() -> None:
    traces = [Trace(number) for number in range(1, 5)]
    flags: list[dict[str, Any]] = [{semconv.WARMUP: True}, {}, {}, {semconv.OUTCOME: "timed_out"}]
    for trace, more, tool in zip(traces, flags, (10, 20, 40, 80), strict=True):
        root = session_root(trace, 101 + tool, **more)
        add_call(trace, root, 0, first=60, last=100)
        trace.add(root, "execute_tool bash", 101, 101 + tool)
    bridge = build_bridge([trace.session() for trace in traces], raw())
    assert (bridge.sessions, bridge.left_out) == (2, 1)
    assert bridge.agent_ns == Fraction(2 * 101 + 60, 22) * MS
    assert rows_ms(bridge)["tool"] == Fraction(60, 22)
    assert "1 of 3 sessions didn't complete and is left out." in bridge.cautions


def test_a_benchmark_with_only_a_throughput_gives_one_row() -> None:
    """50 tok/s at concurrency 1: 20 ms per token, against 160 ms of waiting and decoding for 22 tokens."""
    only = Benchmark("b.json", "guidellm", "x", throughput_tok_s=measured(50), concurrency=measured(1))
    bridge = build_bridge([two_calls().session()], only)
    assert not bridge.is_split
    assert bridge.benchmark_ns == 20 * MS
    assert rows_ms(bridge) == {
        "generation": Fraction(160, 22) - 20,
        "tail": Fraction(2, 22),
        "tool": Fraction(58, 22),
    }
    assert "first_token_waits" not in {row.key for row in bridge.rows}
    assert any("one row, generation: its price is concurrency / throughput" in caution for caution in bridge.cautions)


def test_the_price_of_an_unsplit_benchmark() -> None:
    latency = raw(tpot_ns=ABSENT, request_latency_ns=measured(milliseconds(250)))
    assert latency.price_ns == 25 * MS
    shared = raw(tpot_ns=ABSENT, throughput_tok_s=measured(100), concurrency=measured(4))
    assert shared.price_ns == 40 * MS
    assert raw(tpot_ns=ABSENT).price_ns is None


def test_shares_are_of_the_gap() -> None:
    bridge = build_bridge([two_calls().session()], raw(ttft=10, tpot=1))
    assert bridge.gap_ns == 10 * MS - Fraction(19, 10) * MS
    assert sum(bridge.share(row) or 0 for row in bridge.rows) == pytest.approx(1)
    tool = next(row for row in bridge.rows if row.key == "tool")
    assert bridge.share(tool) == pytest.approx(58 / 22 / 8.1)


def test_no_gap_has_no_shares() -> None:
    bridge = build_bridge([two_calls().session()], raw(ttft=10, tpot=10))
    assert bridge.gap_ns == 0
    assert {bridge.share(row) for row in bridge.rows} == {None}


def test_calls_without_phases_are_unattributed_and_said_to_be() -> None:
    trace = Trace()
    root = session_root(trace, 100)
    trace.add(root, "chat small", 0, 100, {semconv.OUTPUT_TOKENS: 10})
    bridge = build_bridge([trace.session()], raw())
    assert rows_ms(bridge) == {"generation": Fraction(-19), "unattributed": Fraction(10)}
    assert any("no phases in this trace" in caution for caution in bridge.cautions)


def test_calls_without_tokens_make_an_upper_bound() -> None:
    trace = two_calls()
    chat = next(span for span in trace.spans if span.name == "chat small")
    del chat.attributes[semconv.OUTPUT_TOKENS]  # type: ignore[attr-defined]
    bridge = build_bridge([trace.session()], raw())
    assert bridge.totals.tokens == 11
    rows_ms(bridge)
    assert any("upper bound" in caution for caution in bridge.cautions)


@pytest.mark.parametrize(
    ("attributes", "tokens", "expected"),
    [
        ({semconv.OUTCOME: "failed"}, 11, "none of 1 sessions completed"),
        ({semconv.WARMUP: True}, 11, "no measured session"),
        ({}, 0, "brought no output tokens"),
    ],
)
def test_nothing_to_explain(attributes: dict[str, Any], tokens: int, expected: str) -> None:
    trace = Trace()
    root = session_root(trace, 101, **attributes)
    add_call(trace, root, 0, {semconv.OUTPUT_TOKENS: tokens}, first=60, last=100)
    with pytest.raises(InputError, match=expected):
        build_bridge([trace.session()], raw())


def test_several_backends_need_a_name_unless_the_benchmark_has_one() -> None:
    traces = [Trace(1), Trace(2)]
    for trace, backend, last in zip(traces, ("old", "new"), (100, 200), strict=True):
        root = session_root(trace, last + 1, **{semconv.BACKEND: backend})
        add_call(trace, root, 0, first=60, last=last)
    sessions = [trace.session() for trace in traces]
    with pytest.raises(InputError, match=r"several backends \(old, new\)"):
        build_bridge(sessions, raw())
    assert build_bridge(sessions, raw(), backend="new").totals.wall_ns == 201 * MS
    assert build_bridge(sessions, raw(backend="old")).totals.wall_ns == 101 * MS
