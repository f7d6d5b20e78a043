"""The functions that formulas can call.

A function takes evaluated arguments: a value, or `Values` where a range was given. Empty cells are None.
"""

import math

from gridcalc.errors import DIV, NOT_AVAILABLE, VALUE, CellError


class Values:
    """The values of a range, row by row."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        for row in self.rows:
            yield from row


def to_number(value):
    """A value as a number: empty is 0, truth values 1 and 0, text if it reads as one. Raises CellError."""
    match value:
        case CellError():
            raise value
        case None:
            return 0
        case bool():
            return int(value)
        case int() | float():
            return value
        case str():
            try:
                return float(value) if any(mark in value for mark in ".eE") else int(value)
            except ValueError:
                raise CellError(VALUE, f"{value!r} is not a number") from None
    raise CellError(VALUE, "a range stands where one value is needed")


def to_text(value):
    """A value as text."""
    match value:
        case CellError():
            raise value
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case Values():
            raise CellError(VALUE, "a range stands where one value is needed")
    return str(value)


def to_truth(value):
    """A value as true or false."""
    if isinstance(value, str):
        if value.upper() in ("TRUE", "FALSE"):
            return value.upper() == "TRUE"
        raise CellError(VALUE, f"{value!r} is neither true nor false")
    return bool(to_number(value))


def _numbers(arguments):
    """Numbers among the arguments; in ranges, text, truth values and empty cells are passed over."""
    for argument in arguments:
        if isinstance(argument, Values):
            for value in argument:
                if isinstance(value, CellError):
                    raise value
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield value
        else:
            yield to_number(argument)


def _sum(*arguments):
    return _tidy(math.fsum(_numbers(arguments)))


def _average(*arguments):
    numbers = list(_numbers(arguments))
    if not numbers:
        raise CellError(DIV, "nothing to average")
    return _tidy(math.fsum(numbers) / len(numbers))


def _median(*arguments):
    numbers = sorted(_numbers(arguments))
    if not numbers:
        raise CellError(VALUE, "nothing to take the median of")
    middle = len(numbers) // 2
    return numbers[middle] if len(numbers) % 2 else _tidy((numbers[middle - 1] + numbers[middle]) / 2)


def _count(*arguments):
    return sum(1 for _ in _numbers(arguments))


def _count_all(*arguments):
    values = [value for argument in arguments for value in (argument if isinstance(argument, Values) else [argument])]
    return sum(value is not None and value != "" for value in values)


def _min(*arguments):
    return min(_numbers(arguments), default=0)


def _max(*arguments):
    return max(_numbers(arguments), default=0)


def _product(*arguments):
    return math.prod(_numbers(arguments))


def _round(value, digits=0):
    places = int(to_number(digits))
    scale = 10.0**places
    number = to_number(value) * scale
    return _tidy(math.copysign(math.floor(abs(number) + 0.5), number) / scale)


def _mod(value, divisor):
    number = to_number(divisor)
    if number == 0:
        raise CellError(DIV)
    return to_number(value) % number


def _sqrt(value):
    number = to_number(value)
    if number < 0:
        raise CellError(VALUE, "the root of a negative number")
    return _tidy(math.sqrt(number))


def _sum_if(values, wanted, summed=None):
    if not isinstance(values, Values):
        raise CellError(VALUE, "SUMIF needs a range")
    test = criterion(wanted)
    amounts = list(values if summed is None else summed)
    chosen = [amount for value, amount in zip(values, amounts, strict=False) if test(value)]
    return _sum(Values([chosen]))


def _count_if(values, wanted):
    if not isinstance(values, Values):
        raise CellError(VALUE, "COUNTIF needs a range")
    test = criterion(wanted)
    return sum(1 for value in values if test(value))


def criterion(wanted):
    """A test for values, from `">=10"`, `"<>open"`, `"open"` or `10`."""
    text = to_text(wanted)
    operator = next((sign for sign in (">=", "<=", "<>", ">", "<", "=") if text.startswith(sign)), "")
    operand = text[len(operator) :]
    try:
        number = float(operand)
    except ValueError:
        return _text_test(operator, operand.lower())
    tests = {
        ">=": lambda value: value >= number,
        "<=": lambda value: value <= number,
        ">": lambda value: value > number,
        "<": lambda value: value < number,
        "<>": lambda value: value != number,
    }
    test = tests.get(operator, lambda value: value == number)
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and test(value)


def _text_test(operator, operand):
    if operator == "<>":
        return lambda value: str(value or "").lower() != operand
    return lambda value: isinstance(value, str) and value.lower() == operand


def _look_up(wanted, table, column, is_sorted=True):
    if not isinstance(table, Values):
        raise CellError(VALUE, "VLOOKUP needs a range")
    index = int(to_number(column)) - 1
    best = None
    for row in table.rows:
        if not 0 <= index < len(row):
            raise CellError(VALUE, "the range has no such column")
        if row[0] == wanted:
            return row[index]
        if to_truth(is_sorted) and _is_below(row[0], wanted):
            best = row
    if best is None:
        raise CellError(NOT_AVAILABLE, "nothing found")
    return best[index]


def _is_below(value, wanted):
    is_number = isinstance(value, int | float) and isinstance(wanted, int | float)
    return value < wanted if is_number or (isinstance(value, str) and isinstance(wanted, str)) else False


def _left(text, count=1):
    return to_text(text)[: max(0, int(to_number(count)))]


def _right(text, count=1):
    length = max(0, int(to_number(count)))
    return to_text(text)[-length:] if length else ""


def _middle(text, start, count):
    begin = int(to_number(start)) - 1
    if begin < 0:
        raise CellError(VALUE, "MID counts from 1")
    return to_text(text)[begin : begin + max(0, int(to_number(count)))]


def _concat(*arguments):
    parts = [part for argument in arguments for part in (argument if isinstance(argument, Values) else [argument])]
    return "".join(map(to_text, parts))


def _tidy(number):
    """A whole number as int, so that 42.0 shows and compares as 42."""
    return int(number) if float(number).is_integer() and abs(number) < 1e15 else number


FUNCTIONS = {
    "SUM": (_sum, 1, None),
    "AVERAGE": (_average, 1, None),
    "MEDIAN": (_median, 1, None),
    "COUNT": (_count, 1, None),
    "COUNTA": (_count_all, 1, None),
    "COUNTIF": (_count_if, 2, 2),
    "MIN": (_min, 1, None),
    "MAX": (_max, 1, None),
    "PRODUCT": (_product, 1, None),
    "SUMIF": (_sum_if, 2, 3),
    "ABS": (lambda value: abs(to_number(value)), 1, 1),
    "ROUND": (_round, 1, 2),
    "MOD": (_mod, 2, 2),
    "SQRT": (_sqrt, 1, 1),
    "INT": (lambda value: math.floor(to_number(value)), 1, 1),
    "AND": (lambda *values: all(map(to_truth, values)), 1, None),
    "OR": (lambda *values: any(map(to_truth, values)), 1, None),
    "NOT": (lambda value: not to_truth(value), 1, 1),
    "LEN": (lambda text: len(to_text(text)), 1, 1),
    "UPPER": (lambda text: to_text(text).upper(), 1, 1),
    "LOWER": (lambda text: to_text(text).lower(), 1, 1),
    "TRIM": (lambda text: " ".join(to_text(text).split()), 1, 1),
    "LEFT": (_left, 1, 2),
    "RIGHT": (_right, 1, 2),
    "MID": (_middle, 3, 3),
    "CONCAT": (_concat, 1, None),
    "VLOOKUP": (_look_up, 3, 4),
}
"""Functions by name, each with the least and the most arguments it takes. IF and IFERROR are in evaluate.py."""
