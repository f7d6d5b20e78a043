"""Whatever the sessions and the benchmark, the rows add up to the difference exactly."""

from __future__ import annotations

from fractions import Fraction

from bridging import raw
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_ledger_invariants import agent_like_traces, traces

from agentprof import semconv
from agentprof.analysis.bridge import Bridge, build_bridge
from agentprof.analysis.bridge_splits import Row
from agentprof.analysis.counterfactuals import rescheduled_ns
from agentprof.analysis.frames import SessionFrame, session_frames
from agentprof.errors import InputError
from agentprof.records.benchmark import ABSENT, Benchmark, measured
from agentprof.records.spans import Span, SpanRef

whole = st.integers(0, 400)
lengths = st.integers(0, 60)


class Clock:
    """Adds spans one after another below a parent."""

    def __init__(self, trace_id: int) -> None:
        self.trace_id, self.spans = trace_id, [Span(SpanRef(trace_id, 1), None, "invoke_agent fix", 0, 0)]

    def add(self, parent: Span, name: str, start: int, end: int, **more: object) -> Span:
        ref = SpanRef(self.trace_id, len(self.spans) + 1)
        self.spans.append(Span(ref, parent.ref, name, start, end, **more))  # type: ignore[arg-type]
        return self.spans[-1]

    def end(self, span: Span, at: int) -> None:
        index = span.ref.span_id - 1
        self.spans[index] = Span(
            span.ref, span.parent, span.name, span.start_ns, at, span.kind, span.attributes, span.error
        )


@st.composite
def calls(draw: st.DrawFn, clock: Clock, parent: Span, at: int) -> int:
    """A call that may wait for the pool, be retried or buffered, fail, bring several tokens at once; gives its end."""
    kind = draw(st.sampled_from(["split", "split", "split", "buffered", "failed", "bare"]))
    tokens = draw(whole)
    figures: dict[str, object] = {semconv.OUTPUT_TOKENS: tokens, semconv.TTFT_NS: 1}
    figures |= draw(st.fixed_dictionaries({}, optional={
        semconv.FIRST_READ_TOKENS: st.integers(0, 450),
        semconv.POOL_WAIT_NS: lengths,
        semconv.QUEUE_NS: lengths,
        semconv.PREFILL_NS: lengths,
        semconv.GATEWAY_NS: lengths,
        semconv.RTT_NS: lengths,
        semconv.INPUT_TOKENS: whole,
        semconv.CACHED_TOKENS: whole,
        semconv.DECODE_STEPS: whole,
        semconv.DRAFT_TOKENS: whole,
        semconv.ACCEPTED_TOKENS: whole,
    }))  # fmt: skip
    if kind == "buffered":
        figures[semconv.FLAGS] = ["buffered"]
    error = "gone" if kind == "failed" else None
    chat = clock.add(parent, "chat small", at, at, kind="client", attributes=figures, error=error)
    for _ in range(draw(st.integers(0, 2)) + (kind == "failed")):
        failed, pause = draw(lengths), draw(lengths)
        clock.add(chat, "attempt 1", at, at + failed, error="HTTP 500")
        clock.add(chat, "backoff", at + failed, at + failed + pause)
        at += failed + pause
    phases = {
        "split": ["connect", "send", "first_token_wait", "decode", "tail"],
        "buffered": ["connect", "send", "generation", "tail"],
    }
    for phase in phases.get(kind, []):
        length = draw(lengths)
        clock.add(chat, phase, at, at + length)
        at += length
    at += draw(st.integers(0, 3))
    clock.end(chat, at)
    return at


@st.composite
def agents(draw: st.DrawFn, clock: Clock, agent: Span, at: int, depth: int) -> int:
    """Steps of one or more calls at once, then tools at once, one of which may be a sub-agent; gives the end."""
    for number in range(draw(st.integers(1, 2))):
        step = clock.add(agent, f"step {number + 1}", at, at)
        begun = at + draw(st.integers(0, 5))
        clock.add(step, "prepare", at, begun)
        ends = [draw(calls(clock, step, begun + draw(st.integers(0, 9)))) for _ in range(draw(st.integers(1, 2)))]
        at = max(ends)
        ends = [at]
        for _ in range(draw(st.integers(0, 2))):
            begun = at + draw(lengths)
            tool = clock.add(step, "execute_tool bash", begun, begun)
            end = begun + draw(lengths)
            if depth and draw(st.booleans()):
                inner = clock.add(tool, "invoke_agent helper", begun, begun)
                end = draw(agents(clock, inner, begun, depth - 1))
                clock.end(inner, end)
            clock.end(tool, end)
            ends.append(end)
        at = max(ends) + draw(st.integers(0, 5))
        clock.end(step, at)
    return at


@st.composite
def runs(draw: st.DrawFn) -> list[SessionFrame]:
    spans: list[Span] = []
    for trace_id in range(1, draw(st.integers(1, 3)) + 1):
        clock = Clock(trace_id)
        clock.end(clock.spans[0], draw(agents(clock, clock.spans[0], 0, 1)) + draw(st.integers(0, 9)))
        spans += clock.spans
    return session_frames(spans)


fractions = st.fractions(min_value=Fraction(1, 1000), max_value=10**4, max_denominator=1000)


@st.composite
def benchmarks(draw: st.DrawFn) -> Benchmark:
    """Split or not, with acceptance or not, with parts of its wait or not."""
    ttft = draw(fractions)
    more: dict[str, object] = {
        "output_length": measured(draw(st.integers(1, 2000))),
        "ttft_ns": measured(ttft),
        "tpot_ns": draw(st.sampled_from([measured(draw(fractions)), measured(0), ABSENT])),
        "throughput_tok_s": measured(draw(fractions)),
        "acceptance_length": draw(st.sampled_from([ABSENT, measured(draw(fractions)), measured(1)])),
    }
    if draw(st.booleans()):
        more["wait_parts_ns"] = draw(
            st.dictionaries(st.sampled_from(["connect", "network", "queue", "prefill", "gateway"]), fractions)
        )
    return raw(**more)  # type: ignore[arg-type]


def bridge_of(sessions: list[SessionFrame], benchmark: Benchmark) -> Bridge:
    try:
        return build_bridge(sessions, benchmark)
    except InputError:
        assume(False)
        raise


def check_parts(row: Row) -> None:
    assert type(row.ns) is Fraction
    if row.parts:
        assert sum(part.ns for part in row.parts) == row.ns
    for part in row.parts:
        check_parts(part)


def check(bridge: Bridge) -> None:
    assert sum(row.ns for row in bridge.rows) == bridge.agent_ns - bridge.benchmark_ns
    rows = {row.key: row.ns for row in bridge.rows}
    assert len(rows) == len(bridge.rows)
    assert rows["overlap"] <= 0
    for row in bridge.rows:
        check_parts(row)
    for one in bridge.counterfactuals:
        assert one.tok_s > bridge.agent_tok_s


@settings(max_examples=120, deadline=None)
@given(runs(), benchmarks())
def test_rows_add_up_to_the_difference(sessions: list[SessionFrame], benchmark: Benchmark) -> None:
    check(bridge_of(sessions, benchmark))


@settings(max_examples=80, deadline=None)
@given(st.one_of(traces(), agent_like_traces()), benchmarks())
def test_rows_add_up_on_any_tree(spans: list[Span], benchmark: Benchmark) -> None:
    sessions = session_frames(spans)
    has_tokens = any(call.output_tokens for session in sessions for call in session.finished_calls)
    if has_tokens and any(session.wall_ns for session in sessions):
        check(build_bridge(sessions, benchmark))


@st.composite
def one_after_another(draw: st.DrawFn) -> list[SessionFrame]:
    clock, at = Clock(1), 0
    step = clock.add(clock.spans[0], "step 1", 0, 0)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(calls(clock, step, at + draw(st.integers(0, 9))))
    clock.end(step, at)
    clock.end(clock.spans[0], at)
    return session_frames(clock.spans)


@settings(max_examples=80, deadline=None)
@given(one_after_another(), benchmarks())
def test_calls_one_after_another_have_no_overlap(sessions: list[SessionFrame], benchmark: Benchmark) -> None:
    bridge = bridge_of(sessions, benchmark)
    check(bridge)
    assert {row.ns for row in bridge.rows if row.key == "overlap"} == {0}


@settings(max_examples=100, deadline=None)
@given(st.one_of(runs(), st.builds(session_frames, st.one_of(traces(), agent_like_traces()))))
def test_rescheduling_with_nothing_changed_changes_nothing(sessions: list[SessionFrame]) -> None:
    for session in sessions:
        assert rescheduled_ns(session.tree, lambda _span, ns: ns) == session.wall_ns


@settings(max_examples=80, deadline=None)
@given(runs())
def test_doubling_everything_doubles_the_session_and_nothing_takes_none(sessions: list[SessionFrame]) -> None:
    for session in sessions:
        assert rescheduled_ns(session.tree, lambda _span, ns: 2 * ns) == 2 * session.wall_ns
        assert rescheduled_ns(session.tree, lambda _span, _ns: 0) == 0


@settings(max_examples=80, deadline=None)
@given(runs())
def test_tools_at_zero_save_at_most_their_row(sessions: list[SessionFrame]) -> None:
    def without(span: Span, ns: int) -> int:
        return 0 if span.name.startswith("execute_tool") else ns

    for session in sessions:
        new_ns = rescheduled_ns(session.tree, without)
        assert session.wall_ns - (session.ledger.rows["tool"] or 0) <= new_ns <= session.wall_ns
