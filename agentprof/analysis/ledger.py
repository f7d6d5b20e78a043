"""The ledger: each instant of a session's wall time in exactly one row (docs/metrics.md, "The ledger").

The critical path is walked back from the end of the session. Of the spans that start before the cursor, the one that
finishes last owns the time up to the cursor; inside it the same rule holds; then the cursor moves to its start. Where
nothing is left to walk into, the time belongs to the span itself: a row if it is a leaf, `unattributed` if not.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentprof import semconv
from agentprof.analysis import attributes
from agentprof.analysis.calls import DECODE_PARTS, CallFrame
from agentprof.analysis.tree import LOOP_LEAVES, WIRE_LEAVES, Tree, is_failed, rest_of, word_of
from agentprof.records.spans import Span

LEDGER_ROWS = (
    "connect",
    "network",
    "gateway",
    "queue",
    "prefill",
    "first_token_wait",
    "decode",
    "generation",
    "tail",
    "retry",
    "tool",
    "agent",
    "think",
    "unattributed",
)
"""All keys of a ledger, in the order in which they are printed."""

MODEL_ROWS = LEDGER_ROWS[:10]
"""The rows whose sum is the model time."""

REPORTED_ROWS = ("gateway", "queue", "prefill")
"""The rows that a gateway or a server must report: a client can't see them."""

_ROW_OF = {
    semconv.CONNECT: "connect",
    semconv.SEND: "network",
    semconv.DECODE: "decode",
    semconv.GENERATION: "generation",
    semconv.TAIL: "tail",
    semconv.BACKOFF: "retry",
    semconv.EXECUTE_TOOL: "tool",
    semconv.THINK: "think",
    **dict.fromkeys(LOOP_LEAVES, "agent"),
}

_CONNECT_PARTS = {"dns": semconv.DNS_NS, "tcp": semconv.TCP_NS, "tls": semconv.TLS_NS}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the critical path, and the innermost span that owns it."""

    span: Span
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the wall time of a session went, in nanoseconds.

    rows: one entry for each of LEDGER_ROWS; None where the row can't be measured here; the numbers add up to
    `wall_ns`. splits: parts of some rows, on the critical path; they may add up to less than their row.
    """

    wall_ns: int
    rows: Mapping[str, int | None]
    splits: Mapping[str, Mapping[str, int | None]]

    @property
    def model_time_ns(self) -> int:
        """Connect, network, gateway, queue, prefill, first-token wait, decode, generation, tail and retry together."""
        return sum(self.rows[row] or 0 for row in MODEL_ROWS)


def critical_path(tree: Tree) -> list[Segment]:
    """Segments that cover the session's span without gap or overlap, in order of time."""
    root = tree.root
    segments: list[Segment] = []
    waiting = [Segment(root, root.start_ns, max(root.start_ns, root.end_ns))]
    while waiting:
        owned = waiting.pop()
        for part in _owners(tree, owned):
            (segments if part.span is owned.span else waiting).append(part)
    return sorted(segments, key=lambda segment: segment.start_ns)


def _owners(tree: Tree, owned: Segment) -> Iterator[Segment]:
    """Divide what a span owns between the spans directly below it and, where none is left, itself."""
    inside = [
        span for span in tree.below(owned.span) if max(span.start_ns, owned.start_ns) < min(span.end_ns, owned.end_ns)
    ]
    by_end = sorted(inside, key=lambda span: span.end_ns)
    running: list[tuple[int, int, int, Span]] = []  # those that end at the cursor or later: the last finisher first
    cursor = owned.end_ns
    while cursor > owned.start_ns:
        while by_end and by_end[-1].end_ns >= cursor:
            span = by_end.pop()
            heapq.heappush(running, (-span.end_ns, span.start_ns, span.ref.span_id, span))
        while running and running[0][1] >= cursor:
            heapq.heappop(running)
        if running:
            span = heapq.heappop(running)[-1]
            start_ns = max(span.start_ns, owned.start_ns)
            yield Segment(span, start_ns, cursor)
        else:
            start_ns = max(by_end[-1].end_ns, owned.start_ns) if by_end else owned.start_ns
            yield Segment(owned.span, start_ns, cursor)
        cursor = start_ns


def build_ledger(tree: Tree, calls: Sequence[CallFrame]) -> Ledger:
    """The ledger of one session; `calls` are its call frames, which say what can be measured here."""
    spent = dict.fromkeys(LEDGER_ROWS, 0)
    parts: dict[str, dict[str, int]] = {"connect": {}, "decode": {}, "tool": {}, "agent": {}}
    call_of = {call.ref: call for call in calls}
    for segment in critical_path(tree):
        chat = tree.nearest(segment.span, semconv.CHAT) if word_of(segment.span) in WIRE_LEAVES else None
        call = call_of[chat.ref] if chat else None
        for row, ns in _rows_of(segment, call):
            spent[row] += ns
        for row, part, ns in _parts_of(segment, call):
            parts[row][part] = parts[row].get(part, 0) + ns
    measured = _measured(tree, calls)
    rows = {row: ns if ns or row in measured else None for row, ns in spent.items()}
    return Ledger(max(0, tree.root.duration_ns), rows, _splits(parts, rows, calls))


def _measured(tree: Tree, calls: Sequence[CallFrame]) -> set[str]:
    """The rows whose 0 means that nothing was spent; any other row without time is not measured here."""
    measured = {"retry", "tool", "think", "unattributed"}
    if not calls:
        measured.update(MODEL_ROWS)
    for call in calls:
        measured |= call.rows
    loop_spans = any(True for word in LOOP_LEAVES for _ in tree.all(word))
    if loop_spans or not (calls or any(True for _ in tree.all(semconv.EXECUTE_TOOL))):
        measured.add("agent")
    return measured


def _splits(
    parts: Mapping[str, Mapping[str, int]], rows: Mapping[str, int | None], calls: Sequence[CallFrame]
) -> dict[str, dict[str, int | None]]:
    """The splits with all their keys: 0 where nothing was spent, None where it isn't measured."""
    known: dict[str, dict[str, bool]] = {
        "connect": {
            "pool_wait": any(call.pool_wait_ns is not None for call in calls),
            **dict.fromkeys(_CONNECT_PARTS, rows["connect"] is not None),
        },
        "decode": dict.fromkeys(DECODE_PARTS, any(call.decode_parts_ns for call in calls)),
        "agent": dict.fromkeys(sorted(LOOP_LEAVES), rows["agent"] is not None),
    }
    splits: dict[str, dict[str, int | None]] = {
        row: {part: parts[row].get(part, 0 if is_known else None) for part, is_known in keys.items()}
        for row, keys in known.items()
    }
    splits["tool"] = {
        name: parts["tool"][name] for name in sorted(parts["tool"], key=lambda name: (-parts["tool"][name], name))
    }
    return splits


def _rows_of(segment: Segment, call: CallFrame | None) -> Iterator[tuple[str, int]]:
    """The rows that a segment's time goes to; their nanoseconds add up to its length."""
    span, length = segment.span, segment.end_ns - segment.start_ns
    word = word_of(span)
    if word == semconv.ATTEMPT and is_failed(span):
        yield "retry", length
    elif word == semconv.FIRST_TOKEN_WAIT and call is not None:
        parts = {
            "network": call.rtt_ns,
            "gateway": call.gateway_ns,
            "queue": call.server.queue_ns,
            "prefill": call.server.prefill_ns,
        }
        explained = _overlaps(segment, parts)
        yield from explained.items()
        yield "first_token_wait", length - sum(explained.values())
    else:
        yield _ROW_OF.get(word, "unattributed"), length


def _parts_of(segment: Segment, call: CallFrame | None) -> Iterator[tuple[str, str, int]]:
    """The splits that a segment's time goes to: row, part, nanoseconds."""
    span, length = segment.span, segment.end_ns - segment.start_ns
    word = word_of(span)
    if word == semconv.EXECUTE_TOOL:
        yield "tool", attributes.text(span, semconv.TOOL_NAME) or rest_of(span) or "unnamed", length
    elif word in LOOP_LEAVES:
        yield "agent", word, length
    elif word == semconv.CONNECT:
        waited_ns = attributes.size(span, semconv.POOL_WAIT_NS)
        phases = {"pool_wait": call.pool_wait_ns if call and waited_ns is None else waited_ns}
        phases |= {part: attributes.size(span, name) for part, name in _CONNECT_PARTS.items()}
        yield from (("connect", part, ns) for part, ns in _overlaps(segment, phases).items())
    elif word == semconv.DECODE and call is not None:
        yield from (("decode", part, ns) for part, ns in _shares(segment, call.decode_parts_ns).items())


def _overlaps(segment: Segment, parts: Mapping[str, int | None]) -> dict[str, int]:
    """Nanoseconds of each part inside a segment, the parts laid end to end from the start of the segment's span.

    Parts that exceed the span together are cut from the first on: the first is the round trip (an estimate) or
    the pool wait, the last what was measured closest to the work. A part that is None is left out.
    """
    span = segment.span
    room = span.duration_ns
    lengths: dict[str, int] = {}
    for part in reversed(list(parts)):
        ns = parts[part]
        if ns is not None:
            lengths[part] = min(ns, room)
            room -= lengths[part]
    inside: dict[str, int] = {}
    start_ns = span.start_ns
    for part in reversed(list(lengths)):
        end_ns = start_ns + lengths[part]
        inside[part] = max(0, min(end_ns, segment.end_ns) - max(start_ns, segment.start_ns))
        start_ns = end_ns
    return inside


def _shares(segment: Segment, parts: Mapping[str, int]) -> dict[str, int]:
    """Parts of a span in proportion to what a segment owns of it: kinds of tokens alternate, so none has a place.

    Rounding never makes them exceed the segment.
    """
    whole, owned = segment.span.duration_ns, segment.end_ns - segment.start_ns
    shares: dict[str, int] = {}
    reached = 0
    for part, ns in parts.items():
        before, reached = reached, min(whole, reached + ns)
        shares[part] = reached * owned // whole - before * owned // whole
    return shares
