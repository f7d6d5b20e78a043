"""Whatever the tree of spans, the rows add up to the wall time, and no row is negative."""

from __future__ import annotations

import random

from handwritten import Trace
from hypothesis import given, settings
from hypothesis import strategies as st

from agentprof import semconv
from agentprof.analysis.explain import explain
from agentprof.analysis.frames import session_frames
from agentprof.analysis.ledger import LEDGER_ROWS, critical_path
from agentprof.records.spans import Span, SpanRef

NAMES = [
    "step 1",
    "chat small",
    "attempt 1",
    "backoff",
    "connect",
    "send",
    "first_token_wait",
    "decode",
    "generation",
    "tail",
    "prepare",
    "parse",
    "dispatch",
    "execute_tool bash",
    "execute_tool search",
    "think",
    "invoke_agent helper",
    "llm_request",
]
SIZES = [
    semconv.RTT_NS,
    semconv.GATEWAY_NS,
    semconv.QUEUE_NS,
    semconv.PREFILL_NS,
    semconv.POOL_WAIT_NS,
    semconv.TTFT_NS,
    semconv.DECODE_ANSWER_NS,
    semconv.DECODE_REASONING_NS,
    semconv.DNS_NS,
    semconv.TLS_NS,
    semconv.OUTPUT_TOKENS,
    semconv.FIRST_READ_TOKENS,
]
moments = st.integers(-50, 250)


@st.composite
def traces(draw: st.DrawFn) -> list[Span]:
    """A session of up to 30 spans of any kind, anywhere in time, below any span that came before."""
    trace = Trace()
    trace.add(None, "invoke_agent fix", 0, 0)
    start, end = draw(moments), draw(moments)
    root = SpanRef(1, 1)
    trace.spans[0] = Span(root, None, "invoke_agent fix", start, end)
    for number in range(2, draw(st.integers(2, 30))):
        parent = draw(st.sampled_from(trace.spans)).ref
        sizes = draw(st.dictionaries(st.sampled_from(SIZES), st.integers(-5, 120), max_size=6))
        trace.spans.append(
            Span(
                SpanRef(1, number),
                parent,
                draw(st.sampled_from(NAMES)),
                draw(moments),
                draw(moments),
                draw(st.sampled_from(["internal", "internal", "client", "server"])),
                sizes,
                draw(st.sampled_from([None, None, None, "failed"])),
            )
        )
    return trace.spans


@st.composite
def agent_like_traces(draw: st.DrawFn) -> list[Span]:
    """Steps whose calls have attempts and leaves in order of time, and tools that overlap."""
    spans = [Span(SpanRef(1, 1), None, "invoke_agent fix", 0, 0)]
    clock = 0

    def add(parent: Span, name: str, start: int, end: int, error: str | None = None) -> Span:
        sizes = draw(st.dictionaries(st.sampled_from(SIZES), st.integers(0, 60), max_size=4))
        spans.append(Span(SpanRef(1, len(spans) + 1), parent.ref, name, start, end, "internal", sizes, error))
        return spans[-1]

    gap = st.integers(0, 30)
    for number in range(1, draw(st.integers(1, 4)) + 1):
        clock += draw(gap)
        begun, step_index = clock, len(spans)
        step = add(spans[0], f"step {number}", begun, begun)
        call = add(step, "chat small", clock, clock)
        call_index = len(spans) - 1
        for _ in range(draw(st.integers(0, 2))):
            failed = draw(gap)
            add(call, "attempt 1", clock, clock + failed, "HTTP 500")
            pause = draw(gap)
            add(call, "backoff", clock + failed, clock + failed + pause)
            clock += failed + pause
        for leaf in draw(st.sampled_from([[*NAMES[4:8], "tail"], ["connect", "send", "generation", "tail"]])):
            length = draw(gap)
            add(call, leaf, clock, clock + length)
            clock += length
        spans[call_index] = _ending(spans[call_index], clock)
        ends = [clock]
        for tool in draw(st.lists(st.tuples(gap, st.integers(0, 90)), max_size=3)):
            add(step, "execute_tool bash", clock + tool[0], clock + tool[0] + tool[1])
            ends.append(clock + sum(tool))
        clock = max(ends)
        spans[step_index] = _ending(spans[step_index], clock)
    spans[0] = _ending(spans[0], clock + draw(gap))
    return spans


def _ending(span: Span, end_ns: int) -> Span:
    return Span(span.ref, span.parent, span.name, span.start_ns, end_ns, span.kind, span.attributes, span.error)


@settings(max_examples=150, deadline=None)
@given(st.one_of(traces(), agent_like_traces()), st.randoms(use_true_random=False))
def test_rows_add_up_whatever_the_tree(spans: list[Span], order: random.Random) -> None:
    (frame,) = session_frames(spans)
    ledger = frame.ledger
    assert tuple(ledger.rows) == LEDGER_ROWS
    numbers = [ns for ns in ledger.rows.values() if ns is not None]
    assert all(type(ns) is int and ns >= 0 for ns in numbers)
    assert sum(numbers) == ledger.wall_ns == max(0, spans[0].duration_ns)
    for row, parts in ledger.splits.items():
        assert sum(ns or 0 for ns in parts.values()) <= (ledger.rows[row] or 0)
    assert 0 <= ledger.model_time_ns <= ledger.wall_ns
    shuffled = list(spans)
    order.shuffle(shuffled)
    assert explain({}, shuffled) == explain({}, spans)


@settings(max_examples=60, deadline=None)
@given(traces())
def test_the_path_is_one_line_from_start_to_end(spans: list[Span]) -> None:
    (frame,) = session_frames(spans)
    path = critical_path(frame.tree)
    edges = [frame.start_ns, *(segment.end_ns for segment in path)]
    assert [segment.start_ns for segment in path] == edges[:-1]
    assert edges[-1] == frame.start_ns + frame.wall_ns
    assert all(segment.start_ns < segment.end_ns for segment in path)


@settings(max_examples=60, deadline=None)
@given(agent_like_traces(), st.data())
def test_foreign_spans_change_nothing(spans: list[Span], data: st.DataObject) -> None:
    calls = [span for span in spans if span.name.startswith("chat")]
    foreign = Span(SpanRef(1, 900), data.draw(st.sampled_from(calls)).ref, "llm_request", 0, 500, "server")
    inside = Span(SpanRef(1, 901), foreign.ref, data.draw(st.sampled_from(NAMES)), 0, 400)
    (before,) = session_frames(spans)
    (after,) = session_frames([*spans, foreign, inside])
    assert before.ledger == after.ledger
    assert before.calls == after.calls
