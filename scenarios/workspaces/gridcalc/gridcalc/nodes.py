"""The tree of a formula. Each node can write itself as text again."""

from dataclasses import dataclass

from gridcalc.refs import Range, Ref, column_name

PRECEDENCE = {"=": 1, "<>": 1, "<": 1, ">": 1, "<=": 1, ">=": 1, "&": 2, "+": 3, "-": 3, "*": 4, "/": 4, "^": 6}
NEGATION = 5


@dataclass(frozen=True)
class Literal:
    """A number, a text, a truth value, or an error that was written out."""

    value: object

    def __str__(self):
        match self.value:
            case bool():
                return "TRUE" if self.value else "FALSE"
            case str():
                return '"' + self.value.replace('"', '""') + '"'
            case float() if self.value.is_integer() and abs(self.value) < 1e15:
                return str(int(self.value))
            case int() | float():
                return repr(self.value)
            case _:
                return self.value.kind


@dataclass(frozen=True)
class Cell:
    """A reference to a cell. `$` before the row or column keeps it when the formula is copied."""

    ref: Ref
    is_row_fixed: bool = False
    is_column_fixed: bool = False

    def __str__(self):
        column = ("$" if self.is_column_fixed else "") + column_name(self.ref.column)
        return column + ("$" if self.is_row_fixed else "") + str(self.ref.row + 1)


@dataclass(frozen=True)
class Area:
    """A reference to a range, by two corners."""

    one: Cell
    other: Cell

    @property
    def range(self):
        """The rectangle."""
        return Range.of(self.one.ref, self.other.ref)

    def __str__(self):
        return f"{self.one}:{self.other}"


@dataclass(frozen=True)
class Unary:
    """`-x`, `+x`, or `x%`."""

    operator: str
    operand: object

    def __str__(self):
        inner = _wrapped(self.operand, NEGATION)
        return f"{inner}%" if self.operator == "%" else f"{self.operator}{inner}"


@dataclass(frozen=True)
class Binary:
    """Two operands."""

    operator: str
    left: object
    right: object

    def __str__(self):
        level = PRECEDENCE[self.operator]
        return f"{_wrapped(self.left, level)}{self.operator}{_wrapped(self.right, level + 1)}"


@dataclass(frozen=True)
class Call:
    """A function with its arguments."""

    name: str
    arguments: tuple

    def __str__(self):
        return f"{self.name}({','.join(map(str, self.arguments))})"


def _wrapped(node, level):
    inner = {Binary: lambda: PRECEDENCE[node.operator], Unary: lambda: NEGATION}.get(type(node), lambda: 9)()
    return f"({node})" if inner < level else str(node)


def walk(node):
    """A node and everything below it."""
    yield node
    match node:
        case Unary():
            yield from walk(node.operand)
        case Binary():
            yield from walk(node.left)
            yield from walk(node.right)
        case Call():
            for argument in node.arguments:
                yield from walk(argument)


def references(node):
    """The ranges that a formula reads; a single cell is a range of one."""
    found = []
    for part in walk(node):
        if isinstance(part, Cell):
            found.append(Range(part.ref, part.ref))
        elif isinstance(part, Area):
            found.append(part.range)
    return found


def rewrite(node, change):
    """The tree with `change` applied to each Cell and Area; it returns their replacement."""
    match node:
        case Cell() | Area():
            return change(node)
        case Unary():
            return Unary(node.operator, rewrite(node.operand, change))
        case Binary():
            return Binary(node.operator, rewrite(node.left, change), rewrite(node.right, change))
        case Call():
            return Call(node.name, tuple(rewrite(argument, change) for argument in node.arguments))
        case _:
            return node
