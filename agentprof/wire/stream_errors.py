"""Errors that servers send inside a stream, or instead of one under HTTP 200."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentprof.wire.text import join_surrogates

_MAX_CHARS = 100_000  # cut again once keys are blotted out: half a key at this cut, however long, is then gone
_MESSAGE_KEYS = ("message", "detail", "msg")
_OVERFLOW = re.compile(
    r"context[ _](?:length|size|window)|contextwindow|maximum context|exceed_context|max_model_len"
    r"|(?:prompt|input) is too long|too many (?:input )?tokens in|longer than the model|input token count",
    re.IGNORECASE,
)


def error_text(payload: Mapping[str, Any], *, is_error_event: bool = False, is_unframed: bool = False) -> str | None:
    """The error that a chunk reports, in one line; None where it reports none.

    Read from `error` (a null, empty or false one is none), from vLLM's `object: error`, for a body without framing from
    `message` or `detail`; an event named `error` is one whatever it holds, but for choices.
    """
    if error := payload.get("error"):
        return one_line(error)
    if payload.get("object") == "error":
        return one_line(payload)
    if payload.get("choices"):
        return None
    if is_error_event or (is_unframed and any(payload.get(key) for key in _MESSAGE_KEYS)):
        return one_line(payload)
    return None


def is_context_overflow(text: str) -> bool:
    """Whether a server's error says that the prompt, or prompt and answer together, didn't fit the context."""
    return _OVERFLOW.search(text) is not None


def one_line(error: object) -> str:
    """An error as text: its message with type and code behind it where it has them, at most 100,000 characters."""
    names: list[str] = []
    if isinstance(error, Mapping):
        names = [str(error[key]) for key in ("type", "code") if isinstance(error.get(key), (str, int)) and error[key]]
        error = next((error[key] for key in _MESSAGE_KEYS if error.get(key)), error)
    try:
        text = str(error)
    except RecursionError:
        text = "an error nested too deeply to print"
    line = join_surrogates(" ".join(text.split()))
    if names:
        line += f" ({', '.join(dict.fromkeys(names))})"
    return line if len(line) <= _MAX_CHARS else line[: _MAX_CHARS - 1] + "…"
