"""One call to the model: the figures of its `chat` span and of the spans below it (docs/metrics.md, "One call")."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentprof import semconv
from agentprof.analysis import attributes
from agentprof.analysis.tree import WIRE_LEAVES, Tree, is_failed, rest_of, word_of
from agentprof.records.spans import Span, SpanRef

BUFFERED = "buffered"
SHORT_OF_FORCED_LENGTH = "short_of_forced_length"
ESTIMATED = "estimated_tokens"
COUNTED = "counted"
LATE_DELTA = "late_delta"
BURSTS = "bursts"  # followed by their size, as in bursts:65

DECODE_PARTS = {
    "reasoning": semconv.DECODE_REASONING_NS,
    "answer": semconv.DECODE_ANSWER_NS,
    "tool_call": semconv.DECODE_TOOL_CALL_NS,
    "hidden": semconv.DECODE_HIDDEN_NS,
}
"""What decode time is split by, and the attribute that holds each part."""


_REPORTED = {
    "network": semconv.RTT_NS,
    "gateway": semconv.GATEWAY_NS,
    "queue": semconv.QUEUE_NS,
    "prefill": semconv.PREFILL_NS,
}


@dataclass(frozen=True, slots=True)
class CallError:
    """Why a call failed for good: a short word, and a sentence."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What the server says of one call; None where it says nothing. `source` names the report."""

    source: str | None
    queue_ns: int | None
    prefill_ns: int | None
    decode_ns: int | None
    prefilled_tokens: int | None
    draft_tokens: int | None
    accepted_draft_tokens: int | None
    decode_steps: int | None


@dataclass(frozen=True, slots=True)
class CallFrame:
    """The figures of one call. Times in nanoseconds; None means not measured.

    decode_parts_ns: decode time by what the tokens were. retry_ns: failed attempts and their back-off. wait_ns: the
    `first_token_wait` span. first_read_tokens: n₁, the tokens of the first read that carried any. rows: the ledger
    rows that this call measures, whether or not it spent time in them. `arguments` in tool_calls are parsed; None
    where they aren't a JSON object.
    """

    ref: SpanRef
    start_ns: int
    end_ns: int
    model: str | None
    step: int | None
    wall_ns: int
    pool_wait_ns: int | None
    connect_ns: int | None
    send_ns: int | None
    wait_ns: int | None
    ttft_ns: int | None
    ttfo_ns: int | None
    first_event_ns: int | None
    decode_ns: int | None
    decode_parts_ns: Mapping[str, int]
    generation_ns: int | None
    tail_ns: int | None
    retry_ns: int | None
    rtt_ns: int | None
    gateway_ns: int | None
    server: ServerReport
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    output_tokens_source: str | None
    reasoning_tokens: int | None
    first_read_tokens: int | None
    forced_tokens: int | None
    peak_interval_tok_s: float | None
    finish: str | None
    tool_calls: tuple[Mapping[str, Any], ...]
    attempts: int
    error: CallError | None
    flags: tuple[str, ...]
    rows: frozenset[str]

    @property
    def is_unsplit(self) -> bool:
        """Whether its generation can't be split: buffered, or no token event at all."""
        return BUFFERED in self.flags or self.generation_ns is not None

    @property
    def is_estimated(self) -> bool:
        """Whether its token figures rest on counted token events."""
        return self.output_tokens_source == COUNTED or ESTIMATED in self.flags

    @property
    def decoded_tokens(self) -> int | None:
        """Tokens that arrived after the first read, n − n₁: what the decode time brought.

        None where the call failed or has no decode time above zero.
        """
        if self.error or not self.decode_ns or self.output_tokens is None or self.first_read_tokens is None:
            return None
        return max(0, self.output_tokens - self.first_read_tokens)

    @property
    def excess_ns(self) -> int:
        """By how much the times that gateway and server report exceed the wait that they lie in."""
        if self.wait_ns is None:
            return 0
        reported = (self.gateway_ns, self.server.queue_ns, self.server.prefill_ns)
        return max(0, sum(part or 0 for part in reported) - self.wait_ns)


def call_frames(tree: Tree) -> tuple[CallFrame, ...]:
    """The calls of a session, sub-agents included, in order of start."""
    chats = sorted(tree.all(semconv.CHAT), key=lambda span: (span.start_ns, span.end_ns, span.ref.span_id))
    return tuple(_call_frame(tree, chat) for chat in chats)


def _call_frame(tree: Tree, chat: Span) -> CallFrame:
    below = [*tree.below(chat)]
    for attempt in tree.below(chat):
        below.extend(tree.below(attempt))
    times = _times(below)
    attempts = attributes.size(chat, semconv.ATTEMPTS) or max(
        1, sum(word_of(span) == semconv.ATTEMPT for span in below)
    )
    pool_wait_ns = attributes.size(chat, semconv.POOL_WAIT_NS)
    connect_ns = times.get(semconv.CONNECT)
    finishes = attributes.words(chat, semconv.FINISH_REASONS)
    return CallFrame(
        ref=chat.ref,
        start_ns=chat.start_ns,
        end_ns=chat.end_ns,
        model=attributes.text(chat, semconv.REQUEST_MODEL) or rest_of(chat) or None,
        step=_step(tree, chat),
        wall_ns=max(0, chat.duration_ns),
        pool_wait_ns=pool_wait_ns,
        connect_ns=None if connect_ns is None else max(0, connect_ns - (pool_wait_ns or 0)),
        send_ns=times.get(semconv.SEND),
        wait_ns=times.get(semconv.FIRST_TOKEN_WAIT),
        ttft_ns=attributes.size(chat, semconv.TTFT_NS),
        ttfo_ns=attributes.size(chat, semconv.TTFO_NS),
        first_event_ns=attributes.size(chat, semconv.FIRST_EVENT_NS),
        decode_ns=_decode_ns(chat, times),
        decode_parts_ns=_decode_parts(chat),
        generation_ns=times.get(semconv.GENERATION),
        tail_ns=times.get(semconv.TAIL),
        retry_ns=_retry_ns(below, attempts),
        rtt_ns=attributes.size(chat, semconv.RTT_NS),
        gateway_ns=attributes.size(chat, semconv.GATEWAY_NS),
        server=_server_report(chat),
        prompt_tokens=attributes.size(chat, semconv.INPUT_TOKENS),
        cached_tokens=attributes.size(chat, semconv.CACHED_TOKENS),
        output_tokens=attributes.size(chat, semconv.OUTPUT_TOKENS),
        output_tokens_source=attributes.text(chat, semconv.OUTPUT_TOKENS_SOURCE),
        reasoning_tokens=attributes.size(chat, semconv.REASONING_TOKENS),
        first_read_tokens=attributes.size(chat, semconv.FIRST_READ_TOKENS),
        forced_tokens=attributes.size(chat, semconv.FORCED_TOKENS),
        peak_interval_tok_s=attributes.number(chat, semconv.PEAK_INTERVAL_TOK_S),
        finish=finishes[0] if finishes else None,
        tool_calls=_tool_calls(chat),
        attempts=attempts,
        error=_error(chat),
        flags=attributes.words(chat, semconv.FLAGS),
        rows=_rows(chat, times, has_attempts=len(tree.below(chat)) > 0),
    )


def _times(spans: Sequence[Span]) -> dict[str, int]:
    """Nanoseconds by kind of leaf, for the kinds that are there."""
    times: dict[str, int] = {}
    for span in spans:
        word = word_of(span)
        if word in WIRE_LEAVES:
            times[word] = times.get(word, 0) + max(0, span.duration_ns)
    return times


def _decode_ns(chat: Span, times: Mapping[str, int]) -> int | None:
    """First token event to last; 0 where they are the same one, None where generation can't be split."""
    if BUFFERED in attributes.words(chat, semconv.FLAGS) or semconv.GENERATION in times:
        return None
    has_token = semconv.FIRST_TOKEN_WAIT in times and attributes.size(chat, semconv.TTFT_NS) is not None
    return times.get(semconv.DECODE, 0 if has_token else None)


def _step(tree: Tree, chat: Span) -> int | None:
    number = attributes.size(chat, semconv.STEP_NUMBER)
    above = tree.nearest(chat, semconv.STEP)
    if number is not None or above is None:
        return number
    number = attributes.size(above, semconv.STEP_NUMBER)
    rest = rest_of(above)
    return int(rest) if number is None and rest.isdecimal() else number


def _retry_ns(spans: Sequence[Span], attempts: int) -> int | None:
    parts = [
        max(0, span.duration_ns)
        for span in spans
        if word_of(span) == semconv.BACKOFF or (word_of(span) == semconv.ATTEMPT and is_failed(span))
    ]
    return sum(parts) if parts or attempts == 1 else None


def _server_report(chat: Span) -> ServerReport:
    return ServerReport(
        source=attributes.text(chat, semconv.SERVER_SOURCE),
        queue_ns=attributes.size(chat, semconv.QUEUE_NS),
        prefill_ns=attributes.size(chat, semconv.PREFILL_NS),
        decode_ns=attributes.size(chat, semconv.SERVER_DECODE_NS),
        prefilled_tokens=attributes.size(chat, semconv.PREFILLED_TOKENS),
        draft_tokens=attributes.size(chat, semconv.DRAFT_TOKENS),
        accepted_draft_tokens=attributes.size(chat, semconv.ACCEPTED_TOKENS),
        decode_steps=attributes.size(chat, semconv.DECODE_STEPS),
    )


def _tool_calls(chat: Span) -> tuple[Mapping[str, Any], ...]:
    try:
        calls = json.loads(attributes.text(chat, semconv.TOOL_CALLS) or "[]")
    except ValueError:
        return ()
    return tuple(
        {"name": call.get("name"), "arguments": _parsed(call.get("arguments"))}
        for call in (calls if isinstance(calls, list) else ())
        if isinstance(call, dict)
    )


def _parsed(arguments: object) -> dict[str, Any] | None:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    return arguments if isinstance(arguments, dict) else None


def _error(chat: Span) -> CallError | None:
    if not is_failed(chat):
        return None
    kind = attributes.text(chat, semconv.ERROR_KIND) or attributes.text(chat, semconv.ERROR_TYPE) or "failed"
    return CallError(kind, attributes.text(chat, semconv.ERROR_MESSAGE) or chat.error or "")


def _decode_parts(chat: Span) -> dict[str, int]:
    sizes = {part: attributes.size(chat, name) for part, name in DECODE_PARTS.items()}
    return {part: ns for part, ns in sizes.items() if ns is not None}


def _rows(chat: Span, times: Mapping[str, int], *, has_attempts: bool) -> frozenset[str]:
    """The ledger rows that a call measures: those whose number would be its own even if it were 0.

    A call that failed in every attempt measures all that the wire can see: its time is in `retry`, and known to be.
    """
    if not times:
        return frozenset(WIRE_LEAVES - {semconv.SEND} | {"network"}) if has_attempts else frozenset()
    rows = (set(times) - {semconv.SEND}) | {semconv.TAIL}
    if semconv.SEND in times:
        rows.add("network")
    if semconv.FIRST_TOKEN_WAIT in times:
        rows |= {semconv.DECODE, semconv.GENERATION}
        rows.update(row for row, name in _REPORTED.items() if attributes.size(chat, name) is not None)
    return frozenset(rows)
