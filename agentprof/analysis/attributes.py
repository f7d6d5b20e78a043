"""Attributes of a span by type: absent, or of another type than expected, is None, which means not measured."""

from __future__ import annotations

from agentprof.records.spans import Span


def integer(span: Span, name: str) -> int | None:
    """A whole number; a float is taken where it is one."""
    value = span.attributes.get(name)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def size(span: Span, name: str) -> int | None:
    """A whole number that can't be below zero, such as a duration in nanoseconds or a count; below is None."""
    value = integer(span, name)
    return value if value is not None and value >= 0 else None


def number(span: Span, name: str) -> float | None:
    """A number as a float."""
    value = span.attributes.get(name)
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def text(span: Span, name: str) -> str | None:
    """A text."""
    value = span.attributes.get(name)
    return value if isinstance(value, str) else None


def truth(span: Span, name: str) -> bool | None:
    """True or false."""
    value = span.attributes.get(name)
    return value if isinstance(value, bool) else None


def words(span: Span, name: str) -> tuple[str, ...]:
    """A list of texts; a single text counts as a list of one, absent as empty."""
    value = span.attributes.get(name)
    if isinstance(value, str):
        return (value,)
    if isinstance(value, int | float | None):
        return ()
    return tuple(str(word) for word in value)
