"""A spreadsheet without a screen."""

from gridcalc.errors import CellError, FormulaError
from gridcalc.refs import Range, Ref
from gridcalc.sheet import Sheet

__all__ = ["CellError", "FormulaError", "Range", "Ref", "Sheet"]
