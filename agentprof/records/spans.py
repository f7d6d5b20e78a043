"""Spans as values, and the protocol through which the loop and the wire report what happened.

Spans are reported when they have ended: an id is reserved first where children or a `traceparent` header need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

AttributeValue = str | bool | int | float | Sequence[str]
SpanKind = Literal["internal", "client", "server", "producer", "consumer"]


@dataclass(frozen=True, slots=True)
class SpanRef:
    """The identity of a span: 128-bit trace id and 64-bit span id."""

    trace_id: int
    span_id: int

    @property
    def traceparent(self) -> str:
        """The W3C `traceparent` header, sampled."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span. Times are nanoseconds on one clock; only their differences mean anything.

    `parent` is None for a root. `error` is None, or the message of a span that failed.
    """

    ref: SpanRef
    parent: SpanRef | None
    name: str
    start_ns: int
    end_ns: int
    kind: SpanKind = "internal"
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    error: str | None = None

    @property
    def duration_ns(self) -> int:
        """Length in nanoseconds."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When the token events of one attempt arrived: for charts; the spans' times are the authority.

    Lists run in parallel, one entry per token event. `at_us`: µs from the attempt's start. `kinds`: one letter each,
    `r` reasoning, `c` content, `t` tool call, `h` hidden (usage grew, nothing shown). `tokens`: tokens of the event,
    None where the server didn't say. `reads`: index of the socket read that brought the event.
    """

    span: SpanRef
    attempt: int
    at_us: Sequence[int]
    kinds: str
    tokens: Sequence[int | None]
    reads: Sequence[int]


class Recorder(Protocol):
    """Takes what happened in one session. Implemented by `runs` on OpenTelemetry, and by lists in tests."""

    def reserve(self) -> SpanRef:
        """A new id in this session's trace, for a span that will be added once it has ended."""
        ...

    def add(self, span: Span) -> None:
        """Record a finished span."""
        ...

    def add_arrivals(self, arrivals: Arrivals) -> None:
        """Record the token arrivals of one attempt."""
        ...

    def add_content(self, span: SpanRef, kind: str, content: object) -> None:
        """Record prompts, completions or tool output; kept only where the run captures content."""
        ...


@dataclass(slots=True)
class ListRecorder:
    """A recorder that keeps everything in lists; ids count up. Used for pings, whose spans are dropped, and tests."""

    trace_id: int = 1
    spans: list[Span] = field(default_factory=list)
    arrivals: list[Arrivals] = field(default_factory=list)
    contents: list[tuple[SpanRef, str, object]] = field(default_factory=list)
    _last_id: int = 0

    def reserve(self) -> SpanRef:
        """The next id."""
        self._last_id += 1
        return SpanRef(self.trace_id, self._last_id)

    def add(self, span: Span) -> None:
        """Keep a span."""
        self.spans.append(span)

    def add_arrivals(self, arrivals: Arrivals) -> None:
        """Keep arrivals."""
        self.arrivals.append(arrivals)

    def add_content(self, span: SpanRef, kind: str, content: object) -> None:
        """Keep content."""
        self.contents.append((span, kind, content))
