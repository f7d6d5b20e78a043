"""A sheet: cells, changes to them, and what is computed again after a change."""

from contextlib import contextmanager
from dataclasses import dataclass

from gridcalc.errors import CYCLE, NAME, CellError, FormulaError
from gridcalc.evaluate import evaluate
from gridcalc.graph import Graph
from gridcalc.history import History
from gridcalc.nodes import references
from gridcalc.parser import parse
from gridcalc.refs import Range, Ref
from gridcalc.shifting import Shift


@dataclass
class Content:
    """What somebody wrote into a cell, and what it is worth. `tree` is None where it is no formula."""

    text: str
    tree: object = None
    value: object = None


class Sheet:
    """Cells by reference. Everything that takes a cell takes its name, such as `B7`, or a Ref."""

    def __init__(self):
        self._cells = {}
        self._graph = Graph()
        self._history = History()
        self._pending = None
        self.computed = 0

    # Reading

    def value(self, cell):
        """The value of a cell: a number, a text, a truth value, a CellError, or None where it is empty."""
        content = self._cells.get(_ref(cell))
        return None if content is None else content.value

    def text(self, cell):
        """What was written into a cell; empty where nothing was."""
        content = self._cells.get(_ref(cell))
        return "" if content is None else content.text

    def values(self, area):
        """The values of a range, as a list of rows."""
        area = Range.parse(area) if isinstance(area, str) else area
        rows = range(area.first.row, area.last.row + 1)
        columns = range(area.first.column, area.last.column + 1)
        return [[self.value(Ref(row, column)) for column in columns] for row in rows]

    def used(self):
        """The smallest range from A1 that holds all cells that aren't empty; None for an empty sheet."""
        if not self._cells:
            return None
        last = Ref(max(ref.row for ref in self._cells), max(ref.column for ref in self._cells))
        return Range(Ref(0, 0), last)

    def formulas(self):
        """References of the cells that hold formulas, in order."""
        return sorted(ref for ref, content in self._cells.items() if content.tree is not None)

    # Changing

    def set(self, cell, text):
        """Write into a cell: a formula if it begins with `=`, a number if it reads as one, else text.

        Nothing is changed when FormulaError is raised.
        """
        ref = _ref(cell)
        content = _content(str(text))
        self._history.note(ref, self.text(ref))
        self._put(ref, content)
        self._changed({ref})

    def clear(self, cell):
        """Empty a cell."""
        self.set(cell, "")

    def fill(self, cell, rows):
        """Write rows of texts, the first of them at a cell; computed once."""
        corner = _ref(cell)
        with self.batch():
            for down, row in enumerate(rows):
                for right, text in enumerate(row):
                    self.set(corner.moved(down, right), text)

    def copy(self, source, target):
        """Copy a cell; references in its formula move along, unless `$` keeps them."""
        source, target = _ref(source), _ref(target)
        content = self._cells.get(source)
        if content is None or content.tree is None:
            self.set(target, self.text(source))
            return
        moved = Shift.copied(target.row - source.row, target.column - source.column)
        self.set(target, f"={moved.formula(content.tree)}")

    @contextmanager
    def batch(self):
        """Changes inside the block are computed once, at its end, and undone at once."""
        if self._pending is not None:
            yield
            return
        self._pending = set()
        with self._history.group():
            try:
                yield
            finally:
                pending, self._pending = self._pending, None
                self._changed(pending)

    def insert_rows(self, before, count=1):
        """Insert empty rows before a row, which counts from 1."""
        self._shift(Shift.inserted_rows(before - 1, count))

    def delete_rows(self, first, count=1):
        """Delete rows from a row on, which counts from 1. What read only them becomes #REF!."""
        self._shift(Shift.deleted_rows(first - 1, count))

    def insert_columns(self, before, count=1):
        """Insert empty columns before a column, which counts from 1."""
        self._shift(Shift.inserted_columns(before - 1, count))

    def delete_columns(self, first, count=1):
        """Delete columns from a column on, which counts from 1."""
        self._shift(Shift.deleted_columns(first - 1, count))

    def undo(self):
        """Take back the last change; returns whether there was one."""
        return self._restore(self._history.undo(self.text))

    def redo(self):
        """Do again what was taken back last; returns whether there was something."""
        return self._restore(self._history.redo(self.text))

    # Inside

    def _restore(self, changes):
        for ref, text in changes:
            self._put(ref, _content(text))
        self._changed({ref for ref, _ in changes})
        return bool(changes)

    def _put(self, ref, content):
        if content.text:
            self._cells[ref] = content
        else:
            self._cells.pop(ref, None)
        self._graph.set(ref, references(content.tree) if content.tree is not None else ())

    def _shift(self, shift):
        before = {ref: content.text for ref, content in self._cells.items()}
        after = {}
        for ref, content in self._cells.items():
            target = shift.cell(ref)
            if target is not None:
                after[target] = content.text if content.tree is None else f"={shift.formula(content.tree)}"
        touched = {ref for ref in before.keys() | after.keys() if before.get(ref) != after.get(ref)}
        with self._history.group():
            for ref in sorted(touched):
                self._history.note(ref, before.get(ref, ""))
        for ref in touched:
            self._put(ref, _content(after.get(ref, "")))
        self._changed(touched)

    def _changed(self, refs):
        if self._pending is not None:
            self._pending |= refs
            return
        order, cyclic = self._graph.ordered(self._graph.affected(refs))
        for ref in cyclic:
            if ref in self._cells:
                self._cells[ref].value = CellError(CYCLE)
        for ref in order:
            content = self._cells.get(ref)
            if content is not None and content.tree is not None:
                content.value = evaluate(content.tree, self.value)
                self.computed += 1


def _ref(cell):
    return Ref.parse(cell) if isinstance(cell, str) else cell


def _content(text):
    if text.startswith("=") and len(text) > 1:
        try:
            return Content(text, parse(text))
        except FormulaError as error:
            if "unknown name" in str(error):
                return Content(text, None, CellError(NAME, str(error)))
            raise
    return Content(text, None, _plain(text))


def _plain(text):
    if text.upper() in ("TRUE", "FALSE"):
        return text.upper() == "TRUE"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text.removeprefix("'")
    return number if number == number and abs(number) != float("inf") else text
