"""A task."""

from dataclasses import dataclass


@dataclass
class Task:
    title: str
    is_done: bool = False

    def line(self, number):
        mark = "x" if self.is_done else " "
        return f"{number}. [{mark}] {self.title}"
