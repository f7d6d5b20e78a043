"""The text of a formula, cut into tokens."""

import re
from typing import NamedTuple

from gridcalc.errors import FormulaError

_PATTERN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)
  | (?P<text>"(?:[^"]|"")*")
  | (?P<error>\#(?:DIV/0!|VALUE!|REF!|NAME\?|N/A))
  | (?P<ref>\$?[A-Za-z]{1,3}\$?[1-9]\d*(?![A-Za-z0-9_(]))
  | (?P<name>[A-Za-z_][A-Za-z0-9_.]*)
  | (?P<operator><=|>=|<>|[-+*/^&=<>%:,();])
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    """kind: `number`, `text`, `error`, `ref`, `name`, `operator` or `end`."""

    kind: str
    text: str
    position: int


def tokenize(formula):
    """Tokens of a formula without its `=`, the last of them `end`. Raises FormulaError."""
    tokens = []
    position = 0
    while position < len(formula):
        match = _PATTERN.match(formula, position)
        if match is None:
            raise FormulaError(f"unexpected {formula[position]!r}", position)
        if match.lastgroup != "space":
            tokens.append(Token(match.lastgroup, match[0], position))
        position = match.end()
    tokens.append(Token("end", "", len(formula)))
    return tokens
