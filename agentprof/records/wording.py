"""What pydantic finds wrong, in words for the person who wrote the file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from agentprof.records.document import Loc

_ITEM_NAMES = {"turns": "turn", "steps": "step", "calls": "call", "checks": "check"}

_PURPOSES = {
    "name": "a short name in lowercase letters, digits and -",
    "workspace": "the folder that each session gets a fresh copy of",
    "system": "the file with the system prompt",
    "tools": "the tools that the model is offered, such as [bash, read_file]",
    "turns": "what the user says, and the steps that follow",
    "user": "what the user says in this turn",
    "base_url": "where the server is, such as http://127.0.0.1:8000/v1",
    "model": "the model's name as the server lists it under /v1/models",
}


def place(loc: Loc) -> str:
    """A location in words: `turn 1, step 2, call 1: read_file` for `turns.0.steps.1.calls.0.read_file`."""
    items: list[str] = []
    keys: list[str] = []
    if len(loc) > 1 and loc[0] == "backends":
        items.append(f'backend "{loc[1]}"')
        loc = loc[2:]
    for part in loc:
        if not isinstance(part, int):
            keys.append(part)
        elif keys and keys[-1] in _ITEM_NAMES:
            items.append(f"{_ITEM_NAMES[keys.pop()]} {part + 1}")
    return ": ".join(part for part in (", ".join(items), ".".join(keys)) if part)


def suggestion(found: str, known: Iterable[str]) -> str:
    """` Did you mean "search"?` where one of the known words is near; else nothing."""
    near = difflib.get_close_matches(found.lower(), list(known), n=1, cutoff=0.6)
    return f' Did you mean "{near[0]}"?' if near else ""


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Words for a key that doesn't belong where it was found."""
    names = list(known)
    return f'"{key}" is not a key here. Keys: {", ".join(names)}.{suggestion(key, names)}'


def missing_key(key: str) -> str:
    """Words for a key that must be there."""
    return f'"{key}" is missing' + (f": {_PURPOSES[key]}" if key in _PURPOSES else "")


def found_words(value: Any, text: str | None) -> str:
    """A value as its writer knows it; `text` is how it stands in the file."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"{text or value}, which YAML reads as {'true' if value else 'false'}"
        case int() | float():
            return f"the number {text or value}"
        case str():
            return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}…"'
        case list() | tuple():
            return "a list"
        case _:
            return "`key: value` pairs"


def words_of(error: Mapping[str, Any], text: str | None) -> str:
    """One pydantic error (an item of `ValidationError.errors()`) in words, without its place.

    text: the value as it stands in the file. Errors about keys are not for this function.
    """
    kind, value, context = str(error["type"]), error["input"], error.get("ctx", {})
    found = found_words(value, text)
    limit = next((context[key] for key in ("ge", "gt", "min_length", "max_length") if key in context), None)
    match kind:
        case "string_type" | "path_type":
            hint = "; put it in quotes" if isinstance(value, bool | int | float) else ""
            return f"expected text; found {found}{hint}"
        case "int_type" | "int_from_float" | "int_parsing":
            return f"expected a whole number; found {found}"
        case "float_type" | "float_parsing" | "finite_number":
            return f"expected a number; found {found}"
        case "tuple_type":
            return f'expected a list, such as [a, b] or lines that begin with "- "; found {found}'
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"expected `key: value` pairs; found {found}"
        case "greater_than_equal":
            return f"must be at least {limit}; found {text or value}"
        case "greater_than":
            return f"must be more than {limit}; found {text or value}"
        case "too_short":
            return f"needs at least {limit}; found none"
        case "string_too_short":
            return "is empty"
        case "string_too_long":
            return f"must be at most {limit} characters; found {len(value)}"
        case "string_pattern_mismatch":
            lower = "lowercase " if "A-Z" not in str(context.get("pattern")) else ""
            extra = "-" if lower else ". _ -"
            return f"may hold {lower}letters, digits and {extra} and begins with a letter or digit; found {found}"
        case "literal_error":
            choices = [word.strip(" '") for word in str(context["expected"]).replace(" or ", ",").split(",")]
            near = suggestion(str(value), choices)
            return f"{found} is not one of: {', '.join(choices)}.{near}"
        case "value_error":
            return str(context["error"])
        case _:
            return str(error["msg"])
