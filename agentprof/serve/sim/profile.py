"""A profile: the figures and habits of a simulated server, as people write them in YAML (docs/simulator.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)

from agentprof.records.document import Problems, read_document
from agentprof.records.durations import parse_duration
from agentprof.records.scenario import Count, ToolUse, Written
from agentprof.records.wording import found_words, missing_key, place, unknown_key, words_of


def _write_duration(ns: int) -> str:
    return f"{Decimal(ns) / 10**6:f}ms"


Duration = Annotated[int, BeforeValidator(parse_duration), PlainSerializer(_write_duration, when_used="json")]
"""Nanoseconds, written with a unit (`4.89ms`, `2s`); a profile dumped as JSON reads back the same."""

Probability = Annotated[float, Field(ge=0, le=1)]
Engine = Literal["vllm", "llama.cpp", "openai"]
Report = Literal["metrics", "timings", "none"]


class Prefill(Written):
    """Time from the slot to the first token: base + per_token·u + attention·u·(c + u/2)/10⁶ + U(0, jitter).

    u are the prompt tokens that the prefix cache didn't hold, c those that it held.
    """

    base: Duration = 30_000_000
    per_token: Duration = 200_000
    attention: Duration = 0
    jitter: Duration = 0


class Decode(Written):
    """One decoding step takes step + per_context_token·context + per_sequence·(other running requests) + U(0, jitter).

    `tpot` may be written instead of `step`: the time per output token, so that step = tpot · acceptance length.
    """

    step: Duration | None = None
    tpot: Duration | None = None
    per_context_token: Duration = 0
    per_sequence: Duration = 0
    jitter: Duration = 0

    @model_validator(mode="after")
    def _one_of_two(self) -> Decode:
        if self.step is not None and self.tpot is not None:
            raise ValueError("step and tpot say the same thing; write one of them")
        return self


class Speculation(Written):
    """How many tokens a decoding step yields: 1 to draft_tokens + 1.

    `acceptance_length`: the mean; drafts are then accepted one after the other with one probability. `lengths`: the
    probabilities of 1, 2, … tokens instead. `chat_acceptance_length`: the mean in chats, where it differs from that in
    /v1/completions, to which benchmarks send random words. The first token comes from the prefill and is always alone.
    """

    draft_tokens: Count
    acceptance_length: Annotated[float, Field(ge=1)] | None = None
    lengths: tuple[Probability, ...] | None = None
    chat_acceptance_length: Annotated[float, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Speculation:
        if (self.acceptance_length is None) == (self.lengths is None):
            raise ValueError("write one of acceptance_length and lengths")
        for name in ("acceptance_length", "chat_acceptance_length"):
            length = getattr(self, name)
            if length is not None and length > self.draft_tokens + 1:
                raise ValueError(f"{name} {length} is more than draft_tokens + 1")
        if self.lengths is not None and len(self.lengths) != self.draft_tokens + 1:
            raise ValueError(f"lengths has {len(self.lengths)} probabilities; draft_tokens + 1 are needed")
        if self.lengths is not None and abs(sum(self.lengths) - 1) > 1e-6:
            raise ValueError(f"lengths add up to {sum(self.lengths):g}, not 1")
        return self


class Cache(Written):
    """The prefix cache: whole blocks of `block_tokens`; `blocks` of them at most (0: no cache), least recent out."""

    block_tokens: Count = 16
    blocks: Annotated[int, Field(ge=0)] = 65_536


class Output(Written):
    """What the server writes where the request doesn't force a length and no reply is scripted.

    `tokens`: all tokens of a reply, fixed or drawn between two numbers. Reasoning is a fixed number of them or a share.
    A tool is called with `call_probability` (one of `call_tools`, or any that the request offers).
    """

    tokens: tuple[Count, Count] = (64, 256)
    reasoning_tokens: Annotated[int, Field(ge=0)] | None = None
    reasoning_share: Probability = 0.0
    call_probability: Probability = 0.0
    call_tools: tuple[str, ...] = ()

    @field_validator("tokens", mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            return value, value
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError(f"expected a whole number, or two such as [80, 400]; found {found_words(value, None)}")
        return value

    @field_validator("tokens")
    @classmethod
    def _ordered(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] > value[1]:
            raise ValueError(f"{value[0]} is more than {value[1]}")
        return value


class ScriptedReply(Written):
    """A reply to give when its conditions hold; the first that matches is given.

    `turn`: the number of assistant messages already in the conversation. `when`: a regular expression found in the
    last message. `tokens`: pad the text to so many tokens in all.
    """

    turn: Annotated[int, Field(ge=0)] | None = None
    when: str | None = None
    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolUse, ...] = ()
    tokens: Count | None = None

    @field_validator("when")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is not a regular expression: {error}") from None
        return value


class Stream(Written):
    """The shape of streamed responses (docs/simulator.md, "Chunk shapes")."""

    role: Literal["first_token", "at_once", "merged", "none"] = "first_token"
    tokens_per_chunk: Literal["step", "token"] | Count = "step"
    tool_calls: Literal["streamed", "whole"] = "streamed"
    empty_deltas: bool = False
    burst_bytes: Count | None = None
    burst_tokens: Count | None = None
    buffered: bool = False
    keep_alive: Duration | None = None
    usage: Literal["requested", "final", "every_chunk", "last_chunk", "none"] = "requested"
    finish: Literal["own_chunk", "last_token", "twice", "none"] = "own_chunk"
    done: bool = True
    reasoning_field: Literal["reasoning", "reasoning_content"] | None = None
    close: bool | None = None

    @model_validator(mode="after")
    def _one_buffer(self) -> Stream:
        if sum((self.buffered, self.burst_bytes is not None, self.burst_tokens is not None)) > 1:
            raise ValueError("write one of buffered, burst_bytes and burst_tokens")
        return self


class Gateway(Written):
    """A hop in front of the engine: the time it takes before the engine sees the request, and how it reports it."""

    overhead: Duration = 0
    header: Literal["litellm", "server-timing", "none"] = "litellm"


FaultKind = Literal["http", "loading", "drop", "disconnect", "stall", "hang", "malformed", "error_event"]


class Fault(Written):
    """Something that goes wrong, and for which requests.

    Requests are numbered from 1 in order of arrival. `rate` draws by seed and number. `first`: requests 1 to N.
    `until`: as long as the server is younger. `after_tokens`: when in the stream.
    """

    kind: FaultKind
    rate: Probability = 0.0
    requests: tuple[Count, ...] = ()
    first: Annotated[int, Field(ge=0)] = 0
    until: Duration = 0
    status: Annotated[int, Field(ge=400, le=599)] = 500
    retry_after: str | None = None
    after_tokens: Annotated[int, Field(ge=0)] = 1
    duration: Duration = 1_000_000_000

    @field_validator("retry_after", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _has_trigger(self) -> Fault:
        if not (self.rate or self.requests or self.first or self.until):
            raise ValueError("a fault needs one of rate, requests, first and until")
        return self


class Inject(Written):
    """Extra time that no report of the server tells: before the first token, spread over the decoding, at the end."""

    first_token: Duration = 0
    decode: Duration = 0
    tail: Duration = 0


class Tls(Written):
    """Serve https. `handshake_delay` holds back the server's first bytes of each connection."""

    cert: Path
    key: Path
    handshake_delay: Duration = 0


class Profile(Written):
    """A simulated server. Every key has a default; docs/simulator.md explains them."""

    name: str = "simulated"
    model: str = "simulated"
    engine: Engine = "vllm"
    context_tokens: Count = 131_072
    slots: Count | None = None
    prefill: Prefill = Prefill()
    decode: Decode = Decode()
    speculation: Speculation | None = None
    cache: Cache = Cache()
    output: Output = Output()
    replies: tuple[ScriptedReply, ...] = ()
    stream: Stream = Stream()
    report: Report | None = None
    tail: Duration = 0
    idle_close: Duration = 5_000_000_000
    gateway: Gateway | None = None
    faults: tuple[Fault, ...] = ()
    inject: Inject = Inject()
    tls: Tls | None = None

    @property
    def report_style(self) -> Report:
        """What is reported per request: as written, else what the engine is known for."""
        if self.report is not None:
            return self.report
        return {"vllm": "metrics", "llama.cpp": "timings", "openai": "none"}[self.engine]  # type: ignore[return-value]

    @property
    def reasoning_field(self) -> str:
        """The delta's key for reasoning: as written, else the engine's."""
        return self.stream.reasoning_field or ("reasoning_content" if self.engine == "llama.cpp" else "reasoning")

    @property
    def closes_streams(self) -> bool:
        """Whether the connection ends with each streamed response: as written, else as the engine does."""
        return self.stream.close if self.stream.close is not None else self.engine == "llama.cpp"


def load_profile(path: Path) -> Profile:
    """Read a profile; TLS paths are taken from the file's folder. Raises InputError, one line for each problem."""
    document = read_document(path)
    problems = Problems(path)
    try:
        profile = Profile.model_validate(document.data)
    except ValidationError as error:
        for item in error.errors():
            problems.add(document.line_of(item["loc"]), _in_words(item, document.texts.get(item["loc"])))
        problems.raise_any()
        raise
    if profile.tls is None:
        return profile
    folder = path.resolve().parent
    tls = profile.tls.model_copy(update={"cert": folder / profile.tls.cert, "key": folder / profile.tls.key})
    return profile.model_copy(update={"tls": tls})


def _in_words(error: Any, text: str | None) -> str:
    *around, key = error["loc"] or ("profile",)
    match error["type"]:
        case "extra_forbidden":
            where, words = place(tuple(around)), unknown_key(str(key), _known_keys(around))
        case "missing":
            where, words = place(tuple(around)), missing_key(str(key))
        case _:
            where, words = place(error["loc"]), words_of(error, text)
    return f"{where}: {words}" if where else words


def _known_keys(location: list[int | str]) -> list[str]:
    model: type[BaseModel] = Profile
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            inner = _INNER.get(part)
            if inner is None:
                return []
            model = inner
    return list(model.model_fields)


_INNER: Mapping[str, type[BaseModel]] = {
    "prefill": Prefill,
    "decode": Decode,
    "speculation": Speculation,
    "cache": Cache,
    "output": Output,
    "replies": ScriptedReply,
    "calls": ToolUse,
    "stream": Stream,
    "gateway": Gateway,
    "faults": Fault,
    "inject": Inject,
    "tls": Tls,
}
