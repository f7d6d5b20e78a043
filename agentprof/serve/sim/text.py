"""Plausible words for replies, and arguments that fit a tool's JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Any

from agentprof.serve.sim.tokens import tokenize

_POOL_TOKENS = 8192
_VOCABULARY = """
the a this that each one first last same new old whole test file line value function module error change fix
check path name list key time case call loop branch index result input output string number date year month leap
rule parser cache queue token prompt reply server client request stream step turn tool run build code bug report
returns reads writes takes gives keeps finds fails passes skips starts ends shows means needs uses calls expects
is was has can must should does not only also then so because when where before after until unless and or but if
in of to for from with without by at on over under between into again still already always never here there two
three four zero empty wrong right small large missing shared local simple exact expected
"""
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "command": ("ls -la", "python -m pytest -q", "git diff --stat", "grep -rn TODO .", "sed -n 1,40p main.py"),
    "path": ("README.md", "src/main.py", "tests/test_main.py", "pyproject.toml"),
    "pattern": ("def main", "import re", "class [A-Z]", "return None"),
}


@cache
def _pool() -> tuple[str, ...]:
    random = Random(20)  # noqa: S311
    vocabulary = _VOCABULARY.split()
    sentences: list[str] = []
    tokens = 0
    while tokens < _POOL_TOKENS:
        words = random.choices(vocabulary, k=random.randint(5, 14))
        sentence = " " + " ".join(words).capitalize() + random.choice((".", ".", ".", ":", "?"))
        sentences.append(sentence)
        tokens += len(tokenize(sentence))
    return tokenize("".join(sentences))


@cache
def _starts() -> tuple[int, ...]:
    return tuple(at for at, piece in enumerate(_pool()) if len(piece) > 1 and piece[1].isupper())


def draw_text(tokens: int, random: Random) -> list[str]:
    """So many tokens of prose. Joined and tokenised again they are the same tokens."""
    pool = _pool()
    start = random.choice(_starts())
    pieces = list(pool[start : start + tokens])
    while len(pieces) < tokens:
        pieces += pool[: tokens - len(pieces)]
    return pieces


def draw_arguments(schema: Mapping[str, Any], random: Random) -> Any:
    """A value that a JSON Schema allows: required properties filled; enums, numbers, lists and objects respected."""
    if "enum" in schema:
        return random.choice(list(schema["enum"]))
    match schema.get("type"):
        case "integer":
            return random.randint(int(schema.get("minimum", 1)), int(schema.get("maximum", 99)))
        case "number":
            return round(random.uniform(float(schema.get("minimum", 0)), float(schema.get("maximum", 1))), 3)
        case "boolean":
            return random.random() < 0.5
        case "array":
            return [
                draw_arguments(schema.get("items") or {"type": "string"}, random) for _ in range(random.randint(1, 3))
            ]
        case "object":
            properties = schema.get("properties") or {}
            names = [name for name in properties if name in (schema.get("required") or properties)]
            return {name: _draw_property(name, properties[name], random) for name in names}
        case _:
            return "".join(draw_text(random.randint(4, 12), random)).strip()


def _draw_property(name: str, schema: Mapping[str, Any], random: Random) -> Any:
    if name in _ARGUMENTS and "enum" not in schema and schema.get("type") == "string":
        return random.choice(_ARGUMENTS[name])
    return draw_arguments(schema, random)
