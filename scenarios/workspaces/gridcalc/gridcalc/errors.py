"""What can go wrong: in the text of a formula, and in the value of a cell."""


class FormulaError(ValueError):
    """The text is not a formula. `position` counts characters from 0."""

    def __init__(self, message, position):
        super().__init__(f"{message} (at character {position + 1})")
        self.position = position


class CellError(Exception):
    """A value that a cell has instead of a number: it spreads to whatever uses the cell.

    kind: one of `#DIV/0!`, `#VALUE!`, `#REF!`, `#NAME?`, `#CYCLE!`, `#N/A`.
    """

    def __init__(self, kind, detail=""):
        super().__init__(f"{kind} {detail}".strip())
        self.kind = kind
        self.detail = detail

    def __eq__(self, other):
        return isinstance(other, CellError) and self.kind == other.kind

    def __hash__(self):
        return hash(self.kind)

    def __repr__(self):
        return f"CellError({self.kind!r})"


DIV = "#DIV/0!"
VALUE = "#VALUE!"
REF = "#REF!"
NAME = "#NAME?"
CYCLE = "#CYCLE!"
NOT_AVAILABLE = "#N/A"
KINDS = (DIV, VALUE, REF, NAME, CYCLE, NOT_AVAILABLE)
