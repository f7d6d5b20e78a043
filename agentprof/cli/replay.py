"""`agentprof replay`: run scenarios against backends, then print where the time went."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.console import Console

from agentprof.agent.sandbox import find_sandbox
from agentprof.cli.explain import print_run
from agentprof.cli.progress import ReplayProgress
from agentprof.errors import ExitCode, InputError, SandboxError
from agentprof.records.backend import Backend
from agentprof.records.loading import load_backends, load_scenario
from agentprof.records.scenario import Scenario
from agentprof.runs.replay import Replay, ReplayOptions, ReplaySummary
from agentprof.serve.cores import default_threads
from agentprof.serve.local import EngineOptions, start_engine

_SHIPPED = (Path(__file__).parents[1] / "_scenarios", Path(__file__).parents[2] / "scenarios")
_LOCAL = "local"


@click.command()
@click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO...")
@click.option(
    "-b",
    "--backend",
    "names",
    multiple=True,
    metavar="NAME",
    help="Backend from the backends file, or `local`: the embedded engine. Repeat to compare.",
)
@click.option(
    "--backends",
    "backends_file",
    type=click.Path(path_type=Path),
    default=None,
    help="Backends file.  [default: backends.yaml]",
)
@click.option("--base-url", help="A server that is in no file: its OpenAI-compatible base URL, usually ending in /v1.")
@click.option("--model", help="The model's name at --base-url; with `-b local`, a .gguf file.")
@click.option("--api-key-env", metavar="VAR", help="The environment variable that holds the key for --base-url.")
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=None,
    help="Sessions per scenario and backend.  [default: the concurrency]",
)
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Sessions that run at once.")
@click.option(
    "--warmup", type=click.IntRange(0), default=1, show_default=True, help="Full passes before measuring, kept apart."
)
@click.option("--mode", type=click.Choice(["scripted", "live"]), help="Override the scenarios' mode.")
@click.option("--length", type=click.Choice(["forced", "free"]), help="Override the scenarios' length.")
@click.option("--history", type=click.Choice(["recorded", "generated"]), help="Override the scenarios' history.")
@click.option("--cache", type=click.Choice(["production", "isolated", "shared"]), help="Override the scenarios' cache.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    help="The run folder.  [default: runs/TIME-SCENARIO-BACKEND]",
)
@click.option("--capture-content", is_flag=True, help="Keep prompts, completions and tool output in the run folder.")
@click.option("--otlp-endpoint", metavar="URL", help="Export the spans live, OTLP over HTTP protobuf.")
@click.option(
    "--allow-unsandboxed", is_flag=True, help="Let live sessions run model-written commands without bubblewrap."
)
def replay(scenarios: tuple[str, ...], **options: Any) -> int:
    """Replay coding scenarios against served models and explain where the wall time went.

    \b
    Examples:
      agentprof replay scenarios/fix-failing-test.yaml -b local
      agentprof replay scenarios/*.yaml --base-url http://127.0.0.1:8000/v1 --model qwen3.8-27b
      agentprof replay scenarios/add-feature.yaml -b old -b new --repeat 5
    """
    loaded = [_override(load_scenario(_find_scenario(name)), options) for name in scenarios]
    _check_unique(loaded)
    concurrency = options["concurrency"]
    repeat = options["repeat"] or concurrency
    if repeat < concurrency:
        raise InputError(
            f"--repeat {repeat} is less than --concurrency {concurrency}: no {concurrency} sessions could run at once."
        )
    replay_options = ReplayOptions(
        repeat=repeat,
        concurrency=concurrency,
        warmup=options["warmup"],
        has_content=options["capture_content"],
        otlp_endpoint=options["otlp_endpoint"],
        sandbox=_sandbox(loaded, allow_unsandboxed=options["allow_unsandboxed"]),
        run_seed=secrets.token_hex(8),
    )
    console = Console(stderr=True)
    with _backends(options, concurrency, console) as backends:
        folder = options["out"] or _folder(loaded, backends)
        with ReplayProgress(console) as progress:
            summary = _run(Replay(loaded, backends, replay_options, folder, progress))
    print_run(summary.folder)
    return _conclude(summary)


def _run(replay: Replay) -> ReplaySummary:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(replay.run())


def _conclude(summary: ReplaySummary) -> int:
    """Say what went wrong, and the exit code that it means."""
    click.echo(f"\nRun folder: {summary.folder}  (agentprof explain {summary.folder})")
    export = summary.export
    if export.exported is not None and export.exported < export.created:
        lost = export.created - export.exported
        click.echo(
            f"agentprof: {lost} of {export.created} spans did not reach {export.endpoint}; "
            "the run folder has them all.",
            err=True,
        )
    if summary.spans_written != summary.spans_created:
        click.echo(
            f"agentprof: {summary.spans_created} spans made, {summary.spans_written} written: the run is incomplete.",
            err=True,
        )
        return ExitCode.INCOMPLETE
    if summary.is_interrupted:
        click.echo(f"agentprof: interrupted; {len(summary.outcomes)} of {summary.planned} sessions are kept.", err=True)
        return ExitCode.INTERRUPTED
    failed = [(planned, outcome) for planned, outcome, _ in summary.outcomes if outcome.name != "completed"]
    for planned, outcome in failed[:5]:
        click.echo(f"agentprof: {planned.scenario} on {planned.backend}: {outcome.name}: {outcome.reason}", err=True)
    if failed:
        return ExitCode.INCOMPLETE
    if any(has_passed is False for _, _, has_passed in summary.outcomes):
        click.echo("agentprof: a session's checks failed.", err=True)
        return ExitCode.CHECK_FAILED
    return ExitCode.OK


def _find_scenario(name: str) -> Path:
    """A file, or the name of a scenario that comes with agentprof."""
    path = Path(name)
    if path.exists() or path.suffix:
        return path
    for folder in _SHIPPED:
        shipped = folder / f"{name}.yaml"
        if shipped.is_file():
            return shipped
    known = sorted({file.stem for folder in _SHIPPED for file in folder.glob("*.yaml")})
    raise InputError(f"{name}: no such file, and no scenario of that name comes with agentprof ({', '.join(known)}).")


def _override(scenario: Scenario, options: dict[str, Any]) -> Scenario:
    given = {key: options[key] for key in ("mode", "length", "history", "cache") if options[key]}
    return scenario.model_copy(update=given)


def _check_unique(scenarios: Sequence[Scenario]) -> None:
    seen: dict[str, Path] = {}
    for scenario in scenarios:
        if scenario.name in seen:
            other = seen[scenario.name]
            raise InputError(
                f'{scenario.source}: the name "{scenario.name}" is also that of {other}; names must differ.'
            )
        seen[scenario.name] = scenario.source


def _sandbox(scenarios: Sequence[Scenario], *, allow_unsandboxed: bool) -> Any:
    if allow_unsandboxed or all(scenario.mode == "scripted" for scenario in scenarios):
        return None
    try:
        return find_sandbox()
    except SandboxError as error:
        raise SandboxError(f"live mode runs commands that a model writes: {error}") from None


@contextmanager
def _backends(options: dict[str, Any], concurrency: int, console: Console) -> Iterator[list[Backend]]:
    """The backends asked for; the embedded engine, where it is one of them, runs as long as the block."""
    names: tuple[str, ...] = options["names"]
    base_url, model = options["base_url"], options["model"]
    if base_url:
        if names:
            raise InputError(
                "--base-url and --backend exclude each other; put the server into backends.yaml to use both."
            )
        if not model:
            raise InputError("--base-url needs --model: the name under which the server serves it.")
        yield [_checked(base_url, model, options["api_key_env"])]
        return
    if not names:
        raise InputError("no backend: give --backend NAME (from backends.yaml, or `local`), or --base-url and --model.")
    if len(set(names)) < len(names):
        raise InputError("--backend: each backend can be named once.")
    file: Path | None = options["backends_file"] or (Path("backends.yaml") if Path("backends.yaml").exists() else None)
    known = load_backends(file) if file is not None else {}
    missing = [name for name in names if name not in known and name != _LOCAL]
    if missing:
        where = f"{file} has {', '.join(known)}" if file else "there is no backends.yaml here"
        raise InputError(f'backend "{missing[0]}": not known: {where}. `local` is the embedded engine.')
    if _LOCAL not in names or _LOCAL in known:
        yield [known[name] for name in names]
        return
    weights = Path(model) if model else None
    threads = default_threads()
    console.print("starting the embedded engine", highlight=False)
    with start_engine(EngineOptions(model=weights, threads=threads, slots=concurrency)) as engine:
        labels = {"engine": "llama.cpp", "threads": str(threads), "slots": str(concurrency)}
        local = Backend(name=_LOCAL, base_url=engine.base_url, model=engine.model, labels=labels)
        yield [known.get(name, local) for name in names]


def _checked(base_url: str, model: str, api_key_env: str | None) -> Backend:
    try:
        return Backend(name="default", base_url=base_url, model=model, api_key_env=api_key_env)
    except ValueError:
        raise InputError(f"--base-url: {base_url!r} is not an http(s) URL, such as http://127.0.0.1:8000/v1") from None


def _folder(scenarios: Sequence[Scenario], backends: Sequence[Backend]) -> Path:
    """runs/TIME-SCENARIO-BACKEND, made unique."""
    what = scenarios[0].name if len(scenarios) == 1 else f"{len(scenarios)}-scenarios"
    where = backends[0].name if len(backends) == 1 else f"{len(backends)}-backends"
    name = f"{datetime.now().astimezone():%Y-%m-%dT%H%M%S}-{what}-{where}"
    path, number = Path("runs") / name, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path
