"""Rates with one thing at a floor, the critical path recomputed; by hand."""

from __future__ import annotations

import pytest
from bridging import raw, session_root
from handwritten import MS, Trace, add_call

from agentprof import semconv
from agentprof.analysis.bridge import build_bridge
from agentprof.records.benchmark import ABSENT, Benchmark, measured


def walls(trace: Trace, benchmark: Benchmark) -> dict[str, float]:
    """Wall time in milliseconds by counterfactual."""
    bridge = build_bridge([trace.session()], benchmark)
    return {one.key: bridge.totals.tokens * 1000 / one.tok_s for one in bridge.counterfactuals}


def test_one_after_another() -> None:
    """Wait 60, decode 40, tail 1, tool 99. The benchmark waits 20 and decodes 10 tokens in 10 ms."""
    trace = Trace()
    root = session_root(trace, 200)
    add_call(trace, root, 0, first=60, last=100)
    trace.add(root, "execute_tool bash", 101, 200)
    assert walls(trace, raw(ttft=20, tpot=1)) == pytest.approx(
        {"tool": 101, "first_token_waits": 160, "decode": 170, "decode_halved": 180, "tail": 199}
    )


def test_a_floor_makes_nothing_slower() -> None:
    trace = Trace()
    add_call(trace, session_root(trace, 101), 0, first=60, last=100)
    assert "first_token_waits" not in walls(trace, raw(ttft=61, tpot=4))
    assert "decode" not in walls(trace, raw(ttft=61, tpot=4))


def test_the_other_of_two_parallel_tools_takes_over() -> None:
    """A call of 101 ms, then A for 100 and a sub-agent's call for 60 beside it."""
    trace = Trace()
    root = session_root(trace, 201)
    add_call(trace, root, 0, first=60, last=100)
    trace.add(root, "execute_tool bash", 101, 201)
    helper = trace.add(root, "execute_tool helper", 101, 162)
    add_call(trace, trace.add(helper, "invoke_agent helper", 101, 162), 101, first=131, last=161)
    assert walls(trace, raw(ttft=100, tpot=10))["tool"] == pytest.approx(162)


def test_what_ran_beside_the_critical_path_saves_nothing() -> None:
    """Two calls at once, done at 201 and 196: halved, the longer decode ends at 126 and the other's at 193.5."""
    trace = Trace()
    root = session_root(trace, 201)
    add_call(trace, root, 0, {semconv.TTFT_NS: 50 * MS}, first=50, last=200)
    add_call(trace, root, 0, first=190, last=195)
    assert walls(trace, raw(ttft=50, tpot=100)) == pytest.approx({"decode_halved": 193.5, "tail": 200})


def test_pauses_between_spans_stay() -> None:
    trace = Trace()
    root = session_root(trace, 300)
    trace.add(root, "think", 10, 110)
    add_call(trace, root, 120, first=160, last=200)
    assert walls(trace, raw())["think"] == pytest.approx(200)


def test_retries_end_before_the_attempt_that_succeeds() -> None:
    trace = Trace()
    root = session_root(trace, 101)
    figures = {semconv.OUTPUT_TOKENS: 11, semconv.FIRST_READ_TOKENS: 1, semconv.TTFT_NS: 20 * MS}
    chat = trace.add(root, "chat small", 0, 101, figures, kind="client")
    trace.add(chat, "attempt 1", 0, 30, error="HTTP 503")
    trace.add(chat, "backoff", 30, 50)
    attempt = trace.add(chat, "attempt 2", 50, 101)
    trace.add(attempt, "first_token_wait", 50, 70)
    trace.add(attempt, "decode", 70, 101)
    assert walls(trace, raw())["retry"] == pytest.approx(51)


def test_the_pool_isnt_part_of_a_wait() -> None:
    """Connect is 30 ms of pool and 10 of its own; wait in all 50, brought to 25."""
    trace = Trace()
    root = session_root(trace, 101)
    figures = {
        semconv.OUTPUT_TOKENS: 11,
        semconv.FIRST_READ_TOKENS: 1,
        semconv.TTFT_NS: 50 * MS,
        semconv.POOL_WAIT_NS: 30 * MS,
    }
    chat = trace.add(root, "chat small", 0, 101, figures, kind="client")
    for name, start, end in (("connect", 0, 40), ("send", 40, 50), ("first_token_wait", 50, 80), ("decode", 80, 101)):
        trace.add(chat, name, start, end)
    assert walls(trace, raw(ttft=25))["first_token_waits"] == pytest.approx(76)


def test_spans_whose_stamps_overlap_a_little_still_follow_one_another() -> None:
    trace = Trace()
    root = session_root(trace, 1100)
    add_call(trace, root, 0, first=500, last=999)
    trace.add(root, "execute_tool bash", 999.9, 1100)
    assert walls(trace, raw(ttft=100))["first_token_waits"] == pytest.approx(700)


def test_an_unsplit_benchmark_has_one_floor() -> None:
    """A price of 5 ms per token: 55 ms instead of 100 for waiting and decoding."""
    trace = Trace()
    add_call(trace, session_root(trace, 101), 0, first=60, last=100)
    only = raw(tpot_ns=ABSENT, throughput_tok_s=measured(200))
    found = walls(trace, only)
    assert found["generation"] == pytest.approx(56, abs=1e-5)
    assert not {"first_token_waits", "decode"} & set(found)


def test_sessions_are_added_up() -> None:
    traces = [Trace(1), Trace(2)]
    for trace, tool in zip(traces, (100, 300), strict=True):
        root = session_root(trace, 101 + tool)
        add_call(trace, root, 0, first=60, last=100)
        trace.add(root, "execute_tool bash", 101, 101 + tool)
    bridge = build_bridge([trace.session() for trace in traces], raw())
    tool_free = next(one for one in bridge.counterfactuals if one.key == "tool")
    assert tool_free.tok_s == pytest.approx(22_000 / 202)
    assert bridge.agent_tok_s == pytest.approx(22_000 / 602)
