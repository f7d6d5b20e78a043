"""Dates as people write them in forms, checked against the Gregorian calendar."""

from dateparse.calendar import Date
from dateparse.parse import DateError, parse

__all__ = ["Date", "DateError", "parse"]
