"""The events of a streamed reply as bytes: which tokens go into which chunk, and how each chunk is spelled.

Chunks are put together from parts serialised once per request; only their texts and counts are new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from agentprof.serve.sim.profile import Stream
from agentprof.serve.sim.replies import Plan, PlannedCall
from agentprof.serve.sim.requests import Asked
from agentprof.serve.sim.tokens import token_id

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
MALFORMED = b'data: {"id": "broken", "choices": [{"delta"\n\n'


class Frame(NamedTuple):
    """One event. `tokens` are those that it reveals; they add up to the reply's tokens.

    kind: `r` reasoning, `c` content, `t` tool call, `h` hidden (tokens, nothing shown), `o` role, `f` finish,
    `u` usage, `d` [DONE], `k` keep-alive, `m` malformed, `e` error.
    """

    data: bytes
    kind: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Heading:
    """What every chunk of a response repeats."""

    id: str
    created: int
    model: str
    fingerprint: str


class Shaper:
    """Cuts one reply into events, decoding step by decoding step."""

    def __init__(
        self,
        plan: Plan,
        asked: Asked,
        stream: Stream,
        reasoning_field: str,
        heading: Heading,
        end_report: Callable[[], tuple[dict[str, Any], dict[str, Any]]],
    ) -> None:
        """`end_report` gives the final usage and what is reported beside it, once the last token is out."""
        self._plan, self._asked, self._stream = plan, asked, stream
        self._end_report = end_report
        kind = "chat.completion.chunk" if asked.is_chat else "text_completion"
        common = {"id": heading.id, "object": kind, "created": heading.created, "model": heading.model}
        if heading.fingerprint:
            common["system_fingerprint"] = heading.fingerprint
        head = orjson.dumps(common)[:-1]
        self._common = b"data: " + head
        self._head = self._common + b',"choices":[{"index":0,'
        self._key = {"r": orjson.dumps(reasoning_field), "c": b'"content"'}
        self._usage_from = len(asked.prompt)
        self._has_usage_everywhere = stream.usage == "every_chunk" or (
            stream.usage == "requested" and asked.wants_usage and asked.wants_continuous_usage
        )
        self._has_usage_chunk = stream.usage in ("final", "every_chunk") or (
            stream.usage == "requested" and asked.wants_usage
        )
        self._shows_hidden = stream.empty_deltas or (asked.wants_token_ids and asked.is_chat)
        self._calls = {call.start: call for call in plan.calls}
        self._call: PlannedCall | None = None
        self._group = 0  # first token that no frame has taken yet
        self._revealed = 0
        self._role_part = b""

    def open(self) -> list[Frame]:
        """What goes out with the response's headers."""
        return [self._role()] if self._asked.is_chat and self._stream.role == "at_once" else []

    def step(self, start: int, end: int) -> list[Frame]:
        """The events of a decoding step that yields tokens `start` to `end` of the reply."""
        frames: list[Frame] = []
        if start == 0 and self._asked.is_chat:
            if self._stream.role == "first_token":
                frames.append(self._role())
            elif self._stream.role == "merged":
                self._role_part = b'"role":"assistant",'
        is_last = end == len(self._plan.pieces)
        size = {"step": end - start, "token": 1}.get(str(self._stream.tokens_per_chunk), self._stream.tokens_per_chunk)
        assert isinstance(size, int)  # noqa: S101  the two words were looked up
        cuts_at_step = self._stream.tokens_per_chunk == "step"
        for position in range(start, end):
            is_group_end = (
                position + 1 - self._group >= size
                or self._breaks_after(position)
                or (position + 1 == end and (cuts_at_step or is_last))
            )
            if is_group_end:
                has_finish = is_last and position + 1 == end and self._stream.finish == "last_token"
                frames += self._show(self._group, position + 1, has_finish)
                self._group = position + 1
        return frames

    def finish(self) -> list[Frame]:
        """Finish, usage and [DONE] events, as the profile has them."""
        frames: list[Frame] = []
        reasons = {
            "own_chunk": [self._plan.finish],
            "twice": ["tool_calls", "stop"] if self._plan.calls else [self._plan.finish, "stop"],
        }.get(self._stream.finish, [])
        if not self._plan.pieces and self._stream.finish == "last_token":
            reasons = [self._plan.finish]
        if not self._plan.pieces and self._asked.is_chat and self._stream.role in ("first_token", "merged"):
            frames.append(self._role())
        for number, reason in enumerate(reasons, start=1):
            tail = self._last_choice_tail() if number == len(reasons) else self._usage_tail()
            frames.append(Frame(self._chunk(self._delta(b""), orjson.dumps(reason), b"", tail), "f"))
        if self._has_usage_chunk:
            usage, report = self._end_report()
            parts = b',"choices":[],"usage":' + orjson.dumps(usage) + _members(report) + b"}\n\n"
            frames.append(Frame(self._common + parts, "u"))
        return frames + self.done()

    def done(self) -> list[Frame]:
        """The [DONE] event, where the profile sends one."""
        return [Frame(DONE, "d")] if self._stream.done else []

    def error(self, message: str) -> Frame:
        """An error inside the stream, as vLLM and llama.cpp send it once the status has gone out as 200."""
        body = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}
        return Frame(b"data: " + orjson.dumps(body) + b"\n\n", "e")

    def _breaks_after(self, position: int) -> bool:
        following = position + 1
        if following == len(self._plan.pieces):
            return False
        return self._plan.kinds[position] != self._plan.kinds[following] or following in self._calls

    def _show(self, start: int, end: int, has_finish: bool) -> list[Frame]:
        kind = self._plan.kinds[start]
        if kind == "t":
            self._call = self._calls.get(start, self._call)
            assert self._call is not None  # noqa: S101  every tool-call token follows its opening token
            if self._stream.tool_calls == "whole":
                return self._show_withheld(self._call, end, has_finish)
            delta = self._call_delta(self._call, start, end)
        elif self._asked.is_chat:
            delta = self._delta(self._key[kind] + b":" + orjson.dumps("".join(self._plan.pieces[start:end])))
        else:
            delta = b'"text":' + orjson.dumps("".join(self._plan.pieces[start:end]))
        return [self._token_frame(delta, kind, end, has_finish)]

    def _show_withheld(self, call: PlannedCall, end: int, has_finish: bool) -> list[Frame]:
        if end == call.end:
            return [self._token_frame(self._call_delta(call, call.start, end), "t", end, has_finish)]
        if self._shows_hidden:
            return [self._token_frame(self._delta(b""), "h", end, has_finish)]
        return []

    def _call_delta(self, call: PlannedCall, start: int, end: int) -> bytes:
        number = self._plan.calls.index(call)
        opens = start == call.start
        arguments = orjson.dumps("".join(self._plan.pieces[start + 1 if opens else start : end]))
        function = b'"function":{"arguments":' + arguments + b"}}]"
        opening = b""
        if opens:
            opening = b',"id":"%b","type":"function"' % call.id.encode()
            function = b'"function":{"name":' + orjson.dumps(call.name) + b',"arguments":' + arguments + b"}}]"
        return self._delta(b'"tool_calls":[{"index":%d%b,' % (number, opening) + function)

    def _token_frame(self, delta: bytes, kind: str, end: int, has_finish: bool) -> Frame:
        """A frame that reveals every token before `end` that no frame has revealed yet."""
        start, self._revealed = self._revealed, end
        ids = b""
        if self._asked.wants_token_ids:
            ids = b',"token_ids":' + orjson.dumps([token_id(piece) for piece in self._plan.pieces[start:end]])
        reason = orjson.dumps(self._plan.finish) if has_finish else b"null"
        tail = self._last_choice_tail() if has_finish else self._usage_tail()
        return Frame(self._chunk(delta, reason, ids, tail), kind, end - start)

    def _role(self) -> Frame:
        tail = self._usage_tail()
        if self._asked.wants_token_ids:
            tail += b',"prompt_token_ids":' + orjson.dumps([token_id(piece) for piece in self._asked.prompt])
        delta = b'"delta":{"role":"assistant","content":""}'
        return Frame(self._chunk(delta, b"null", b"", tail), "o")

    def _delta(self, members: bytes) -> bytes:
        if not self._asked.is_chat:
            return b'"text":""'
        role, self._role_part = self._role_part, b""
        return b'"delta":{' + (role + members).rstrip(b",") + b"}"

    def _chunk(self, delta: bytes, reason: bytes, choice_tail: bytes, tail: bytes) -> bytes:
        return b"".join(
            (self._head, delta, b',"logprobs":null,"finish_reason":', reason, choice_tail, b"}]", tail, b"}\n\n")
        )

    def _usage_tail(self) -> bytes:
        if not self._has_usage_everywhere:
            return b""
        prompt, done = self._usage_from, self._revealed
        return b',"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (prompt, done, prompt + done)

    def _last_choice_tail(self) -> bytes:
        """Usage where it belongs on the last chunk with choices, and the report where no usage chunk follows."""
        if self._has_usage_chunk:
            return self._usage_tail()
        usage, report = self._end_report()
        own = b',"usage":' + orjson.dumps(usage) if self._stream.usage == "last_chunk" else b""
        return own + _members(report)


def _members(values: Mapping[str, Any]) -> bytes:
    return b"".join(b"," + orjson.dumps(key) + b":" + orjson.dumps(value) for key, value in values.items())
