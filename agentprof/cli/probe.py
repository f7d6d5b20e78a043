"""`agentprof probe`: two minutes that tell what a backend's times depend on."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.status import Status

from agentprof.analysis.frames import session_frames
from agentprof.analysis.prediction_json import probe_json
from agentprof.analysis.probe import read_probe
from agentprof.cli.backends import backend_options, chosen_backends, open_backends
from agentprof.cli.explain import resolve_run
from agentprof.cli.running import complain_of_each, conclude_counts, new_folder, run_to_end
from agentprof.errors import ExitCode, InputError
from agentprof.records.backend import Backend
from agentprof.records.durations import parse_duration
from agentprof.records.progress import SessionStatus
from agentprof.report.probe_text import render_probe
from agentprof.runs.own_text import has_content, longest_prompt, own_requests, usual_suffixes
from agentprof.runs.probe import SUFFIXES, Probe, ProbeOptions, ProbeSummary
from agentprof.runs.recording import Observer
from agentprof.runs.store import check_new, read_run
from agentprof.runs.tracing import traces_endpoint


class _Progress(Observer):
    """Shows what is asked, where there is a terminal."""

    def __init__(self, shown: Status) -> None:
        self._shown = shown

    def waiting(self, message: str) -> None:
        """Show what is waited for."""
        self._shown.update(message)

    def started(self, status: SessionStatus) -> None:
        """Show the request."""
        self._shown.update(f"{status.scenario}, repetition {status.repetition}")


@click.command()
@backend_options
@click.option(
    "--run",
    "run",
    type=click.Path(path_type=Path),
    help="A run to fit: prompts up to its longest; where it kept its content, drafts on its own text.",
)
@click.option("--budget", default="2m", show_default=True, help="Time to use, such as 30s or 2m.")
@click.option(
    "--max-tokens", type=click.IntRange(1), help="Longest prompt.  [default: the run's, or what the budget allows]"
)
@click.option("--output-tokens", type=click.IntRange(2), default=32, show_default=True, help="Forced reply length.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Also measure so many at once."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="The run folder.  [default: runs/TIME-probe-BACKEND]"
)
@click.option("--otlp-endpoint", metavar="URL", help="Export the spans live, OTLP over HTTP protobuf.")
@click.option("--json", "as_json", is_flag=True, help="Print the fit as JSON.")
def probe(*, as_json: bool, **options: Any) -> int:
    """Probe a backend: waits for new and cached prompts, decoding at several depths. `predict` uses it.

    \b
    Examples:
      agentprof probe -b new
      agentprof probe -b new --run runs/LATEST
      agentprof probe -b new --concurrency 8 --budget 5m
    """
    probe_options = _options(options)
    if options["out"] is not None:
        check_new(options["out"])
    traces_endpoint(options["otlp_endpoint"])
    console = Console(stderr=True)
    with open_backends(chosen_backends(options), options["concurrency"], console) as backends:
        backend = _one(backends)
        folder = options["out"] or new_folder("probe", [backend.name])
        console.print(f"probing {backend.name} for about {options['budget']}", highlight=False)
        with console.status("") as status:
            summary = run_to_end(Probe(backend, probe_options, folder, _Progress(status)).run)
    fit = read_probe(session_frames(read_run(folder).spans))
    if as_json:
        click.echo(orjson.dumps(probe_json(fit), option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(render_probe(fit, backend.name))
    return _conclude(summary)


def _options(options: dict[str, Any]) -> ProbeOptions:
    try:
        budget_ns = parse_duration(options["budget"])
    except ValueError as error:
        raise InputError(f"--budget: {error}.") from None
    most, own_text = options["max_tokens"], []
    suffixes: Sequence[int] = SUFFIXES
    if options["run"] is not None:
        data = read_run(resolve_run(options["run"]))
        sessions = session_frames(data.spans)
        most = longest_prompt(sessions) if most is None else most
        suffixes = usual_suffixes(sessions) or SUFFIXES
        own_text = own_requests(data.folder, sessions) if has_content(data.folder) else []
    return ProbeOptions(
        budget_s=budget_ns / 1e9,
        output_tokens=options["output_tokens"],
        most_tokens=most,
        suffixes=suffixes,
        concurrency=options["concurrency"],
        own_text=own_text,
        seed=secrets.token_hex(8),
        otlp_endpoint=options["otlp_endpoint"],
    )


def _one(backends: Sequence[Backend]) -> Backend:
    if len(backends) > 1:
        raise InputError(f"--backend: a probe is of one backend, {len(backends)} were named; probe them one by one.")
    return backends[0]


def _conclude(summary: ProbeSummary) -> int:
    code = conclude_counts(
        summary.folder, summary.counts, interrupted="interrupted; the requests that had ended are kept."
    )
    if code is not ExitCode.OK:
        return code
    complain_of_each(summary.failures)
    return ExitCode.INCOMPLETE if summary.failures else ExitCode.OK
