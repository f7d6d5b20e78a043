"""What the agent's rate would be if one thing cost less, the critical path recomputed (docs/bridge.md).

A session is scheduled again with some spans shortened. A span starts when the spans that had ended before it have
ended, plus the pause that was there; one that began while another ran keeps beginning beside it. Nothing else changes:
not the server's speed, not its load, not what the agent does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from agentprof import semconv
from agentprof.analysis.call_times import WAIT_LEAVES, CallTimes
from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.rates import per_second
from agentprof.analysis.tree import LOOP_LEAVES, Tree, is_failed, word_of
from agentprof.records.benchmark import Benchmark
from agentprof.records.spans import Span, SpanRef

SLACK_NS, SLACK_PARTS = 1_000_000, 100
"""Spans may overlap by 1 ms, at most a hundredth of the first, and still follow one another: stamps are rounded."""

Scale = Callable[[Span, int], int]
"""A span and nanoseconds that it owns itself: all of a leaf, a pause inside another. Gives the nanoseconds instead."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """The agent's rate with one thing at a floor. `key` names it; tok_s: output tokens per second of wall time."""

    key: str
    tok_s: float


def counterfactuals(
    sessions: Sequence[SessionFrame],
    calls: Mapping[SpanRef, Sequence[CallTimes]],
    benchmark: Benchmark,
    benchmark_ns: Fraction,
) -> tuple[Counterfactual, ...]:
    """One for each thing that took time, by how much it would change. They don't add up.

    calls: by the session's root span. Zero: tools, the agent's own work, pauses, retries, tails. At the benchmark's
    cost, for calls that exceed it: first-token waits, decode, unsplit generation. Half: decode.
    """
    tokens = sum(times.tokens for session in sessions for times in calls[session.tree.root.ref])
    wall_ns = sum(session.wall_ns for session in sessions)
    cases = [_Case(session.tree, calls[session.tree.root.ref], benchmark, benchmark_ns) for session in sessions]
    found = []
    for key, make in _SCALES.items():
        new_ns = sum(rescheduled_ns(case.tree, make(case)) for case in cases)
        rate = per_second(tokens, new_ns)
        if new_ns < wall_ns and rate is not None:
            found.append(Counterfactual(key, rate))
    return tuple(sorted(found, key=lambda one: -one.tok_s))


@dataclass(frozen=True, slots=True)
class _Case:
    """What a floor needs to know."""

    tree: Tree
    calls: Sequence[CallTimes]
    benchmark: Benchmark
    benchmark_ns: Fraction

    def chat_of(self, span: Span) -> SpanRef | None:
        chat = self.tree.nearest(span, semconv.CHAT)
        return chat.ref if chat else None


def _zero(applies: Callable[[Span], bool]) -> Callable[[_Case], Scale]:
    return lambda _case: lambda span, ns: 0 if applies(span) else ns


def _is_retry(span: Span) -> bool:
    return word_of(span) == semconv.BACKOFF or (word_of(span) == semconv.ATTEMPT and is_failed(span))


def _waits_as_benchmark(case: _Case) -> Scale:
    ttft = case.benchmark.ttft_ns.value if case.benchmark.is_split else None
    ratios = {
        times.call.ref: min(Fraction(1), ttft / times.wait_ns)
        for times in case.calls
        if ttft is not None and times.wait_ns
    }
    pool_ns = {times.call.ref: times.pool_wait_ns for times in case.calls}

    def scale(span: Span, ns: int) -> int:
        ref = case.chat_of(span) if word_of(span) in WAIT_LEAVES else None
        if ref not in ratios:
            return ns
        kept_ns = min(ns, pool_ns[ref]) if word_of(span) == semconv.CONNECT else 0
        return kept_ns + int((ns - kept_ns) * ratios[ref])

    return scale


def _decode_at(price: Callable[[CallTimes, _Case], Fraction | None]) -> Callable[[_Case], Scale]:
    def make(case: _Case) -> Scale:
        ratios = {}
        for times in case.calls:
            allowed_ns = price(times, case)
            if times.split_decode_ns and allowed_ns is not None:
                ratios[times.call.ref] = min(Fraction(1), allowed_ns / times.split_decode_ns)

        def scale(span: Span, ns: int) -> int:
            ref = case.chat_of(span) if word_of(span) == semconv.DECODE else None
            return int(ns * ratios[ref]) if ref in ratios else ns

        return scale

    return make


def _benchmark_decode(times: CallTimes, case: _Case) -> Fraction | None:
    tpot = case.benchmark.tpot_ns.value
    return times.decoded_tokens * tpot if tpot is not None and case.benchmark.is_split else None


def _half(times: CallTimes, _case: _Case) -> Fraction:
    return Fraction(times.split_decode_ns, 2)


def _generation_as_benchmark(case: _Case) -> Scale:
    """Waiting and decoding together at the benchmark's price: unsplit calls, and all where it has only one price."""
    ratios = {}
    for times in case.calls:
        own_ns = (
            times.unsplit_ns if case.benchmark.is_split else times.unsplit_ns + times.wait_ns + times.split_decode_ns
        )
        if own_ns:
            ratios[times.call.ref] = min(Fraction(1), times.tokens * case.benchmark_ns / own_ns)
    pool_ns = {times.call.ref: times.pool_wait_ns for times in case.calls}
    words = WAIT_LEAVES | {semconv.DECODE, semconv.GENERATION}

    def scale(span: Span, ns: int) -> int:
        ref = case.chat_of(span) if word_of(span) in words else None
        if ref not in ratios:
            return ns
        kept_ns = min(ns, pool_ns[ref]) if word_of(span) == semconv.CONNECT else 0
        return kept_ns + int((ns - kept_ns) * ratios[ref])

    return scale


_SCALES: Mapping[str, Callable[[_Case], Scale]] = {
    "tool": _zero(lambda span: word_of(span) == semconv.EXECUTE_TOOL),
    "first_token_waits": _waits_as_benchmark,
    "decode": _decode_at(_benchmark_decode),
    "decode_halved": _decode_at(_half),
    "generation": _generation_as_benchmark,
    "tail": _zero(lambda span: word_of(span) == semconv.TAIL),
    "retry": _zero(_is_retry),
    "agent": _zero(lambda span: word_of(span) in LOOP_LEAVES),
    "think": _zero(lambda span: word_of(span) == semconv.THINK),
}


def rescheduled_ns(tree: Tree, scale: Scale) -> int:
    """The session's wall time in nanoseconds with spans scaled; unchanged if `scale` changes nothing."""
    clipped = {tree.root.ref: (tree.root.start_ns, max(tree.root.start_ns, tree.root.end_ns))}
    order: list[tuple[Span, list[Span]]] = []
    waiting = [tree.root]
    while waiting:
        span = waiting.pop()
        start_ns, end_ns = clipped[span.ref]
        inside = []
        for child in tree.below(span):
            bounds = max(start_ns, child.start_ns), min(end_ns, child.end_ns)
            if bounds[0] <= bounds[1] and child.start_ns <= child.end_ns:
                clipped[child.ref] = bounds
                inside.append(child)
        order.append((span, inside))
        waiting.extend(inside)
    lengths: dict[SpanRef, int] = {}
    for span, inside in reversed(order):
        lengths[span.ref] = _length(span, inside, clipped, lengths, scale)
    return lengths[tree.root.ref]


def _length(
    span: Span,
    inside: Sequence[Span],
    clipped: Mapping[SpanRef, tuple[int, int]],
    lengths: Mapping[SpanRef, int],
    scale: Scale,
) -> int:
    """The new length of a span whose children have theirs."""
    start_ns, end_ns = clipped[span.ref]
    if not inside:
        return scale(span, end_ns - start_ns)
    in_order = sorted(inside, key=lambda child: (*clipped[child.ref], child.ref.span_id))
    followed = sorted(in_order, key=lambda child: (_followed_from(clipped[child.ref]), clipped[child.ref][0]))
    new_ends: dict[SpanRef, int] = {}
    ended, old_base, new_base = 0, start_ns, 0
    for child in in_order:
        child_start, _ = clipped[child.ref]
        while ended < len(followed) and _followed_from(clipped[followed[ended].ref]) <= child_start:
            ref = followed[ended].ref
            if ref not in new_ends:  # spans without length that begin together follow none of each other
                break
            old_base, new_base = max(old_base, clipped[ref][1]), max(new_base, new_ends[ref])
            ended += 1
        pause = child_start - old_base
        begins = new_base + (scale(span, pause) if pause > 0 else pause)
        new_ends[child.ref] = max(0, begins) + lengths[child.ref]
    pause = end_ns - max(clipped[child.ref][1] for child in inside)
    return max(new_ends.values()) + scale(span, pause)


def _followed_from(bounds: tuple[int, int]) -> int:
    """From when on a span that begins follows this one rather than running beside it."""
    start_ns, end_ns = bounds
    return end_ns - min(SLACK_NS, (end_ns - start_ns) // SLACK_PARTS)
