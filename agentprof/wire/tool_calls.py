"""Tool calls from their deltas, as servers and gateways really send them.

Which call a delta belongs to:

* with `index`: the call last opened at that index. A delta that brings another id and a name opens a second call
  there when it can't continue the first one, since some servers number every call 0;
* without: a known id → its call; a new id with a name → a new call; neither → the current call, unless that is
  whole already and the delta brings a name and arguments of its own (whole calls without any id).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentprof.records.call import ToolCall
from agentprof.wire.text import join_surrogates

_PLACE_KEYS = frozenset({"index", "type"})  # an entry that holds nothing else says nothing
_TOO_DEEP = '"(arguments nested too deeply)"'


class ToolCallMerger:
    """Merges `tool_calls` deltas, in order, into calls."""

    __slots__ = ("_by_id", "_by_index", "_drafts")

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []
        self._by_index: dict[int, _Draft] = {}
        self._by_id: dict[str, _Draft] = {}

    def add(self, entries: Sequence[Any]) -> int | None:
        """Take the entries of one delta; the characters of name and arguments that were new.

        None where no entry says anything: such a delta is no tool-call delta.
        """
        chars = None
        for entry in entries:
            if isinstance(entry, Mapping) and any(entry[key] for key in entry if key not in _PLACE_KEYS):
                chars = (chars or 0) + self._add_entry(entry)
        return chars

    def _add_entry(self, entry: Mapping[str, Any]) -> int:
        function = entry.get("function")
        if not isinstance(function, Mapping):
            function = entry  # some gateways leave the nesting out
        index, call_id = _index(entry.get("index")), _string(entry.get("id"))
        name, arguments = _string(function.get("name")), function.get("arguments")
        draft = self._find(index, call_id, name, arguments=arguments)
        if draft is None:
            draft = _Draft()
            self._drafts.append(draft)
        if index is not None:
            self._by_index[index] = draft
        if call_id:
            self._by_id[call_id] = draft
            draft.id = draft.id or call_id
        return draft.add_name(name) + draft.add_arguments(arguments)

    def _find(self, index: int | None, call_id: str, name: str, *, arguments: object) -> _Draft | None:
        """The call that a delta continues; None where it opens a new one."""
        known = self._by_id.get(call_id)
        current = self._drafts[-1] if self._drafts else None
        if index is not None:
            at_index = self._by_index.get(index)
            if at_index is not None:
                return known if _opens_another(at_index, call_id, name, arguments) else at_index
            return None if name or (call_id and known is None) else known or current
        if known is not None:
            return None if name and known.is_followed_by(arguments) else known
        if call_id and name:
            return None
        if current is not None and not call_id and name and arguments and current.is_whole():
            return None
        return current

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far, in the order in which they were opened. One without an id gets `call_<position>`."""
        return tuple(draft.call(f"call_{position}") for position, draft in enumerate(self._drafts))


class _Draft:
    """A call under construction."""

    __slots__ = ("_chars", "_parts", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self._parts: list[str] = []
        self._chars = 0

    def add_name(self, name: str) -> int:
        """Add a piece of the name; the characters that were new.

        A name that is repeated, or comes again in full, isn't added twice; once arguments have come, it stands.
        """
        if not name or name == self.name or (self.name and self._parts):
            return 0
        before = len(self.name)
        self.name = name if name.startswith(self.name) else self.name + name
        return len(self.name) - before

    def add_arguments(self, arguments: object) -> int:
        """Add a piece of the arguments' text; the characters that were new.

        An object in its place is the whole of them, and whole arguments that come again aren't added twice.
        """
        if arguments is None or arguments == "" or self._is_repeated(arguments):
            return 0
        if isinstance(arguments, str):
            text = arguments
        else:
            self._parts.clear()
            self._chars = 0
            try:
                text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
            except RecursionError:
                text = _TOO_DEEP
        self._parts.append(text)
        self._chars += len(text)
        return len(text)

    def is_whole(self) -> bool:
        """Whether the arguments so far are a whole JSON object."""
        last = next((part for part in reversed(self._parts) if not part.isspace()), "")
        if not last.rstrip().endswith("}"):
            return False
        return _parse("".join(self._parts)) is not None

    def is_followed_by(self, arguments: object) -> bool:
        """Whether these arguments must be another call's: this call's are whole, and these are others."""
        return arguments not in (None, "") and self.is_whole() and not self._is_repeated(arguments)

    def _is_repeated(self, arguments: object) -> bool:
        if not isinstance(arguments, str) or len(arguments) != self._chars:
            return False
        return self.is_whole() and arguments == "".join(self._parts)

    def call(self, default_id: str) -> ToolCall:
        """The call as it stands. Arguments that are empty, absent or null are `{}`."""
        text = join_surrogates("".join(self._parts))
        if text.strip() in ("", "null"):
            text = "{}"
        parsed = _parse(text)
        if parsed is None and (inner := _loads(text)) is not None and isinstance(inner, str):
            parsed = _parse(inner)  # encoded twice
            text = inner if parsed is not None else text
        return ToolCall(join_surrogates(self.id) or default_id, join_surrogates(self.name), text, parsed)


def _opens_another(draft: _Draft, call_id: str, name: str, arguments: object) -> bool:
    """Whether a delta at the index of `draft` is another call: a new id, and a name that can't belong to it."""
    if not (call_id and name and draft.id and draft.name) or call_id == draft.id:
        return False
    return name != draft.name or (arguments not in (None, "") and draft.is_whole())


def _index(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _loads(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _parse(text: str) -> dict[str, Any] | None:
    parsed = _loads(text)
    return parsed if isinstance(parsed, dict) else None
