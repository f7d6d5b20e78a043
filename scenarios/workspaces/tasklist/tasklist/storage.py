"""Tasks to JSON and back."""

import json
from pathlib import Path

from tasklist.model import Task


def from_row(row):
    return Task(row["title"], row["done"])


def to_row(task):
    return {"title": task.title, "done": task.is_done}


def load(path):
    return list(map(from_row, json.loads(Path(path).read_text()))) if Path(path).exists() else []


def save(path, tasks):
    Path(path).write_text(json.dumps(list(map(to_row, tasks))))
