"""`agentprof replay`: run scenarios against backends, then print where the time went."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from agentprof.agent.sandbox import Sandbox, find_sandbox
from agentprof.cli.backends import backend_options, chosen_backends, open_backends
from agentprof.cli.explain import print_run
from agentprof.cli.progress import RunProgress
from agentprof.cli.running import complain_of_each, conclude_counts, new_folder, run_to_end
from agentprof.errors import ExitCode, InputError, SandboxError
from agentprof.records.loading import load_scenario
from agentprof.records.scenario import Scenario
from agentprof.records.trajectory import trajectory_problems
from agentprof.runs.replay import Replay, ReplayOptions, ReplaySummary
from agentprof.runs.store import check_new
from agentprof.runs.tracing import traces_endpoint

_SHIPPED = (Path(__file__).parents[1] / "_scenarios", Path(__file__).parents[2] / "scenarios")


@click.command()
@click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO...")
@backend_options
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

    SCENARIO is a file, or the name of a scenario that comes with agentprof, such as fix-failing-test.

    \b
    Examples:
      agentprof replay scenarios/fix-failing-test.yaml -b local
      agentprof replay scenarios/*.yaml --base-url http://127.0.0.1:8000/v1 --model qwen3.8-27b
      agentprof replay scenarios/add-feature.yaml -b old -b new --repeat 5
    """
    loaded = [
        _override(load_scenario(_find_scenario(name), is_live=options["mode"] == "live"), options) for name in scenarios
    ]
    _check_unique(loaded)
    replay_options = _replay_options(loaded, options)
    if options["out"] is not None:
        check_new(options["out"])
    traces_endpoint(options["otlp_endpoint"])  # a mistake there shows before an engine is started
    console = Console(stderr=True)
    with open_backends(chosen_backends(options), replay_options.concurrency, console) as backends:
        what = loaded[0].name if len(loaded) == 1 else f"{len(loaded)}-scenarios"
        folder = options["out"] or new_folder(what, [backend.name for backend in backends])
        with RunProgress(console) as progress:
            summary = run_to_end(Replay(loaded, backends, replay_options, folder, progress).run)
    print_run(summary.folder)
    return _conclude(summary)


def _replay_options(scenarios: Sequence[Scenario], options: dict[str, Any]) -> ReplayOptions:
    concurrency = options["concurrency"]
    repeat = options["repeat"] or concurrency
    if repeat < concurrency:
        raise InputError(
            f"--repeat {repeat} is less than --concurrency {concurrency}: no {concurrency} sessions could run at once."
        )
    return ReplayOptions(
        repeat=repeat,
        concurrency=concurrency,
        warmup=options["warmup"],
        has_content=options["capture_content"],
        otlp_endpoint=options["otlp_endpoint"],
        sandbox=_sandbox(scenarios, allow_unsandboxed=options["allow_unsandboxed"]),
        run_seed=secrets.token_hex(8),
    )


def _conclude(summary: ReplaySummary) -> int:
    """Say what went wrong, and the exit code that it means."""
    cut = sum(outcome.name == "cancelled" for _, outcome, _ in summary.outcomes)
    whole = len(summary.outcomes) - cut
    interrupted = f"interrupted: {whole} of {summary.planned} sessions finished, {cut} cut short; what ran is kept."
    code = conclude_counts(summary.folder, summary.counts, interrupted=interrupted)
    if code is not ExitCode.OK:
        return code
    failed = [
        f"{planned.title}: {outcome.name}: {outcome.reason}"
        for planned, outcome, _ in summary.outcomes
        if outcome.name != "completed"
    ]
    if failed:
        complain_of_each(failed)
        return ExitCode.INCOMPLETE
    unsolved = [f"{planned.title}: its checks failed" for planned, _, passed in summary.outcomes if passed is False]
    complain_of_each(unsolved)
    return ExitCode.CHECK_FAILED if unsolved else ExitCode.OK


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
    """The scenario with what the options change. Raises InputError where its steps don't allow that."""
    given = {key: options[key] for key in ("mode", "length", "history", "cache") if options[key]}
    changed = scenario.model_copy(update=given)
    for _, words in trajectory_problems(changed.model_dump(mode="json", exclude_none=True)) if given else ():
        named = " ".join(f"--{key} {value}" for key, value in given.items())
        raise InputError(f"{scenario.source}: {named}: {words}.")
    return changed


def _check_unique(scenarios: Sequence[Scenario]) -> None:
    seen: dict[str, Path] = {}
    for scenario in scenarios:
        if scenario.name in seen:
            other = seen[scenario.name]
            raise InputError(
                f'{scenario.source}: the name "{scenario.name}" is also that of {other}; names must differ.'
            )
        seen[scenario.name] = scenario.source


def _sandbox(scenarios: Sequence[Scenario], *, allow_unsandboxed: bool) -> Sandbox | None:
    if allow_unsandboxed or all(scenario.mode == "scripted" for scenario in scenarios):
        return None
    try:
        return find_sandbox()
    except SandboxError as error:
        raise SandboxError(f"live mode runs commands that a model writes: {error}") from None
