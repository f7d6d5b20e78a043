"""A streamed response from its bytes and arrival stamps: the message, its token events, what the server reported.

Pure: bytes and stamps in, a Reply out. What counts as a token event is defined in docs/metrics.md.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from agentprof.records.call import Reply, TokenEvent, TokenKind
from agentprof.wire.reports import REPORT_KEYS, UsageReader, read_server_times
from agentprof.wire.sse import STRAY, SseDecoder, SseEvent
from agentprof.wire.stream_errors import error_text, one_line
from agentprof.wire.text import content_and_reasoning, join_surrogates, text_of
from agentprof.wire.tool_calls import ToolCallMerger

_DONE = b"[DONE]"
_REASONING_KEYS = ("reasoning_content", "reasoning", "reasoning_details")
_REPORTS, _REASONING = frozenset(REPORT_KEYS), frozenset(_REASONING_KEYS)  # told at once to be absent
_EVENTS_PER_STEP = 64
_BYTES_PER_STEP = 16_384
_FINISH_RANK = {"tool_calls": 2, "function_call": 2, "length": 1, "content_filter": 1}


class Read(NamedTuple):
    """One socket read. at_ns: its stamp. end: how many bytes of the decoded body had arrived by then, in all."""

    at_ns: int
    end: int


def assemble(body: bytes, reads: Sequence[Read]) -> Reply:
    """The reply that a body holds; each event carries the stamp of the read that completed it.

    Never raises on any bytes: what can't be read is counted in `malformed` and skipped, an error that the server sent
    is in `error`, what follows `[DONE]` isn't looked at. Bytes past the last read count as part of it. Without any
    reads nothing can be timed: there are no token events then.
    """
    steps = assemble_in_steps(body, reads)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            reply: Reply = end.value
            return reply


def assemble_in_steps(body: bytes, reads: Sequence[Read]) -> Generator[None, None, Reply]:
    """`assemble`, which pauses every few dozen events, so that other work can be let in between."""
    decoder = SseDecoder()
    stream = _Stream()
    read, last = 0, len(reads) - 1
    for taken, event in enumerate(_events(decoder, body), start=1):
        while read < last and reads[read].end < event.end:
            read += 1
        stream.read, stream.at_ns = read, reads[read].at_ns if reads else None
        stream.take_event(event)
        if stream.has_done:
            break
        if taken % _EVENTS_PER_STEP == 0:
            yield
    return stream.reply(decoder)


def _events(decoder: SseDecoder, body: bytes) -> Iterator[SseEvent]:
    view = memoryview(body)
    for start in range(0, len(body), _BYTES_PER_STEP):
        yield from decoder.feed(bytes(view[start : start + _BYTES_PER_STEP]))
    yield from decoder.close()


class _Stream:
    """What has been read of a stream so far. read, at_ns: the socket read that the next event belongs to."""

    def __init__(self) -> None:
        self.read = 0
        self.at_ns: int | None = None
        self.has_done = False
        self._malformed = 0
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCallMerger()
        self._usage = UsageReader()
        self._events: list[TokenEvent] = []
        self._report: Mapping[str, Any] | None = None
        self._finish: str | None = None
        self._error: str | None = None
        self._response_id: str | None = None
        self._model: str | None = None
        self._first_event_ns: int | None = None
        self._choice: object = None  # index of the choice whose message is kept: the first one seen
        self._counted = 0  # cumulative output tokens as of the last token event
        self._is_count_open = False  # a token event without a count came since

    def take_event(self, event: SseEvent) -> None:
        """Take one event.

        Data that isn't one object is tried line by line: some servers leave out the blank line between two events.
        Stray lines were counted as malformed by the decoder; those that are JSON are taken back.
        """
        payload = _load(event.data)
        if isinstance(payload, dict):
            self._take_payload(payload, event.data, event.event)
            return
        if event.event == STRAY and isinstance(payload, list) and payload:
            payload = payload[0]
        if payload != _DONE and not isinstance(payload, dict) and b"\n" in event.data:
            for line in event.data.split(b"\n"):
                if line.strip():
                    self._take_payload(_load(line), line, event.event)
        else:
            self._take_payload(payload, event.data, event.event)

    def _take_payload(self, payload: Any, data: bytes, event_name: str) -> None:
        if isinstance(payload, dict):
            if event_name == STRAY:
                self._malformed -= data.count(b"\n") + 1
            self._take_chunk(payload, event_name)
        elif payload == _DONE:
            self.has_done = True
        else:
            if event_name == "error" and self._error is None:
                self._error = one_line(data.decode("utf-8", "replace"))
            self._malformed += event_name != STRAY
            return
        if self._first_event_ns is None:
            self._first_event_ns = self.at_ns

    def _take_chunk(self, chunk: dict[str, Any], event_name: str) -> None:
        if self._error is None:
            self._error = error_text(chunk, is_error_event=event_name == "error", is_unframed=event_name == STRAY)
        if not self._response_id:
            self._response_id = _word(chunk.get("id"))
        if not self._model:
            self._model = _word(chunk.get("model"))
        if not _REPORTS.isdisjoint(chunk) and any(isinstance(chunk.get(key), dict) for key in REPORT_KEYS):
            self._report = chunk
        cumulative = self._take_usage(chunk)
        choices = chunk.get("choices")
        if isinstance(choices, list):
            self._take_choices([choice for choice in choices if isinstance(choice, dict)], cumulative)

    def _take_usage(self, chunk: dict[str, Any]) -> int | None:
        raw = chunk.get("usage")
        if not isinstance(raw, dict) and isinstance(groq := chunk.get("x_groq"), dict):
            raw = groq.get("usage")
        if not isinstance(raw, dict):
            return None
        if isinstance(raw.get("metrics"), dict):
            self._report = raw
        return self._usage.read(raw)

    def _take_choices(self, choices: list[dict[str, Any]], cumulative: int | None) -> None:
        """Take the choices of one chunk, which make at most one token event."""
        kind: TokenKind | None = None
        chars = token_ids = 0
        has_delta = False
        for choice in choices:
            if isinstance(usage := choice.get("usage"), dict):
                cumulative = self._usage.read(usage)
            if choice.get("error") and self._error is None:
                self._error = error_text(choice)
            delta = _delta(choice)
            has_delta = has_delta or delta is not None
            if "token_ids" in choice or (delta and "token_ids" in delta):
                token_ids += _count_ids(choice) or (_count_ids(delta) if delta else 0)
            if delta and self._is_kept(choice):
                found, added = self._take_delta(delta)
                kind = found or kind
                chars += added
            if finish := choice.get("finish_reason"):
                self._take_finish(finish)
        if kind is None:
            is_open = has_delta and self._finish is None
            if token_ids or (is_open and cumulative is not None and cumulative > self._counted):
                kind = "hidden"
        if kind is not None:
            tokens = self._count_tokens(token_ids, cumulative)
            if self.at_ns is not None:
                self._events.append(TokenEvent(self.at_ns, self.read, kind, chars, tokens))

    def _take_delta(self, delta: dict[str, Any]) -> tuple[TokenKind | None, int]:
        """Add a delta to the message; its kind, the most visible one where it has several, and its characters."""
        content, reasoning = delta.get("content"), ""
        if not isinstance(content, str):
            content, reasoning = content_and_reasoning(content)
        if refusal := delta.get("refusal"):
            content += text_of(refusal)
        if not _REASONING.isdisjoint(delta):
            reasoning = _reasoning(delta) or reasoning
        chars = len(content) + len(reasoning)
        kind: TokenKind | None = None
        if reasoning:
            self._reasoning.append(reasoning)
            kind = "reasoning"
        if content:
            self._content.append(content)
            kind = "content"
        entries = delta.get("tool_calls")
        if not entries and isinstance(legacy := delta.get("function_call"), dict):
            entries = [{"index": 0, "function": legacy}]
        if isinstance(entries, list) and (added := self._calls.add(entries)) is not None:
            chars += added
            kind = "tool_call"
        return kind, chars

    def _take_finish(self, finish: object) -> None:
        """Keep the finish reason that says most: `tool_calls`, then a cut, then any other; of equals the later one."""
        if isinstance(finish, dict):
            finish = finish.get("type")
        if not isinstance(finish, str) or not finish:
            return
        if self._finish is None or _FINISH_RANK.get(finish, 0) >= _FINISH_RANK.get(self._finish, 0):
            self._finish = join_surrogates(finish)

    def _is_kept(self, choice: dict[str, Any]) -> bool:
        index = choice.get("index", 0)
        if self._choice is None:
            self._choice = index
        return bool(index == self._choice)

    def _count_tokens(self, token_ids: int, cumulative: int | None) -> int | None:
        """The tokens of a token event: its ids, else what the cumulative count grew by since the last one.

        None without either, and where an event in between had no count: the growth is then not this one's alone. A
        cumulative count that is still 0 when tokens arrive is no count.
        """
        counted, was_open = self._counted, self._is_count_open
        self._is_count_open = not token_ids and not cumulative
        self._counted = max(counted + token_ids, cumulative or 0)
        if token_ids:
            return token_ids
        return None if was_open or not cumulative else max(0, cumulative - counted)

    def reply(self, decoder: SseDecoder) -> Reply:
        """The whole of it."""
        times = read_server_times(self._report) if self._report is not None else None
        return Reply(
            content=join_surrogates("".join(self._content)),
            reasoning=join_surrogates("".join(self._reasoning)),
            tool_calls=self._calls.calls(),
            finish=self._finish,
            usage=self._usage.usage(times),
            server_times=times,
            events=tuple(self._events),
            first_event_ns=self._first_event_ns,
            has_done=self.has_done,
            malformed=decoder.malformed + self._malformed,
            comments=decoder.comments,
            response_id=self._response_id,
            model=self._model,
            error=self._error,
        )


def _load(data: bytes) -> Any:
    """The JSON value in `data`, `_DONE` as it is, None where it is neither (or null)."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if data.strip() == _DONE:
            return _DONE
    try:  # slower and laxer: NaN, lone surrogates, bytes that aren't UTF-8
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _delta(choice: dict[str, Any]) -> dict[str, Any] | None:
    """What a choice adds: its `delta`; where a server doesn't stream, its `message` or `text`; None without any."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        delta = choice.get("message")
    if isinstance(delta, dict):
        return delta
    return {"content": text} if isinstance(text := choice.get("text"), str) else None


def _count_ids(holder: dict[str, Any]) -> int:
    ids = holder.get("token_ids")
    return len(ids) if isinstance(ids, list) else 0


def _reasoning(delta: dict[str, Any]) -> str:
    """The reasoning of a delta, from the first of its fields that has any: servers that fill two repeat the text."""
    for key in _REASONING_KEYS:
        if (value := delta.get(key)) and (text := text_of(value)):
            return text
    return ""


def _word(value: object) -> str | None:
    return join_surrogates(value) if isinstance(value, str) and value else None
