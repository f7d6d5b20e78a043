"""Span trees written by hand: times in milliseconds from the start of the session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentprof import semconv
from agentprof.analysis.frames import SessionFrame, session_frames
from agentprof.records.spans import Span, SpanKind, SpanRef

MS = 1_000_000


@dataclass
class Trace:
    """Collects the spans of one trace; ids count up."""

    trace_id: int = 1
    spans: list[Span] = field(default_factory=list)

    def add(
        self,
        parent: SpanRef | None,
        name: str,
        start_ms: float,
        end_ms: float,
        attributes: dict[str, Any] | None = None,
        *,
        error: str | None = None,
        kind: SpanKind = "internal",
    ) -> SpanRef:
        """Add a span, and give the reference that its children need."""
        ref = SpanRef(self.trace_id, len(self.spans) + 1)
        start_ns, end_ns = round(start_ms * MS), round(end_ms * MS)
        self.spans.append(Span(ref, parent, name, start_ns, end_ns, kind, attributes or {}, error))
        return ref

    def session(self) -> SessionFrame:
        """The only session of the trace."""
        (frame,) = session_frames(self.spans)
        return frame

    def ledger_ms(self) -> dict[str, float | None]:
        """The ledger in milliseconds, zeros left out, after checking that it adds up."""
        frame = self.session()
        rows = frame.ledger.rows
        assert sum(ns or 0 for ns in rows.values()) == frame.wall_ns
        assert all(ns is None or ns >= 0 for ns in rows.values())
        return {row: ns / MS for row, ns in rows.items() if ns}


def add_call(
    trace: Trace,
    parent: SpanRef,
    start_ms: float,
    attributes: dict[str, Any] | None = None,
    *,
    first: float,
    last: float,
) -> SpanRef:
    """A call that streams: 1 ms connect, 1 ms send, first and last token at the given times, 1 ms tail."""
    figures = {
        semconv.TTFT_NS: round((first - start_ms) * MS),
        semconv.OUTPUT_TOKENS: 11,
        semconv.OUTPUT_TOKENS_SOURCE: "server",
        semconv.FIRST_READ_TOKENS: 1,
    }
    chat = trace.add(parent, "chat small", start_ms, last + 1, figures | (attributes or {}), kind="client")
    trace.add(chat, "connect", start_ms, start_ms + 1)
    trace.add(chat, "send", start_ms + 1, start_ms + 2)
    trace.add(chat, "first_token_wait", start_ms + 2, first)
    trace.add(chat, "decode", first, last)
    trace.add(chat, "tail", last, last + 1)
    return chat
