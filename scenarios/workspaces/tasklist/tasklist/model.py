"""A task."""

from dataclasses import dataclass


@dataclass
class Task:
    title: str
    is_done: bool = False
