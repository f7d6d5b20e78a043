"""The spans of one call, written once it has ended, however it ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson

from agentprof import semconv
from agentprof.records.backend import Backend
from agentprof.records.call import CallResult, ChatRequest, Reply
from agentprof.records.spans import Arrivals, AttributeValue, Recorder, Span, SpanRef
from agentprof.wire import dialects
from agentprof.wire.assemble import assemble
from agentprof.wire.exchange import Exchange
from agentprof.wire.failures import Failure
from agentprof.wire.figures import CallFigures, measure

_CANCELLED = Failure("cancelled", "the session was cancelled or ran out of time", is_retryable=False)
_KIND_LETTER = {"reasoning": "r", "content": "c", "tool_call": "t", "hidden": "h"}


@dataclass(slots=True)
class Attempt:
    """One request of a call. `asked_ns`: handed to the openai client; the exchange knows when it reached the wire."""

    exchange: Exchange
    asked_ns: int
    end_ns: int | None = None
    reply: Reply | None = None
    figures: CallFigures | None = None
    failure: Failure | None = None

    @property
    def entered_ns(self) -> int:
        """When the request reached the transport."""
        return self.exchange.entered_ns if self.exchange.entered_ns is not None else self.asked_ns

    @property
    def start_ns(self) -> int:
        """Where TTFT starts: the attempt's start, its pool wait left out."""
        return self.entered_ns + self.exchange.pool_wait_ns

    def fail(self, failure: Failure, at_ns: int) -> None:
        """End the attempt with a failure."""
        self.failure = failure
        self.end_ns = at_ns

    def cut(self, at_ns: int, forced_tokens: int | None) -> None:
        """End the attempt because its session was cancelled or ran out of time, keeping what had arrived."""
        self.fail(_CANCELLED, self.end_ns if self.end_ns is not None else at_ns)
        self.reply = assemble(self.exchange.body, self.exchange.reads)
        self.figures = measure(
            self.reply, start_ns=self.start_ns, end_ns=self.end_ns or at_ns, forced_tokens=forced_tokens
        )

    @property
    def has_phases(self) -> bool:
        """Whether its time is told phase by phase: it succeeded, or we ended it; a failed one counts as a whole."""
        return self.failure is None or self.failure is _CANCELLED


@dataclass(slots=True)
class CallTrace:
    """One call with its attempts so far."""

    ref: SpanRef
    parent: SpanRef
    prepared_from_ns: int
    request: ChatRequest
    backend: Backend
    server: tuple[str, int]
    attempts: list[Attempt] = field(default_factory=list)
    cancelled_ns: int | None = None

    @property
    def failure(self) -> Failure | None:
        """Why the call failed: its last attempt's failure, unless it was cancelled."""
        if self.cancelled_ns is not None:
            return _CANCELLED
        return self.attempts[-1].failure

    def cancel(self, at_ns: int) -> None:
        """End the call because its session was cancelled or ran out of time; an open attempt ends with it."""
        self.cancelled_ns = at_ns
        if self.attempts and self.attempts[-1].figures is None and self.attempts[-1].failure is None:
            self.attempts[-1].cut(at_ns, self.request.forced_tokens)

    def result(self) -> CallResult:
        """The result of a call whose last attempt succeeded."""
        last = self.attempts[-1]
        if last.reply is None or last.figures is None or last.end_ns is None:
            raise AssertionError("a call without a failure has a reply and figures")
        figures = last.figures
        return CallResult(
            last.reply, figures.output_tokens, figures.is_estimated, last.end_ns, call_flags(last, figures)
        )


def call_flags(attempt: Attempt, figures: CallFigures) -> tuple[str, ...]:
    """The flags of a call: what its stream looked like, and what its connection did."""
    return (*figures.flags, *(("reconnected",) if attempt.exchange.reconnects else ()))


def record_call(trace: CallTrace, recorder: Recorder) -> None:
    """Write `prepare`, `chat` and everything below it."""
    if not trace.attempts:
        return
    first, last, failure = trace.attempts[0], trace.attempts[-1], trace.failure
    start_ns = first.entered_ns
    end_ns = last.end_ns if last.end_ns is not None else start_ns
    if trace.cancelled_ns is not None and not last.has_phases:  # while it waited for another attempt
        recorder.add(Span(recorder.reserve(), trace.ref, semconv.BACKOFF, end_ns, trace.cancelled_ns))
        end_ns = trace.cancelled_ns
    recorder.add(Span(recorder.reserve(), trace.parent, semconv.PREPARE, trace.prepared_from_ns, start_ns))
    has_retry = not all(attempt.has_phases for attempt in trace.attempts)
    for number, attempt in enumerate(trace.attempts, start=1):
        parent = trace.ref
        if has_retry:
            parent = _record_attempt(attempt, number, trace, recorder)
            if number > 1:
                _record_backoff(trace.attempts[number - 2], attempt, trace.ref, recorder)
        if attempt.has_phases:
            for span in _phases(attempt, parent, recorder):
                recorder.add(span)
        _record_arrivals(attempt, number, trace.ref, recorder)
    recorder.add(
        Span(
            trace.ref,
            trace.parent,
            f"{semconv.CHAT} {trace.backend.model}",
            start_ns,
            end_ns,
            "client",
            _attributes(trace),
            failure.message if failure else None,
        )
    )
    recorder.add_content(trace.ref, "request", {"messages": trace.request.messages, "tools": trace.request.tools})
    if last.reply is not None:
        recorder.add_content(
            trace.ref,
            "reply",
            {
                "content": last.reply.content,
                "reasoning": last.reply.reasoning,
                "tool_calls": [[call.name, call.arguments] for call in last.reply.tool_calls],
            },
        )


def _record_attempt(attempt: Attempt, number: int, trace: CallTrace, recorder: Recorder) -> SpanRef:
    ref = recorder.reserve()
    attributes: dict[str, AttributeValue] = {semconv.ATTEMPT_NUMBER: number}
    if attempt.failure is not None:
        attributes[semconv.ERROR_KIND] = attempt.failure.kind
        attributes[semconv.ERROR_TYPE] = attempt.failure.kind
        if attempt.failure.retry_after_ns is not None:
            attributes[semconv.RETRY_AFTER_NS] = attempt.failure.retry_after_ns
    if attempt.exchange.status is not None:
        attributes[semconv.HTTP_STATUS] = attempt.exchange.status
    end_ns = attempt.end_ns if attempt.end_ns is not None else attempt.entered_ns
    message = attempt.failure.message if attempt.failure and not attempt.has_phases else None
    recorder.add(
        Span(ref, trace.ref, f"{semconv.ATTEMPT} {number}", attempt.entered_ns, end_ns, "internal", attributes, message)
    )
    return ref


def _record_backoff(before: Attempt, after: Attempt, parent: SpanRef, recorder: Recorder) -> None:
    if before.end_ns is not None:
        recorder.add(Span(recorder.reserve(), parent, semconv.BACKOFF, before.end_ns, after.entered_ns))


def _phases(attempt: Attempt, parent: SpanRef, recorder: Recorder) -> Iterator[Span]:
    """The leaves of an attempt: each begins where the one before it ends, and one that was cut ends the last."""
    exchange, figures = attempt.exchange, attempt.figures
    if figures is None or attempt.end_ns is None:
        return
    unreached = attempt.entered_ns if attempt.failure is None else attempt.end_ns
    connected = exchange.connected_ns if exchange.connected_ns is not None else unreached
    sent = max(connected, exchange.sent_ns if exchange.sent_ns is not None else unreached)
    marks: list[tuple[str, int]] = [(semconv.CONNECT, connected), (semconv.SEND, sent)]
    first, last = figures.first_token_ns, figures.last_token_ns
    if first is None or last is None:
        marks.append((semconv.GENERATION, attempt.end_ns))
    elif figures.is_buffered:
        marks += [(semconv.GENERATION, last), (semconv.TAIL, attempt.end_ns)]
    else:
        marks += [(semconv.FIRST_TOKEN_WAIT, first), (semconv.DECODE, last), (semconv.TAIL, attempt.end_ns)]
    at_ns = attempt.entered_ns
    for name, end_ns in marks:
        end_ns = min(max(at_ns, end_ns), attempt.end_ns)  # an answer may come before the request is sent
        attributes = _connect_attributes(exchange) if name == semconv.CONNECT else {}
        yield Span(recorder.reserve(), parent, name, at_ns, end_ns, "internal", attributes)
        at_ns = end_ns
        if attempt.failure is not None and at_ns == attempt.end_ns:
            return


def _connect_attributes(exchange: Exchange) -> dict[str, AttributeValue]:
    return _present(
        {
            semconv.REUSED: exchange.is_reused,
            semconv.POOL_WAIT_NS: exchange.pool_wait_ns,
            semconv.DNS_NS: exchange.dns_ns,
            semconv.TCP_NS: exchange.tcp_ns,
            semconv.TLS_NS: exchange.tls_ns,
            semconv.RECONNECTS: exchange.reconnects or None,
        }
    )


def _record_arrivals(attempt: Attempt, number: int, ref: SpanRef, recorder: Recorder) -> None:
    events = attempt.reply.events if attempt.reply is not None else ()
    recorder.add_arrivals(
        Arrivals(
            ref,
            number,
            [(event.at_ns - attempt.start_ns) // 1000 for event in events],
            "".join(_KIND_LETTER[event.kind] for event in events),
            [event.tokens for event in events],
            [event.read for event in events],
        )
    )


def _present(values: dict[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Without what wasn't measured."""
    return {name: value for name, value in values.items() if value is not None}


def _attributes(trace: CallTrace) -> dict[str, AttributeValue]:
    request, last = trace.request, trace.attempts[-1]
    exchange = last.exchange
    attributes = _present(
        {
            semconv.OPERATION: "chat" if request.prompt is None else "text_completion",
            semconv.OPENINFERENCE_KIND: "LLM",
            semconv.PROVIDER: trace.backend.labels.get("engine", "openai"),
            semconv.REQUEST_MODEL: trace.backend.model,
            semconv.REQUEST_STREAM: True,
            semconv.REQUEST_MAX_TOKENS: request.forced_tokens or request.max_tokens,
            semconv.REQUEST_TEMPERATURE: request.temperature,
            semconv.REQUEST_SEED: request.seed,
            semconv.SERVER_ADDRESS: trace.server[0],
            semconv.SERVER_PORT: trace.server[1],
            semconv.FORCED_TOKENS: request.forced_tokens,
            semconv.ATTEMPTS: len(trace.attempts),
            semconv.HTTP_STATUS: exchange.status,
            semconv.POOL_WAIT_NS: exchange.pool_wait_ns,
            semconv.RTT_NS: exchange.rtt_ns,
            semconv.GATEWAY_NS: dialects.gateway_ns(exchange.headers),
        }
    )
    for name, value in dialects.timing_headers(exchange.headers).items():
        attributes[f"http.response.header.{name}"] = value
    if trace.failure is not None:
        attributes[semconv.ERROR_TYPE] = trace.failure.kind
        attributes[semconv.ERROR_KIND] = trace.failure.kind
        attributes[semconv.ERROR_MESSAGE] = trace.failure.message
    if last.reply is not None and last.figures is not None:
        attributes.update(_reply_attributes(last, last.reply, last.figures))
    return attributes


def _reply_attributes(attempt: Attempt, reply: Reply, figures: CallFigures) -> dict[str, AttributeValue]:
    usage, times = reply.usage, reply.server_times
    header_times = dialects.server_timing_ns(attempt.exchange.headers)
    queue_ns = times.queue_ns if times is not None else None
    prefill_ns = times.prefill_ns if times is not None else None
    split = figures.decode_split_ns
    calls = [{"name": call.name, "arguments": call.parsed} for call in reply.tool_calls]
    return _present(
        {
            semconv.RESPONSE_ID: reply.response_id,
            semconv.RESPONSE_MODEL: reply.model,
            semconv.FINISH_REASONS: [reply.finish] if reply.finish is not None else None,
            semconv.TIME_TO_FIRST_CHUNK: None if figures.first_event_ns is None else figures.first_event_ns / 1e9,
            semconv.INPUT_TOKENS: usage.prompt_tokens,
            semconv.OUTPUT_TOKENS: figures.output_tokens,
            semconv.CACHED_TOKENS: usage.cached_tokens,
            semconv.REASONING_TOKENS: usage.reasoning_tokens,
            semconv.TTFT_NS: figures.ttft_ns,
            semconv.TTFO_NS: figures.ttfo_ns,
            semconv.FIRST_EVENT_NS: figures.first_event_ns,
            semconv.QUEUE_NS: queue_ns if queue_ns is not None else header_times.get("queue"),
            semconv.PREFILL_NS: prefill_ns if prefill_ns is not None else header_times.get("prefill"),
            semconv.SERVER_DECODE_NS: times.decode_ns if times else None,
            semconv.SERVER_SOURCE: times.source if times else None,
            semconv.PREFILLED_TOKENS: times.prefilled_tokens if times else None,
            semconv.DRAFT_TOKENS: times.draft_tokens if times else None,
            semconv.ACCEPTED_TOKENS: times.accepted_draft_tokens if times else None,
            semconv.DECODE_STEPS: times.decode_steps if times else None,
            semconv.FIRST_READ_TOKENS: figures.first_read_tokens,
            semconv.TOKEN_EVENTS: len(reply.events),
            semconv.OUTPUT_TOKENS_SOURCE: figures.output_tokens_source,
            semconv.DECODE_REASONING_NS: split.get("reasoning"),
            semconv.DECODE_ANSWER_NS: split.get("content"),
            semconv.DECODE_TOOL_CALL_NS: split.get("tool_call"),
            semconv.DECODE_HIDDEN_NS: split.get("hidden"),
            semconv.PEAK_INTERVAL_TOK_S: figures.peak_interval_tok_s,
            semconv.TOOL_CALLS: orjson.dumps(calls).decode() if calls else None,
            semconv.FLAGS: list(call_flags(attempt, figures)),
        }
    )
