"""`agentprof runs`: what has been run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from agentprof.errors import InputError
from agentprof.report.layout import table
from agentprof.runs.store import RunData, list_runs, read_run

_HEADERS = ("run", "scenarios", "backends", "sessions", "state")
_UNLIMITED = 10_000
_DEFAULT = Path("runs")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=_DEFAULT)
def runs(folder: Path) -> None:
    """List the runs in FOLDER (default: runs), oldest first.

    \b
    Example:
      agentprof runs
    """
    if not folder.is_dir() and folder != _DEFAULT:
        raise InputError(f"{folder}: there is no such folder.")
    rows = [_row(path) for path in list_runs(folder)]
    if not rows:
        click.echo(f"{folder}: no runs yet. `agentprof replay SCENARIO -b local` makes one.", err=True)
        return
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else _UNLIMITED
    click.echo("\n".join(table(_HEADERS, rows, left=(0, 1, 2, 4), width=width)))


def _row(folder: Path) -> tuple[str, ...]:
    try:
        data = read_run(folder)
    except InputError as error:
        return (folder.name, "", "", "", str(error))
    return (
        folder.name,
        ", ".join(data.facts.get("scenarios") or ()),
        ", ".join(data.facts.get("backends") or ()),
        f"{data.sessions} of {len(data.facts.get('planned') or ())}",
        _state(data),
    )


def _state(data: RunData) -> str:
    """Whether the run came to its end, and how many of its sessions didn't complete."""
    state = "finished" if data.facts.get("is_finished") else "incomplete"
    return f"{state}, {data.unfinished} not completed" if data.unfinished else state
