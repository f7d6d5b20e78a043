"""Sheets from CSV files and to them."""

import csv
import io

from gridcalc.formats import show
from gridcalc.refs import Ref
from gridcalc.sheet import Sheet


def load(text, delimiter=None):
    """A sheet from CSV text; the delimiter is guessed if it isn't given. Cells that begin with `=` are formulas."""
    sheet = Sheet()
    reader = csv.reader(io.StringIO(text), delimiter=delimiter or guess_delimiter(text))
    sheet.fill("A1", reader)
    return sheet


def dump(sheet, delimiter=",", has_formulas=False):
    """CSV text of a sheet: its values, or what was written into its cells."""
    used = sheet.used()
    if used is None:
        return ""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    for row in range(used.height):
        refs = [Ref(row, column) for column in range(used.width)]
        writer.writerow([sheet.text(ref) if has_formulas else show(sheet.value(ref)) for ref in refs])
    return out.getvalue()


def guess_delimiter(text):
    """The one of `,` `;` and tab that is most frequent in the first line."""
    first = text.partition("\n")[0]
    return max(",;\t", key=first.count)
