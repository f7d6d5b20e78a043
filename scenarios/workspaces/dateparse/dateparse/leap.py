"""Leap years and the lengths of months."""

_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(year):
    """Whether a year of the Gregorian calendar has a 29 February."""
    return year % 4 == 0


def days_in_month(year, month):
    """Days of a month; months count from 1."""
    if month == 2 and is_leap(year):
        return 29
    return _DAYS[month - 1]
