"""Tasks to JSON and back."""

import json
from pathlib import Path

from tasklist.model import Task


def load(path):
    if not Path(path).exists():
        return []
    rows = json.loads(Path(path).read_text())
    return [Task(row["title"], row["done"]) for row in rows]


def save(path, tasks):
    rows = [{"title": task.title, "done": task.is_done} for task in tasks]
    Path(path).write_text(json.dumps(rows, indent=1))
