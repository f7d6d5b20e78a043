"""Plain text: bars, tables, wrapped lines, and numbers as they are printed. Nothing here knows what it shows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

MISSING = "–"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, cells: int) -> str:
    """A bar of block characters as long as `share` (0 to 1) of `cells`, to an eighth of a cell, trailing spaces off.

    Anything above zero shows at least an eighth.
    """
    eighths = round(min(max(share, 0.0), 1.0) * cells * 8)
    if share > 0:
        eighths = max(1, eighths)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def wrap(text: str, width: int, *, first: str = "", rest: str | None = None) -> list[str]:
    """Text in lines of at most `width`; `first` and `rest` stand before the first and the other lines."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=first if rest is None else rest, break_on_hyphens=False
    )


def hang(text: str, width: int, lead: str) -> list[str]:
    """A line that begins with `lead` and goes on with text, wrapped below itself; trailing spaces off.

    Where less than 22 columns are left beside the lead, text that doesn't fit stands on lines of its own below it.
    """
    room = width - len(lead)
    if not text:
        return [lead.rstrip()]
    if room < 22 and len(text) > room:
        return [lead.rstrip(), *wrap(text, width, first=" " * 8)]
    return wrap(text, width, first=lead, rest=" " * len(lead))


def shorten(text: str, width: int) -> str:
    """Text cut to `width`, with … where something is missing."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int], width: int) -> list[str]:
    """A table with two spaces before it and between its columns, as wide as needed and at most `width`.

    left: the columns that are aligned left; of these the widest are shortened where the table would be too wide.
    """
    cells = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    excess = sum(widths) + 2 * len(widths) - width
    while excess > 0:
        widest = max(left, key=lambda column: widths[column])
        if widths[widest] <= 4:
            break
        widths[widest] -= 1
        excess -= 1
    return [
        "".join("  " + _aligned(cell, widths[column], column in left) for column, cell in enumerate(row)).rstrip()
        for row in cells
    ]


def _aligned(cell: str, width: int, is_left: bool) -> str:
    return shorten(cell, width).ljust(width) if is_left else cell.rjust(width)


def ms(ns: float | None) -> str:
    """Nanoseconds as milliseconds with one decimal; more than nothing never prints as 0."""
    if ns is None:
        return MISSING
    return "<0.1" if 0 < ns < 50_000 else f"{ns / 1e6:,.1f}"


def duration(ns: float) -> str:
    """Nanoseconds as milliseconds, seconds, or minutes and seconds."""
    if ns < 999_500_000:
        return f"{ms(ns)} ms"
    if ns < 119_950_000_000:
        return f"{ns / 1e9:.1f} s"
    seconds = round(ns / 1e9)
    return f"{seconds // 60} min {seconds % 60:02d} s"


def percent(part: float | None, whole: float | None, decimals: int = 0) -> str:
    """A share in percent; more than nothing never prints as 0."""
    if part is None or not whole:
        return MISSING
    share = 100 * part / whole
    least = 10.0**-decimals
    return f"<{least:.{decimals}f} %" if 0 < share < least / 2 else f"{share:.{decimals}f} %"


def count(number: float | None) -> str:
    """A count with thousands marked."""
    return MISSING if number is None else f"{number:,.0f}"


def rate(tok_s: float | None) -> str:
    """Tokens per second, to about three digits."""
    if tok_s is None:
        return MISSING
    return f"{tok_s:,.0f}" if tok_s >= 100 else f"{tok_s:.1f}" if tok_s >= 1 else f"{tok_s:.2g}"
