"""Values as people want to see them."""

from gridcalc.errors import CellError

DEFAULT = "general"
_DIGITS = 12


def show(value, form=DEFAULT):
    """A value as text. Forms: `general`, `0`, `0.00`, `#,##0`, `#,##0.00`, `0%`, `0.0%`. Raises ValueError."""
    match value:
        case None:
            return ""
        case CellError():
            return value.kind
        case bool():
            return "TRUE" if value else "FALSE"
        case str():
            return value
    if form == DEFAULT:
        return _general(value)
    body, percent = (form[:-1], "%") if form.endswith("%") else (form, "")
    is_grouped = body.startswith("#,##")
    body = body.removeprefix("#,##")
    whole, point, decimals = body.partition(".")
    if whole != "0" or (point and set(decimals) != {"0"}):
        raise ValueError(f"{form!r} is not a number format")
    number = value * 100 if percent else value
    return f"{_round_half_up(number, len(decimals)):{',' if is_grouped else ''}.{len(decimals)}f}{percent}"


def _general(value):
    if isinstance(value, int):
        return str(value)
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.{_DIGITS}g}"


def _round_half_up(number, decimals):
    """Rounds 0.5 away from zero, as people do; `format` alone would round to even."""
    scale = 10**decimals
    shifted = abs(number) * scale
    rounded = int(shifted + 0.5 + 1e-9)
    return (rounded if number >= 0 else -rounded) / scale


def table(rows, form=DEFAULT):
    """Rows of values as lines of text, in columns: numbers to the right, everything else to the left."""
    texts = [[show(value, form) for value in row] for row in rows]
    if not texts:
        return ""
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row, shown in zip(rows, texts, strict=True):
        cells = [
            text.rjust(width) if _is_number(value) else text.ljust(width)
            for value, text, width in zip(row, shown, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)
