"""Checked reading of JSON that another tool wrote: every error names the file and the field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from agentprof.errors import InputError
from agentprof.records.benchmark import Figure

_LARGEST = 10**21  # more than any count, and than today in nanoseconds since 1970


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object of a file. `place`: the file, with a line where it has several objects. `path`: where in it.

    Numbers come as exact fractions of what the file says. A key that is missing or null is None.
    """

    place: str
    values: Mapping[str, Any]
    path: str = ""

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def error(self, key: str, problem: str) -> InputError:
        """An error that names the file and the field."""
        return InputError(f"{self.place}: {self.path}{key}: {problem}")

    def number(self, key: str) -> Fraction | None:
        """A finite number, not below zero. Raises InputError for text, NaN, infinity, negative and absurd numbers."""
        return self._checked(key, self.values.get(key))

    def _checked(self, name: str, value: object) -> Fraction | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, f"expected a number; found {found_words(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(name, f"expected a finite number; found {value}")
        if value < 0:
            raise self.error(name, f"can't be below zero; found {value}")
        if value > _LARGEST:
            raise self.error(name, f"expected at most {_LARGEST:.0e}; found more")
        return Fraction(str(value)) if isinstance(value, float) else Fraction(value)

    def count(self, key: str) -> int | None:
        """A whole number, not below zero."""
        value = self.number(key)
        if value is not None and value.denominator != 1:
            raise self.error(key, f"expected a whole number; found {float(value)}")
        return None if value is None else int(value)

    def numbers(self, key: str) -> list[Fraction] | None:
        """A list of numbers; None where the key is missing or one of its items is null."""
        items = self._items(key)
        if items is None:
            return None
        checked = [self._checked(f"{key}[{index}]", item) for index, item in enumerate(items)]
        known = [item for item in checked if item is not None]
        return known if len(known) == len(checked) else None

    def sums(self, key: str) -> list[Fraction] | None:
        """A list of lists of numbers, each list added up."""
        items = self._items(key)
        if items is None:
            return None
        sums = []
        for index, item in enumerate(items):
            if not isinstance(item, list):
                raise self.error(f"{key}[{index}]", f"expected a list; found {found_words(item)}")
            parts = [self._checked(f"{key}[{index}][{place}]", part) for place, part in enumerate(item)]
            sums.append(sum((part for part in parts if part is not None), Fraction(0)))
        return sums

    def _items(self, key: str) -> list[Any] | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(key, f"expected a list; found {found_words(value)}")
        return value

    def text(self, key: str) -> str | None:
        """A text; None for anything else and for an empty one. Half a surrogate pair, which is no text, is escaped."""
        value = self.values.get(key)
        return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) and value else None

    def below(self, key: str) -> Fields | None:
        """The object under a key."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"expected an object; found {found_words(value)}")
        return Fields(self.place, value, f"{self.path}{key}.")

    def find(self, *keys: str) -> Iterator[Any]:
        """The values of some keys anywhere in this object, outermost first: for settings, whose place moves."""
        waiting: list[Any] = [self.values]
        while waiting:
            value = waiting.pop(0)
            if isinstance(value, dict):
                yield from (value[key] for key in keys if value.get(key) is not None)
                waiting.extend(value.values())
            elif isinstance(value, list) and len(value) <= 100:
                waiting.extend(value)


def found_count(values: Iterator[Any]) -> int | None:
    """The first whole number, not below zero, also where it is written as text."""
    for value in values:
        if isinstance(value, str) and value.isdecimal():
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def found_text(values: Iterator[Any]) -> str | None:
    """The first text, also where it is the first of a list."""
    for value in values:
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, str) and first:
            return first
    return None


def found_words(value: object) -> str:
    """A JSON value as its reader knows it, cut where it is long."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}…"'
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"the number {value}"


def unsplit_caution(place: str, ttft: tuple[str, Figure], tpot: tuple[str, Figure]) -> tuple[str, ...]:
    """A caution where TTFT or TPOT isn't there, with the fields that would hold them; none where both are."""
    missing = [name for name, figure in (ttft, tpot) if figure.value is None]
    if not missing:
        return ()
    verb = "is" if len(missing) == 1 else "are"
    return (f"{place}: {' and '.join(missing)} {verb} missing or 0, so waits and decoding can't be parted.",)


def mean(values: list[Fraction]) -> Fraction | None:
    """The mean; None of nothing."""
    return sum(values, Fraction(0)) / len(values) if values else None
