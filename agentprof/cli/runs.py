"""`agentprof runs`: what has been run."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from agentprof.errors import InputError
from agentprof.runs.store import list_runs, read_run


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
def runs(folder: Path) -> None:
    """List the runs in FOLDER (default: runs), oldest first.

    \b
    Example:
      agentprof runs
    """
    table = Table(box=None, pad_edge=False)
    for column in ("run", "scenarios", "backends", "sessions", "state"):
        table.add_column(column, overflow="fold")
    found = list_runs(folder)
    for path in found:
        try:
            data = read_run(path)
        except InputError as error:
            table.add_row(path.name, "", "", "", str(error))
            continue
        planned = data.facts.get("planned") or []
        sessions = len({span.ref.trace_id for span in data.spans})
        table.add_row(
            path.name,
            ", ".join(data.facts.get("scenarios") or ()),
            ", ".join(data.facts.get("backends") or ()),
            f"{sessions} of {len(planned)}",
            "finished" if data.facts.get("is_finished") else "incomplete",
        )
    if not found:
        click.echo(f"{folder}: no runs yet. `agentprof replay SCENARIO -b local` makes one.", err=True)
        return
    Console().print(table)
