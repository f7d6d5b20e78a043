"""What a formula's tree is worth, given the values of the cells it reads."""

import operator

from gridcalc.errors import DIV, NAME, VALUE, CellError
from gridcalc.functions import FUNCTIONS, Values, to_number, to_text, to_truth
from gridcalc.nodes import Area, Binary, Call, Cell, Literal, Unary

_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


def evaluate(node, read):
    """The value of a tree. `read(ref)` gives the value of a cell. An error becomes the value."""
    try:
        value = _evaluate(node, read)
    except CellError as error:
        return error
    except (OverflowError, ZeroDivisionError):
        return CellError(DIV)
    if isinstance(value, Values):
        return CellError(VALUE, "a range stands where one value is needed")
    return 0 if value is None else value


def _evaluate(node, read):
    match node:
        case Literal():
            if isinstance(node.value, CellError):
                raise node.value
            return node.value
        case Cell():
            value = read(node.ref)
            if isinstance(value, CellError):
                raise value
            return value
        case Area():
            return _values(node.range, read)
        case Unary():
            return _unary(node, read)
        case Binary():
            return _binary(node, read)
        case Call():
            return _call(node, read)
    raise TypeError(f"not a node: {node!r}")


def _values(area, read):
    width = area.width
    flat = [read(ref) for ref in area.cells()]
    return Values([flat[start : start + width] for start in range(0, len(flat), width)])


def _unary(node, read):
    number = to_number(_evaluate(node.operand, read))
    match node.operator:
        case "-":
            return -number
        case "%":
            return number / 100
    return number


def _binary(node, read):
    left, right = _evaluate(node.left, read), _evaluate(node.right, read)
    sign = node.operator
    if sign == "&":
        return to_text(left) + to_text(right)
    if sign in _COMPARISONS:
        return _compare(sign, left, right)
    one, other = to_number(left), to_number(right)
    if sign in _ARITHMETIC:
        return _ARITHMETIC[sign](one, other)
    if sign == "^":
        return _power(one, other)
    if other == 0:
        raise CellError(DIV)
    quotient = one / other
    return int(quotient) if quotient.is_integer() and abs(quotient) < 1e15 else quotient


def _power(base, exponent):
    if base == 0 and exponent < 0:
        raise CellError(DIV)
    power = base**exponent if abs(exponent) < 1024 else float(base) ** exponent
    if isinstance(power, complex):
        raise CellError(VALUE, "the root of a negative number")
    return power


def _compare(sign, left, right):
    """Numbers come before text, text before truth values; an empty cell is like 0 or an empty text."""
    for value in (left, right):
        if isinstance(value, Values):
            raise CellError(VALUE, "a range can't be compared")
    left = ("" if isinstance(right, str) else 0) if left is None else left
    right = ("" if isinstance(left, str) else 0) if right is None else right
    return _COMPARISONS[sign](_rank(left), _rank(right))


def _rank(value):
    if isinstance(value, bool):
        return (2, value)
    return (1, value.lower()) if isinstance(value, str) else (0, value)


def _call(node, read):
    arguments = node.arguments
    if node.name == "IF" and 2 <= len(arguments) <= 3:
        if to_truth(_evaluate(arguments[0], read)):
            return _evaluate(arguments[1], read)
        return _evaluate(arguments[2], read) if len(arguments) == 3 else False
    if node.name == "IFERROR" and len(arguments) == 2:
        value = evaluate(arguments[0], read)
        return _evaluate(arguments[1], read) if isinstance(value, CellError) else value
    if node.name not in FUNCTIONS:
        raise CellError(NAME, f"there is no function {node.name}")
    function, least, most = FUNCTIONS[node.name]
    if len(arguments) < least or (most is not None and len(arguments) > most):
        raise CellError(VALUE, f"{node.name} takes other arguments")
    return function(*(_evaluate(argument, read) for argument in arguments))
