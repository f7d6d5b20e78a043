"""Session and call frames: every field from the span that holds it."""

from __future__ import annotations

import json

import pytest
from handwritten import MS, Trace, add_call

from agentprof import semconv
from agentprof.analysis.calls import CallError
from agentprof.analysis.frames import aggregates, session_frames, to_frames
from agentprof.analysis.rates import busy_time
from agentprof.records.spans import Span, SpanRef

SESSION = {
    semconv.SCENARIO: "fix",
    semconv.BACKEND: "local",
    semconv.REPETITION: 2,
    semconv.WARMUP: True,
    semconv.MODE: "scripted",
    semconv.LENGTH: "forced",
    semconv.HISTORY: "recorded",
    semconv.CACHE: "isolated",
    semconv.OUTCOME: "failed",
    semconv.OUTCOME_REASON: "HTTP 500",
    semconv.LAG_P99_NS: 7,
    semconv.LAG_MAX_NS: 9,
    semconv.SESSION_ID: "s1",
}


def test_a_session_carries_what_its_root_spans_say() -> None:
    trace = Trace()
    trace.add(None, "prepare_workspace", 0, 5)
    trace.add(None, "invoke_agent fix", 5, 105, SESSION)
    trace.add(None, "checks", 105, 200, {semconv.CHECKS_PASSED: False})
    frame = trace.session()
    assert (frame.session, frame.scenario, frame.backend, frame.repetition) == ("s1", "fix", "local", 2)
    assert (frame.is_warmup, frame.mode, frame.length, frame.history) == (True, "scripted", "forced", "recorded")
    assert (frame.cache, frame.outcome, frame.outcome_reason) == ("isolated", "failed", "HTTP 500")
    assert (frame.checks_passed, frame.lag_p99_ns, frame.lag_max_ns) == (False, 7, 9)
    assert frame.wall_ns == 100 * MS
    assert len(frame.spans) == 3


def test_a_bare_session_has_what_can_be_known() -> None:
    trace = Trace(trace_id=255)
    trace.add(None, "invoke_agent fix", 0, 100)
    frame = trace.session()
    assert (frame.scenario, frame.backend, frame.repetition, frame.is_warmup) == ("fix", None, None, False)
    assert (frame.session, frame.checks_passed, frame.lag_p99_ns) == (f"{255:032x}", None, None)
    assert (frame.output_tokens, frame.output_tokens_source, frame.rates.agent) == (0, None, None)


def test_sessions_come_in_order_of_start_and_traces_without_one_are_left_out() -> None:
    late, early, other = Trace(1), Trace(2), Trace(3)
    late.add(None, "invoke_agent late", 100, 200)
    early.add(None, "invoke_agent early", 0, 50)
    other.add(None, "llm_request", 0, 10, kind="server")
    frames = session_frames([*late.spans, *early.spans, *other.spans])
    assert [frame.scenario for frame in frames] == ["early", "late"]


def test_a_session_below_a_foreign_parent_is_still_a_session() -> None:
    trace = Trace()
    outside = trace.add(None, "POST /run", 0, 100, kind="server")
    trace.add(outside, "invoke_agent fix", 0, 100)
    orphan = Span(SpanRef(2, 1), SpanRef(2, 99), "invoke_agent orphan", 0, 10)
    assert [frame.scenario for frame in session_frames([*trace.spans, orphan])] == ["fix", "orphan"]


def test_a_span_written_twice_counts_once() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 101)
    add_call(trace, root, 0, first=50, last=100)
    trace.spans += trace.spans
    assert len(trace.session().calls) == 1
    assert trace.session().output_tokens == 11


def test_a_call_carries_every_figure() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 200)
    step = trace.add(root, "step 3", 0, 200)
    calls = [
        {"name": "bash", "arguments": {"command": "ls"}},
        {"name": "search", "arguments": '{"pattern": "x"}'},
        {"name": "bash", "arguments": "{broken"},
    ]
    figures = {
        semconv.POOL_WAIT_NS: 4 * MS,
        semconv.TTFT_NS: 40 * MS,
        semconv.TTFO_NS: 60 * MS,
        semconv.FIRST_EVENT_NS: 30 * MS,
        semconv.INPUT_TOKENS: 1000,
        semconv.CACHED_TOKENS: 900,
        semconv.OUTPUT_TOKENS: 100,
        semconv.OUTPUT_TOKENS_SOURCE: "server",
        semconv.REASONING_TOKENS: 20,
        semconv.FIRST_READ_TOKENS: 2,
        semconv.PEAK_INTERVAL_TOK_S: 12.5,
        semconv.FINISH_REASONS: ["tool_calls"],
        semconv.TOOL_CALLS: json.dumps(calls),
        semconv.FLAGS: ["burst"],
        semconv.QUEUE_NS: 1,
        semconv.PREFILL_NS: 2,
        semconv.SERVER_DECODE_NS: 3,
        semconv.SERVER_SOURCE: "llama.cpp timings",
        semconv.PREFILLED_TOKENS: 100,
        semconv.DRAFT_TOKENS: 10,
        semconv.ACCEPTED_TOKENS: 7,
        semconv.DECODE_STEPS: 93,
    }
    chat = trace.add(step, "chat small", 0, 180, figures)
    trace.add(chat, "connect", 0, 10)
    trace.add(chat, "send", 10, 12)
    trace.add(chat, "first_token_wait", 12, 44)
    trace.add(chat, "decode", 44, 170)
    trace.add(chat, "tail", 170, 180)
    (call,) = trace.session().calls
    assert (call.step, call.model, call.wall_ns) == (3, "small", 180 * MS)
    assert (call.pool_wait_ns, call.connect_ns, call.send_ns) == (4 * MS, 6 * MS, 2 * MS)
    assert (call.ttft_ns, call.ttfo_ns, call.first_event_ns) == (40 * MS, 60 * MS, 30 * MS)
    assert (call.decode_ns, call.tail_ns, call.retry_ns) == (126 * MS, 10 * MS, 0)
    assert (call.prompt_tokens, call.cached_tokens, call.output_tokens) == (1000, 900, 100)
    assert (call.reasoning_tokens, call.first_read_tokens, call.decoded_tokens) == (20, 2, 98)
    assert (call.finish, call.attempts, call.error, call.flags) == ("tool_calls", 1, None, ("burst",))
    assert [tool["arguments"] for tool in call.tool_calls] == [{"command": "ls"}, {"pattern": "x"}, None]
    assert (call.server.queue_ns, call.server.prefill_ns, call.server.decode_ns) == (1, 2, 3)
    assert (call.server.draft_tokens, call.server.accepted_draft_tokens, call.server.decode_steps) == (10, 7, 93)
    assert call.peak_interval_tok_s == 12.5


def test_a_bare_call_measures_its_wall_time_only() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 100)
    trace.add(root, "chat small", 0, 100)
    (call,) = trace.session().calls
    missing = ("pool_wait_ns", "connect_ns", "send_ns", "ttft_ns", "ttfo_ns", "first_event_ns", "decode_ns", "tail_ns")
    assert [getattr(call, name) for name in missing] == [None] * len(missing)
    assert (call.step, call.prompt_tokens, call.output_tokens, call.finish) == (None, None, None, None)
    assert (call.attempts, call.retry_ns, call.tool_calls) == (1, 0, ())
    assert trace.session().output_tokens is None


def test_one_token_event_decodes_in_no_time_and_has_no_rate() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 60)
    chat = trace.add(root, "chat small", 0, 60, {semconv.TTFT_NS: 50 * MS, semconv.OUTPUT_TOKENS: 1})
    trace.add(chat, "first_token_wait", 0, 50)
    frame = trace.session()
    assert frame.calls[0].decode_ns == 0
    assert frame.ledger.rows["decode"] == 0
    assert frame.rates.decode is None


def test_a_buffered_call_keeps_its_ttft_and_has_no_decode() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 71_051)
    figures = {
        semconv.TTFT_NS: 71_022 * MS,
        semconv.OUTPUT_TOKENS: 4096,
        semconv.FIRST_READ_TOKENS: 4096,
        semconv.FLAGS: ["buffered"],
    }
    chat = trace.add(root, "chat small", 0, 71_051, figures)
    trace.add(chat, "generation", 0, 71_022)
    trace.add(chat, "tail", 71_022, 71_051)
    frame = trace.session()
    assert (frame.calls[0].ttft_ns, frame.calls[0].decode_ns) == (71_022 * MS, None)
    assert frame.rates.decode is None
    assert frame.rates.call == pytest.approx(57.65, abs=0.005)


def test_a_call_without_token_events_has_neither_ttft_nor_decode() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 20)
    chat = trace.add(root, "chat small", 0, 20, {semconv.OUTPUT_TOKENS: 1})
    trace.add(chat, "generation", 0, 20)
    (call,) = trace.session().calls
    assert (call.ttft_ns, call.decode_ns, call.is_unsplit) == (None, None, True)


def test_retries_are_summed_beside_the_attempt_that_succeeded() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 3_000)
    chat = trace.add(root, "chat small", 0, 3_000, {semconv.ATTEMPTS: 2, semconv.TTFT_NS: 300 * MS})
    failed = trace.add(chat, "attempt 1", 0, 100, error="HTTP 500")
    trace.add(failed, "connect", 0, 60)
    trace.add(chat, "backoff", 100, 2_100)
    good = trace.add(chat, "attempt 2", 2_100, 3_000)
    trace.add(good, "connect", 2_100, 2_110)
    trace.add(good, "first_token_wait", 2_110, 2_400)
    trace.add(good, "decode", 2_400, 3_000)
    (call,) = trace.session().calls
    assert (call.retry_ns, call.connect_ns, call.ttft_ns, call.attempts) == (2_100 * MS, 10 * MS, 300 * MS, 2)
    assert call.decode_ns == 600 * MS


def test_rates_are_decode_49_5_call_25_agent_10() -> None:
    """TTFT 2 s, 100 tokens in 2 s, tool 6 s."""
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 10_000)
    figures = {semconv.TTFT_NS: 2_000 * MS, semconv.OUTPUT_TOKENS: 100, semconv.FIRST_READ_TOKENS: 1}
    chat = trace.add(root, "chat small", 0, 4_000, figures)
    trace.add(chat, "first_token_wait", 0, 2_000)
    trace.add(chat, "decode", 2_000, 4_000)
    trace.add(root, "execute_tool bash", 4_000, 10_000)
    rates = trace.session().rates
    assert (rates.decode, rates.call, rates.agent) == (49.5, 25.0, 10.0)


def test_failed_calls_give_no_tokens_and_no_rate() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 400)
    add_call(trace, root, 0, first=50, last=100)
    failure = {semconv.ERROR_KIND: "truncated", semconv.ERROR_MESSAGE: "the stream ended early"}
    add_call(trace, root, 200, failure, first=250, last=300)
    frame = trace.session()
    assert frame.output_tokens == 11
    assert frame.rates.decode == pytest.approx(10 / 0.05)
    assert frame.rates.call == pytest.approx(11 / 0.101)
    assert frame.rates.agent == pytest.approx(11 / 0.4)
    assert frame.calls[1].error == CallError("truncated", "the stream ended early")


def test_tokens_are_counted_if_any_call_counted_them() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 400)
    add_call(trace, root, 0, first=50, last=100)
    assert trace.session().output_tokens_source == "server"
    add_call(trace, root, 200, {semconv.OUTPUT_TOKENS_SOURCE: "counted"}, first=250, last=300)
    assert trace.session().output_tokens_source == "counted"
    assert trace.session().output_tokens == 22


def test_attributes_of_a_wrong_type_are_not_measured() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 100, {semconv.REPETITION: "two", semconv.WARMUP: "yes"})
    wrong = {
        semconv.TTFT_NS: "fast",
        semconv.TTFO_NS: True,
        semconv.OUTPUT_TOKENS: 12.0,
        semconv.INPUT_TOKENS: float("nan"),
        semconv.TOOL_CALLS: "{",
        semconv.FINISH_REASONS: "stop",
    }
    trace.add(root, "chat small", 0, 100, wrong)
    frame = trace.session()
    (call,) = frame.calls
    assert (frame.repetition, frame.is_warmup) == (None, False)
    assert (call.ttft_ns, call.ttfo_ns, call.output_tokens, call.prompt_tokens) == (None, None, 12, None)
    assert (call.tool_calls, call.finish) == ((), "stop")


def test_busy_time_is_the_union_and_its_peak() -> None:
    assert busy_time([(0, 10), (5, 20), (30, 40), (12, 13), (50, 50)]) == (30, 2)
    assert busy_time([(0, 10), (10, 20)]) == (20, 1)
    assert busy_time([]) == (0, 0)


def test_aggregate_covers_sessions_that_ran_together_and_no_warm_up() -> None:
    spans: list[Span] = []
    for number, (start, warmup) in enumerate([(-500, True), (0, False), (50, False)], start=1):
        trace = Trace(number)
        root = trace.add(
            None, "invoke_agent fix", start, start + 101, {semconv.BACKEND: "local", semconv.WARMUP: warmup}
        )
        add_call(trace, root, start, first=start + 50, last=start + 100)
        spans += trace.spans
    (group,) = aggregates(session_frames(spans))
    assert (group.backend, group.sessions, group.peak, group.wall_ns) == ("local", 2, 2, 151 * MS)
    assert group.tok_s == pytest.approx(22 / 0.151)
    assert aggregates(session_frames(spans)[:2]) == []


def test_tables_keep_missing_missing_and_integers_exact() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 200)
    add_call(trace, root, 0, first=50, last=100)
    trace.add(root, "chat small", 150, 160)
    tables = to_frames([trace.session()])
    assert set(tables) == {"sessions", "calls", "spans"}
    assert tables["calls"]["decode_ns"].tolist()[0] == 50 * MS
    assert tables["calls"]["decode_ns"].isna().tolist() == [False, True]
    assert str(tables["calls"]["decode_ns"].dtype) == "Int64"
    ledger = tables["sessions"].filter(regex="^ledger_")
    assert int(ledger.sum(axis=1).iloc[0]) == 200 * MS
    assert bool(tables["sessions"]["ledger_queue_ns"].isna().iloc[0])
    assert len(tables["spans"]) == len(trace.spans)


def test_tables_of_no_sessions_are_empty() -> None:
    assert [len(table) for table in to_frames([]).values()] == [0, 0, 0]
