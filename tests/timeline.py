"""Streams written by hand: which bytes became readable when, in seconds after the request was sent."""

from __future__ import annotations

import json
from typing import Any

from agentprof.records.call import Reply
from agentprof.wire.assemble import Read, assemble
from agentprof.wire.figures import CallFigures, failure, measure

START_NS = 7_000_000_000_000  # far from 0, so that a stamp taken for an offset shows
DONE = b"data: [DONE]\n\n"


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


def event(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def delta(fields: dict[str, Any] | None, finish: str | None = None, **chunk: Any) -> bytes:
    """A chunk with one choice; further keywords stand beside `choices`."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if fields is not None:
        choice["delta"] = fields
    return event({"id": "c1", "model": "m", "choices": [choice], **chunk})


def text(content: str, **chunk: Any) -> bytes:
    return delta({"content": content}, **chunk)


def think(content: str, field: str = "reasoning", **chunk: Any) -> bytes:
    return delta({field: content}, **chunk)


def call(arguments: Any = None, name: str | None = None, call_id: str | None = None, index: int | None = 0) -> bytes:
    """A tool-call delta; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    entry = {key: value for key, value in (("index", index), ("id", call_id)) if value is not None}
    return delta({"tool_calls": [{**entry, "function": function}]})


def finish(reason: str) -> bytes:
    return delta({}, reason)


def tokens(completion: int, prompt: int = 5) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def usage(prompt: int, completion: int, **more: Any) -> bytes:
    return event({"choices": [], "usage": {**tokens(completion, prompt), **more}})


HI = text("Hi")
ENDING = (finish("stop"), usage(3, 1), DONE)


class Timeline:
    """Reads in the order in which they happened."""

    def __init__(self) -> None:
        self.body = b""
        self.reads: list[Read] = []

    def at(self, seconds: float, *frames: bytes) -> Timeline:
        """One read that brings these bytes."""
        self.body += b"".join(frames)
        self.reads.append(Read(START_NS + ns(seconds), len(self.body)))
        return self

    def reply(self) -> Reply:
        return assemble(self.body, self.reads)

    def figures(self, end: float | None = None, forced_tokens: int | None = None) -> CallFigures:
        """end: seconds after the request; the last read where it isn't given."""
        end_ns = self.reads[-1].at_ns if end is None else START_NS + ns(end)
        return measure(self.reply(), start_ns=START_NS, end_ns=end_ns, forced_tokens=forced_tokens)


def kind_of(stream: Timeline, *, has_clean_eof: bool = True) -> str | None:
    """The kind of failure that a stream ended in; None where it is whole."""
    failed = failure(stream.reply(), has_clean_eof=has_clean_eof)
    return failed[0] if failed else None
