"""Durations as people write and read them."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*")


def parse_duration(value: object) -> int:
    """Nanoseconds of `250ms`, `60s`, `1.5m` or `2h`. Raises ValueError for anything else, a bare number too."""
    match = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration; write it with a unit, such as 250ms, 60s, 10m or 1h")
    return int(Decimal(match[1]) * _UNITS_NS[match[2]])
