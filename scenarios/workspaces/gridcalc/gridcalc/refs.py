"""Cell references and ranges in A1 notation. Rows and columns count from 0 inside, from 1 and A outside."""

import re
from typing import NamedTuple

MAX_ROWS = 1_048_576
MAX_COLUMNS = 16_384

_REF = re.compile(r"(\$?)([A-Za-z]{1,3})(\$?)([1-9]\d{0,6})")


def column_name(column):
    """`A` for 0, `Z` for 25, `AA` for 26."""
    name = ""
    column += 1
    while column:
        column, rest = divmod(column - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def column_number(name):
    """0 for `A`, 25 for `Z`, 26 for `AA`."""
    number = 0
    for letter in name.upper():
        number = number * 26 + ord(letter) - ord("A") + 1
    return number - 1


class Ref(NamedTuple):
    """One cell."""

    row: int
    column: int

    def __str__(self):
        return f"{column_name(self.column)}{self.row + 1}"

    @classmethod
    def parse(cls, text):
        """The cell of `B7` or `$B$7`. Raises ValueError."""
        match = _REF.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a cell")
        ref = cls(int(match[4]) - 1, column_number(match[2]))
        if not ref.is_inside():
            raise ValueError(f"{text!r} is outside the sheet")
        return ref

    def is_inside(self):
        """Whether the sheet can have this cell."""
        return 0 <= self.row < MAX_ROWS and 0 <= self.column < MAX_COLUMNS

    def moved(self, rows, columns):
        """The cell so many rows down and columns to the right."""
        return Ref(self.row + rows, self.column + columns)


class Range(NamedTuple):
    """A rectangle of cells, both corners included. `first` is its upper left corner."""

    first: Ref
    last: Ref

    def __str__(self):
        return f"{self.first}:{self.last}"

    @classmethod
    def of(cls, one, other):
        """The range between two corners, whichever they are."""
        first = Ref(min(one.row, other.row), min(one.column, other.column))
        last = Ref(max(one.row, other.row), max(one.column, other.column))
        return cls(first, last)

    @classmethod
    def parse(cls, text):
        """The range of `A1:B9`, or of one cell. Raises ValueError."""
        one, colon, other = text.partition(":")
        first = Ref.parse(one)
        return cls.of(first, Ref.parse(other) if colon else first)

    def __contains__(self, ref):
        return self.first.row <= ref.row <= self.last.row and self.first.column <= ref.column <= self.last.column

    @property
    def height(self):
        """Rows."""
        return self.last.row - self.first.row + 1

    @property
    def width(self):
        """Columns."""
        return self.last.column - self.first.column + 1

    def cells(self):
        """Its cells, row by row."""
        for row in range(self.first.row, self.last.row + 1):
            for column in range(self.first.column, self.last.column + 1):
                yield Ref(row, column)

    def overlaps(self, other):
        """Whether the two have a cell in common."""
        return (
            self.first.row <= other.last.row
            and other.first.row <= self.last.row
            and self.first.column <= other.last.column
            and other.first.column <= self.last.column
        )
