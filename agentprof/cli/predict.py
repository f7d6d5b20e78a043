"""`agentprof predict`: a run's workload on a backend that only a probe has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson

from agentprof.analysis.bench import backend_facts, benchmark_of_run
from agentprof.analysis.bridge_match import mismatches
from agentprof.analysis.frames import SessionFrame, session_frames
from agentprof.analysis.predict import predict as predict_run
from agentprof.analysis.prediction_check import compare_prediction, in_common, leave_one_out
from agentprof.analysis.prediction_json import prediction_json
from agentprof.analysis.probe import read_probe
from agentprof.cli.explain import resolve_run
from agentprof.cli.running import complain_of_each
from agentprof.errors import ExitCode, InputError
from agentprof.formats.benchmarks import read_benchmark
from agentprof.records.benchmark import Benchmark
from agentprof.report.predict_text import Names, render_check, render_left_out, render_prediction
from agentprof.runs.store import read_run


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A run folder's sessions of one backend, and what its run.json says of that backend."""

    folder: Path
    facts: Mapping[str, Any]
    sessions: Sequence[SessionFrame]
    backend: str


@click.command()
@click.argument("run", type=click.Path(path_type=Path), default=Path("runs/LATEST"))
@click.option("--probe", "probe_folder", type=click.Path(path_type=Path), required=True, help="A probe's run folder.")
@click.option(
    "--bench", "bench_path", type=click.Path(path_type=Path), help="A benchmark of the probed backend, run or file."
)
@click.option(
    "--against", type=click.Path(path_type=Path), help="A run on the probed backend: predicted beside measured."
)
@click.option("--backend", "name", metavar="NAME", help="Which backend of RUN to start from, where it has several.")
@click.option(
    "--output-factor",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Output tokens that the new backend writes for each of the run's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON that docs/predict.md describes.")
def predict(
    run: Path,
    probe_folder: Path,
    bench_path: Path | None,
    against: Path | None,
    name: str | None,
    output_factor: float,
    *,
    as_json: bool,
) -> int:
    """Predict what RUN's workload would take on the backend that a probe was made of.

    \b
    Examples:
      agentprof predict runs/old --probe runs/probe-new
      agentprof predict runs/old --probe runs/probe-new --bench runs/bench-new
      agentprof predict runs/old --probe runs/probe-new --against runs/new
    """
    start, probed = _load(run, name), _load(probe_folder, None)
    if probed.facts.get("command") != "probe":
        raise InputError(
            f"{probed.folder}: is no probe but a run of `agentprof {probed.facts.get('command')}`; make one with "
            "`agentprof probe`."
        )
    sessions, points, rate = start.sessions, list(probed.sessions), None
    if bench_path is not None:
        benchmark, requests = _benchmark(bench_path, probed)
        points, rate = [*points, *requests], benchmark.call_tok_s
    fit = read_probe(points)
    names = Names(str(start.folder), probed.backend, rate)
    if against is None:
        prediction, check = predict_run(sessions, fit, output_factor=output_factor), None
    else:
        measured_run = _load(against, probed.backend)
        sessions, measured = in_common(sessions, measured_run.sessions)
        prediction = predict_run(sessions, fit, output_factor=output_factor)
        check = compare_prediction(prediction, measured)
    left_out = leave_one_out(sessions)
    if as_json:
        click.echo(orjson.dumps(prediction_json(prediction, check, left_out), option=orjson.OPT_INDENT_2).decode())
        return ExitCode.OK
    text = render_prediction(prediction, names) if check is None else render_check(prediction, check, names)
    click.echo("\n\n".join(block for block in (text, render_left_out(left_out)) if block))
    return ExitCode.OK


def _load(folder: Path, name: str | None) -> _Loaded:
    """A run's sessions of one backend: the one named where it has it, else its only one."""
    data = read_run(resolve_run(folder))
    complain_of_each(data.problems)
    frames = session_frames(data.spans)
    known = list(dict.fromkeys(frame.backend or "" for frame in frames))
    if not known:
        raise InputError(f"{data.folder}: no session of this run has finished.")
    if name not in known and len(known) > 1:
        raise InputError(f"{data.folder}: has runs on {', '.join(known)}; name one with --backend.")
    chosen = name if name in known else known[0]
    return _Loaded(data.folder, data.facts, [frame for frame in frames if (frame.backend or "") == chosen], chosen)


def _benchmark(path: Path, probed: _Loaded) -> tuple[Benchmark, Sequence[SessionFrame]]:
    """A benchmark of the probed backend, and its requests where it is a run of ours: they join the fit.

    Raises InputError where it is of another backend.
    """
    requests: Sequence[SessionFrame] = ()
    if path.is_dir():
        loaded = _load(path, probed.backend)
        requests = loaded.sessions
        facts = {**loaded.facts, "folder": str(loaded.folder)}
        benchmark = benchmark_of_run(facts, requests, backend=loaded.backend or None)
    else:
        benchmark = read_benchmark(path)
    differences = mismatches(benchmark, backend_facts(probed.facts, probed.backend), probed.sessions)
    if differences:
        listed = "; ".join(difference.replace("in the run", "in the probe") for difference in differences)
        raise InputError(f"{path}: is no benchmark of the probed backend: {listed}.")
    return benchmark, requests
