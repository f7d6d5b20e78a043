"""One call to the model as values: what was asked, what arrived and when, what it cost.

All times are integer nanoseconds on the monotonic clock; None means not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

TokenKind = Literal["reasoning", "content", "tool_call", "hidden"]
Message = Mapping[str, Any]
"""A chat message as the OpenAI API spells it."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What the loop asks of the model, before a dialect adds what its server needs.

    forced_tokens: make the server write exactly so many tokens (its end of sequence ignored); None = a natural end.
    max_tokens: the limit where nothing is forced. cache_salt: isolates the prefix cache where the server offers it.
    prompt: raw text for /v1/completions, in place of messages; benchmarks use it.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    max_tokens: int
    forced_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    cache_salt: str | None = None
    prompt: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that the model wrote. `arguments` is its JSON text; `parsed` the object, None where it isn't one."""

    id: str
    name: str
    arguments: str
    parsed: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server reports them; `output_tokens` includes reasoning."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """What the server says of its own time. `source` names the report it came from, such as `llama.cpp timings`."""

    source: str
    queue_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    prefilled_tokens: int | None = None
    cached_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    decode_steps: int | None = None


class TokenEvent(NamedTuple):
    """A chunk that carries tokens (docs/metrics.md, "token event").

    read: index of the socket read that completed it. chars: characters of text it carries. tokens: its tokens, where
    per-chunk usage or token ids tell; None otherwise. A tuple, as there is one per chunk: a frozen dataclass takes
    three times as long to make.
    """

    at_ns: int
    read: int
    kind: TokenKind
    chars: int
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole streamed response, assembled: the message, its token events, and what the server reported.

    has_done: the stream said `[DONE]`. malformed, comments: SSE lines that were skipped. first_event_ns: the first
    data event of any kind. error: the server's error inside the stream, None if there was none.
    """

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish: str | None
    usage: Usage
    server_times: ServerTimes | None
    events: tuple[TokenEvent, ...]
    first_event_ns: int | None
    has_done: bool
    malformed: int
    comments: int
    response_id: str | None
    model: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class CallResult:
    """A call that succeeded. `flags`: short words, documented in docs/metrics.md."""

    reply: Reply
    output_tokens: int
    is_estimated: bool
    ended_ns: int
    flags: tuple[str, ...]
