"""`agentprof explain`: where a run's time went, again, from its folder alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from agentprof.analysis.bench import benchmark_of_run
from agentprof.analysis.bridge import Bridge, build_bridge
from agentprof.analysis.bridge_json import bridge_json
from agentprof.analysis.explain import explain as explain_spans
from agentprof.analysis.frames import SessionFrame, session_frames
from agentprof.errors import ExitCode, InputError
from agentprof.formats.benchmarks import read_benchmark
from agentprof.records.benchmark import Benchmark
from agentprof.report.bridge_html import bridge_html
from agentprof.report.bridge_text import render_bridge
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
@click.option("--bench", metavar="BENCH", help="A bench run's folder, or another tool's result file: explain the gap.")
@click.option("--backend", metavar="NAME", help="With --bench: which of the run's backends.")
@click.option("--open", "is_open", is_flag=True, help="With --bench: show what waits and decoding are made of.")
@click.option("--force", is_flag=True, help="With --bench: explain though the benchmark is of another backend.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON that docs/metrics.md describes.")
@click.option("--html", type=click.Path(path_type=Path), help="With --bench: write the bridge as one HTML file.")
def explain(run: Path, *, as_json: bool, html: Path | None, **options: Any) -> int:
    """Explain a run: its ledger, rates, calls and cautions; with --bench, why it isn't as fast as the benchmark.

    RUN is a run folder; `runs/LATEST`, the default, stands for the newest one in `runs`.

    \b
    Examples:
      agentprof explain
      agentprof explain runs/2026-11-30T081200-fix-failing-test-local
      agentprof explain runs/LATEST --json | jq '.sessions[-1].ledger'
      agentprof explain runs/LATEST --bench vllm-result.json --html gap.html
    """
    data = read_run(resolve_run(run))
    bridge = _bridge(data, options) if options["bench"] else None
    if bridge is None and (html or options["is_open"] or options["force"] or options["backend"]):
        raise InputError("--html, --open, --force and --backend go with --bench.")
    if html is not None and bridge is not None:
        _write(html, bridge_html(bridge))
    if as_json:
        told = explain_run(data) | ({"bridge": bridge_json(bridge)} if bridge else {})
        click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
    elif bridge is not None:
        click.echo(render_bridge(bridge, is_open=options["is_open"]))
    else:
        click.echo(render_run(explain_run(data)))
    return _report_problems(data)


def _bridge(data: RunData, options: Mapping[str, Any]) -> Bridge:
    """The bridge from the benchmark that was named to the run."""
    sessions = session_frames(data.spans)
    backend = options["backend"] or _only_backend(sessions)
    benchmark = open_benchmark(options["bench"], backend)
    return build_bridge(sessions, benchmark, run=data.facts, backend=options["backend"], is_forced=options["force"])


def open_benchmark(source: str, backend: str | None) -> Benchmark:
    """A benchmark from a bench run's folder, or from a result file.

    Of a folder with several backends, the part on `backend`; `FOLDER#GROUP` names one of several groups.
    """
    path, _, group = source.partition("#")
    folder = resolve_run(Path(path))
    if not folder.is_dir():
        return read_benchmark(source)
    data = read_run(folder)
    if data.facts.get("command") != "bench":
        raise InputError(f"{folder}: is no benchmark but a run of `agentprof {data.facts.get('command')}`.")
    names = list(data.facts.get("backends") or ())
    chosen = backend if backend in names else names[0] if len(names) == 1 else None
    facts = {**data.facts, "folder": str(folder)}
    return benchmark_of_run(facts, session_frames(data.spans), backend=chosen, group=group or None)


def _only_backend(sessions: Sequence[SessionFrame]) -> str | None:
    names = {session.backend for session in sessions}
    return names.pop() if len(names) == 1 else None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror}.") from None
    click.echo(f"wrote {path}", err=True)


def print_run(folder: Path) -> None:
    """Print a run's explanation as text."""
    click.echo(render_run(explain_run(read_run(folder))))


def explain_run(data: RunData) -> dict[str, Any]:
    """The contract's JSON for a run folder."""
    facts: Mapping[str, Any] = {key: data.facts[key] for key in _RUN_FACTS if key in data.facts}
    return explain_spans({**facts, "folder": str(data.folder), "problems": list(data.problems)}, data.spans)


def _report_problems(data: RunData) -> int:
    """Name what is missing; a run that was cut short, or whose sessions failed, is incomplete."""
    for problem in data.problems:
        click.echo(f"agentprof: {problem}", err=True)
    is_whole = data.facts.get("is_finished") and not data.problems and not data.unfinished
    return ExitCode.OK if is_whole else ExitCode.INCOMPLETE


def resolve_run(run: Path) -> Path:
    """`LATEST` stands for the newest run of its folder."""
    if run.name != _LATEST or run.exists():
        return run
    found = list_runs(run.parent)
    if not found:
        raise InputError(f"{run.parent}: no runs yet. `agentprof replay SCENARIO -b local` makes one.")
    return found[-1]
