"""Text to date: ISO, German and English forms."""

import re

from dateparse.calendar import Date

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ISO = re.compile(r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})")
_GERMAN = re.compile(r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})")
_ENGLISH = re.compile(r"(?P<day>\d{1,2}) (?P<name>[A-Za-z]{3})[a-z]* (?P<year>\d{4})")


class DateError(ValueError):
    """The text is not a date that the calendar has."""


def parse(text):
    """The date that a text stands for. Raises DateError where there is none."""
    for pattern in (_ISO, _GERMAN, _ENGLISH):
        match = pattern.fullmatch(text.strip())
        if match:
            date = Date(int(match["year"]), _month(match), int(match["day"]))
            if not date.is_valid():
                raise DateError(f"the calendar has no {text!r}")
            return date
    raise DateError(f"{text!r} is not a date")


def _month(match):
    named = match.groupdict().get("name")
    if named is None:
        return int(match["month"])
    if named.lower() not in _MONTHS:
        raise DateError(f"{named!r} is not a month")
    return _MONTHS.index(named.lower()) + 1
