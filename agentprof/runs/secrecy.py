"""API keys stay inside: they are taken out of what is kept and exported, even where a server sent them back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentprof.records.spans import AttributeValue, Span

HIDDEN = "(key, not kept)"
_SHORTEST_SECRET = 12


def real_secrets(texts: Sequence[str]) -> tuple[str, ...]:
    """The long ones: what is shorter is a placeholder, such as EMPTY, and may stand for itself elsewhere."""
    return tuple(text for text in texts if len(text) >= _SHORTEST_SECRET)


def hide_in_span(span: Span, secrets: Sequence[str]) -> Span:
    """The span without the secrets, in its attributes and its error."""
    if not secrets:
        return span
    attributes = {name: _hide(value, secrets) for name, value in span.attributes.items()}
    return replace(span, attributes=attributes, error=None if span.error is None else _hide_in(span.error, secrets))


def _hide(value: AttributeValue, secrets: Sequence[str]) -> AttributeValue:
    if isinstance(value, str):
        return _hide_in(value, secrets)
    return [_hide_in(text, secrets) for text in value] if isinstance(value, (list, tuple)) else value


def _hide_in(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text
