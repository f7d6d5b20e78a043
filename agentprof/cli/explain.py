"""`agentprof explain`: where a run's time went, again, from its folder alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from agentprof.analysis.explain import explain as explain_spans
from agentprof.errors import ExitCode, InputError
from agentprof.report.text import render_run
from agentprof.runs.store import RunData, list_runs, read_run

_LATEST = "LATEST"
_RUN_FACTS = (
    "name",
    "created",
    "command",
    "is_finished",
    "agentprof_version",
    "scenarios",
    "backends",
    "options",
    "host",
    "client",
)


@click.command()
@click.argument("run", type=click.Path(path_type=Path), default=Path("runs/LATEST"))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON that docs/metrics.md describes.")
def explain(run: Path, *, as_json: bool) -> int:
    """Explain a run: its ledger, rates, calls and cautions.

    RUN is a run folder; `runs/LATEST`, the default, stands for the newest one in `runs`.

    \b
    Examples:
      agentprof explain
      agentprof explain runs/2026-11-30T081200-fix-failing-test-local
      agentprof explain runs/LATEST --json | jq .sessions[0].ledger
    """
    data = read_run(_resolve(run))
    if as_json:
        click.echo(orjson.dumps(explain_run(data), option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(render_run(explain_run(data)))
    return _report_problems(data)


def print_run(folder: Path) -> None:
    """Print a run's explanation as text."""
    click.echo(render_run(explain_run(read_run(folder))))


def explain_run(data: RunData) -> dict[str, Any]:
    """The contract's JSON for a run folder."""
    facts: Mapping[str, Any] = {key: data.facts[key] for key in _RUN_FACTS if key in data.facts}
    return explain_spans({**facts, "folder": str(data.folder), "problems": list(data.problems)}, data.spans)


def _report_problems(data: RunData) -> int:
    for problem in data.problems:
        click.echo(f"agentprof: {problem}", err=True)
    return ExitCode.INCOMPLETE if data.problems else ExitCode.OK


def _resolve(run: Path) -> Path:
    """`LATEST` stands for the newest run of its folder."""
    if run.name != _LATEST or run.exists():
        return run
    found = list_runs(run.parent)
    if not found:
        raise InputError(f"{run.parent}: no runs yet. `agentprof replay SCENARIO -b local` makes one.")
    return found[-1]
