"""The command line: `python -m gridcalc prices.csv B2=4.5 "insert row 3" show`."""

import re
import sys
from pathlib import Path

from gridcalc import csvio
from gridcalc.errors import FormulaError
from gridcalc.formats import show, table

_ASSIGNMENT = re.compile(r"\s*([A-Za-z]{1,3}\d+)\s*=(.*)", re.DOTALL)
_CHANGE = re.compile(r"(insert|delete) (row|column) (\d+)(?: (\d+))?")


def main(arguments, out=sys.stdout):
    """Run commands on a CSV file; returns the exit code."""
    if not arguments:
        print(__doc__.strip(), file=out)
        return 2
    path, *commands = arguments
    try:
        sheet = csvio.load(Path(path).read_text())
    except OSError as error:
        print(f"{path}: {error.strerror}", file=out)
        return 2
    for command in commands or ["show"]:
        try:
            run(sheet, command, path, out)
        except (ValueError, FormulaError) as error:
            print(f"{command}: {error}", file=out)
            return 1
    return 0


def run(sheet, command, path, out):
    """Run one command. Raises ValueError for one that isn't known."""
    if change := _CHANGE.fullmatch(command):
        verb, what, number, count = change.groups()
        getattr(sheet, f"{verb}_{what}s")(int(number), int(count or 1))
    elif assignment := _ASSIGNMENT.fullmatch(command):
        sheet.set(assignment[1], assignment[2])
    elif command == "show":
        used = sheet.used()
        print(table(sheet.values(used)) if used else "empty", file=out)
    elif command in ("undo", "redo"):
        getattr(sheet, command)()
    elif command == "save":
        Path(path).write_text(csvio.dump(sheet, has_formulas=True))
    else:
        print(show(sheet.value(command)), file=out)
