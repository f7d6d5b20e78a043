"""A date, and what can be asked of it."""

from typing import NamedTuple

from dateparse.leap import days_in_month, is_leap


class Date(NamedTuple):
    """A day of the Gregorian calendar."""

    year: int
    month: int
    day: int

    def is_valid(self):
        """Whether the calendar has this day."""
        return 1 <= self.month <= 12 and 1 <= self.day <= days_in_month(self.year, self.month)

    def day_of_year(self):
        """1 for 1 January; 365 or 366 for 31 December."""
        return sum(days_in_month(self.year, month) for month in range(1, self.month)) + self.day

    def days_left(self):
        """Days until 31 December of the same year."""
        return (366 if is_leap(self.year) else 365) - self.day_of_year()
