"""Text out of fields that servers fill in their own ways."""

from __future__ import annotations

_MAX_NESTING = 8
_TEXT_KEYS = ("text", "content", "thinking", "reasoning", "summary")


def text_of(value: object, nesting: int = 0) -> str:
    """The text in a field that should be a string, and on some servers is an object or a list of them.

    Empty for anything else, and for what lies deeper than eight levels.
    """
    if isinstance(value, str):
        return value
    if nesting > _MAX_NESTING:
        return ""
    if isinstance(value, list):
        return "".join([text_of(part, nesting + 1) for part in value])
    if isinstance(value, dict):
        for key in _TEXT_KEYS:
            if text := text_of(value.get(key), nesting + 1):
                return text
    return ""


def content_and_reasoning(value: object) -> tuple[str, str]:
    """The two texts of a `content` field: a string is content; a list of parts may hold reasoning too."""
    if not isinstance(value, list):
        return text_of(value), ""
    thoughts: list[object] = []
    rest: list[object] = []
    for part in value:
        is_thought = isinstance(part, dict) and part.get("type") in ("thinking", "reasoning")
        (thoughts if is_thought else rest).append(part)
    return text_of(rest), text_of(thoughts)


def join_surrogates(text: str) -> str:
    """The text as Unicode that can be written.

    The two halves of a surrogate pair that came in two chunks are joined, a half without its other one is replaced by
    U+FFFD.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
