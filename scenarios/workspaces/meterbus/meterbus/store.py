"""Readings, kept as CSV: one line each, in the order in which they were taken."""

import csv
from dataclasses import dataclass

COLUMNS = ("day", "address", "model", "name", "raw")


@dataclass(frozen=True)
class Reading:
    """What a meter said: `raw` in steps of its registers, `day` as a number or a date."""

    day: object
    address: int
    model: str
    name: str
    raw: int


class StoreError(ValueError):
    """A file isn't one of readings."""


class Store:
    """A file of readings."""

    def __init__(self, path):
        self.path = path

    def add(self, readings):
        """Append readings; the first ones bring the heading."""
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if file.tell() == 0:
                writer.writerow(COLUMNS)
            for reading in readings:
                writer.writerow([getattr(reading, column) for column in COLUMNS])

    def load(self):
        """All readings. Raises StoreError and names the line."""
        with open(self.path, newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            heading = next(rows, [])
            if tuple(heading) != COLUMNS:
                raise StoreError(f"{self.path}:1: the heading is {','.join(heading)!r}, not {','.join(COLUMNS)!r}")
            return [self._reading(number, row) for number, row in enumerate(rows, start=2)]

    def _reading(self, number, row):
        if len(row) != len(COLUMNS):
            raise StoreError(f"{self.path}:{number}: {len(row)} columns, not {len(COLUMNS)}")
        day, address, model, name, raw = row
        try:
            return Reading(day, int(address), model, name, int(raw))
        except ValueError:
            raise StoreError(f"{self.path}:{number}: {address!r} or {raw!r} is not a number") from None
