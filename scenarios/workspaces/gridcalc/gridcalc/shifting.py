"""What happens to cells and formulas when rows or columns come, go, or a formula is copied.

A range that rows are inserted into grows; a range that loses some of its rows shrinks; one that loses all of them
becomes #REF!. `$` matters for copies only: an inserted row moves fixed references too.
"""

from dataclasses import dataclass, replace

from gridcalc.errors import REF, CellError
from gridcalc.nodes import Area, Cell, Literal, rewrite
from gridcalc.refs import Ref


@dataclass(frozen=True)
class Shift:
    """One change of the grid. `axis` is `row` or `column`; `count` is negative for a deletion; None for a copy."""

    axis: str | None
    at: int
    count: int
    columns: int = 0

    @classmethod
    def inserted_rows(cls, at, count):
        """Rows inserted before row `at`."""
        return cls("row", at, count)

    @classmethod
    def deleted_rows(cls, at, count):
        """Rows deleted from row `at` on."""
        return cls("row", at, -count)

    @classmethod
    def inserted_columns(cls, at, count):
        """Columns inserted before column `at`."""
        return cls("column", at, count)

    @classmethod
    def deleted_columns(cls, at, count):
        """Columns deleted from column `at` on."""
        return cls("column", at, -count)

    @classmethod
    def copied(cls, rows, columns):
        """A formula copied so many rows down and columns to the right."""
        return cls(None, 0, rows, columns)

    def cell(self, ref):
        """Where a cell goes; None if it is deleted."""
        moved = self._moved(getattr(ref, self.axis))
        return None if moved is None else ref._replace(**{self.axis: moved})

    def formula(self, tree):
        """A formula's tree after the change."""
        return rewrite(tree, self._copied if self.axis is None else self._shifted)

    def _moved(self, position):
        if position < self.at:
            return position
        if self.count < 0 and position < self.at - self.count:
            return None
        return position + self.count

    def _shifted(self, node):
        if isinstance(node, Cell):
            ref = self.cell(node.ref)
            return Literal(CellError(REF)) if ref is None else replace(node, ref=ref)
        area = node.range
        first, last = getattr(area.first, self.axis), getattr(area.last, self.axis)
        first, last = self._edges(first, last)
        if first > last:
            return Literal(CellError(REF))
        one = replace(node.one, ref=area.first._replace(**{self.axis: first}))
        other = replace(node.other, ref=area.last._replace(**{self.axis: last}))
        return Area(one, other)

    def _edges(self, first, last):
        if self.count >= 0:
            return self._moved(first), self._moved(last)
        end = self.at - self.count
        new_first = first if first < self.at else max(self.at, first + self.count)
        new_last = last if last < self.at else max(self.at - 1, last + self.count)
        return new_first, new_last if last >= end else min(new_last, self.at - 1) if last >= self.at else last

    def _copied(self, node):
        if isinstance(node, Area):
            one, other = self._copied(node.one), self._copied(node.other)
            broken = next((part for part in (one, other) if isinstance(part, Literal)), None)
            return broken or Area(one, other)
        row = node.ref.row + (0 if node.is_row_fixed else self.count)
        column = node.ref.column + (0 if node.is_column_fixed else self.columns)
        ref = Ref(row, column)
        return replace(node, ref=ref) if ref.is_inside() else Literal(CellError(REF))
