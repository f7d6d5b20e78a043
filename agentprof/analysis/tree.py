"""The spans of one session as a tree of those that take part in its ledger.

A span takes part when its name is one of ours and it stands where ours stand. A server's or gateway's own spans, which
join the trace through `traceparent`, take no part, nor does anything below them: they overlap what the client measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentprof import semconv
from agentprof.records.spans import Span, SpanRef

_NAMED = frozenset({semconv.INVOKE_AGENT, semconv.STEP, semconv.CHAT, semconv.ATTEMPT, semconv.EXECUTE_TOOL})
"""Names that are followed by a space and a word."""

LOOP_LEAVES = frozenset({semconv.PREPARE, semconv.PARSE, semconv.DISPATCH})
WIRE_LEAVES = frozenset(
    {
        semconv.CONNECT,
        semconv.SEND,
        semconv.FIRST_TOKEN_WAIT,
        semconv.DECODE,
        semconv.GENERATION,
        semconv.TAIL,
    }
)
_WORK = frozenset({semconv.INVOKE_AGENT, semconv.STEP, semconv.CHAT, semconv.EXECUTE_TOOL, semconv.THINK})

_MAY_HOLD: Mapping[str, frozenset[str]] = {
    semconv.INVOKE_AGENT: _WORK | LOOP_LEAVES,
    semconv.STEP: _WORK | LOOP_LEAVES,
    semconv.EXECUTE_TOOL: frozenset({semconv.INVOKE_AGENT, semconv.CHAT, semconv.EXECUTE_TOOL}),
    semconv.CHAT: WIRE_LEAVES | {semconv.ATTEMPT, semconv.BACKOFF},
    semconv.ATTEMPT: WIRE_LEAVES,
}

_WORDS = LOOP_LEAVES | WIRE_LEAVES | _WORK | {semconv.ATTEMPT, semconv.BACKOFF}


def word_of(span: Span) -> str:
    """The part of a span's name that says what it is (`chat`, `step`, `decode`); empty for a name that isn't ours."""
    head, _, _ = span.name.partition(" ")
    word = head if head in _NAMED else span.name
    return word if word in _WORDS else ""


def rest_of(span: Span) -> str:
    """What follows the word in a span's name: a tool, a model, a scenario; empty where nothing does."""
    return span.name.partition(" ")[2]


def is_failed(span: Span) -> bool:
    """Whether the span says that what it measured failed."""
    return span.error is not None or semconv.ERROR_KIND in span.attributes


@dataclass(frozen=True, slots=True)
class Tree:
    """One session: its `invoke_agent` span, and below each span the spans that take part, in order of start."""

    root: Span
    children: Mapping[SpanRef, Sequence[Span]]
    parents: Mapping[SpanRef, Span]

    def below(self, span: Span) -> Sequence[Span]:
        """The spans directly below one."""
        return self.children.get(span.ref, ())

    def nearest(self, span: Span, word: str) -> Span | None:
        """The closest span above that is of a kind; None where there is none."""
        above = self.parents.get(span.ref)
        while above is not None and word_of(above) != word:
            above = self.parents.get(above.ref)
        return above

    def all(self, word: str) -> Iterator[Span]:
        """Every span of a kind that takes part, in no particular order."""
        for spans in self.children.values():
            yield from (span for span in spans if word_of(span) == word)


def _identity(span: Span) -> tuple[int, int, str]:
    return span.ref.trace_id, span.ref.span_id, span.name


def in_order(spans: Iterable[Span]) -> list[Span]:
    """Spans by start, then end, then id: the same whatever order they were written in. A repeated id is kept once."""
    kept: dict[SpanRef, Span] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns, *_identity(span))):
        kept.setdefault(span.ref, span)
    return list(kept.values())


def trees(spans: Sequence[Span]) -> list[Tree]:
    """One tree for each `invoke_agent` span of one trace that isn't a sub-agent; `spans` as `in_order` gives them."""
    by_ref = {span.ref: span for span in spans}
    by_parent: defaultdict[SpanRef, list[Span]] = defaultdict(list)
    for span in spans:
        if span.parent is not None:
            by_parent[span.parent].append(span)
    agents = [span for span in spans if word_of(span) == semconv.INVOKE_AGENT]
    return [_grow(span, by_parent) for span in agents if not _is_sub_agent(span, by_ref)]


def _is_sub_agent(span: Span, by_ref: Mapping[SpanRef, Span]) -> bool:
    seen = {span.ref}
    above = by_ref.get(span.parent) if span.parent else None
    while above is not None and above.ref not in seen:
        if word_of(above) == semconv.INVOKE_AGENT:
            return True
        seen.add(above.ref)
        above = by_ref.get(above.parent) if above.parent else None
    return False


def _grow(root: Span, by_parent: Mapping[SpanRef, Sequence[Span]]) -> Tree:
    children: dict[SpanRef, Sequence[Span]] = {}
    parents: dict[SpanRef, Span] = {}
    waiting = [root]
    while waiting:
        span = waiting.pop()
        held = [child for child in by_parent.get(span.ref, ()) if _takes_part(child, span) and child.ref != root.ref]
        children[span.ref] = held
        parents.update((child.ref, span) for child in held)
        waiting.extend(held)
    return Tree(root, children, parents)


def _takes_part(span: Span, parent: Span) -> bool:
    word = word_of(parent)
    if word == semconv.ATTEMPT and is_failed(parent):
        return False  # a failed attempt counts whole, whatever it did
    if word in {semconv.CHAT, semconv.ATTEMPT} and span.kind in {"server", "consumer"}:
        return False  # a server may name its own spans `decode` too
    return word_of(span) in _MAY_HOLD.get(word, frozenset())
