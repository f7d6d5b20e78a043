"""`agentprof bench`: the raw serving benchmark, ours or another tool's."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from agentprof.analysis.bench import benchmark_of_run
from agentprof.analysis.frames import session_frames
from agentprof.cli.backends import backend_options, chosen_backends, open_backends
from agentprof.cli.progress import RunProgress
from agentprof.cli.running import complain_of_each, conclude_counts, new_folder, run_to_end
from agentprof.errors import ExitCode, InputError
from agentprof.formats.benchmarks import read_benchmark
from agentprof.report.benchmark_text import render_benchmark
from agentprof.report.questions_text import render_questions
from agentprof.runs.bench import Bench, BenchSummary
from agentprof.runs.store import RunData, check_new, read_run
from agentprof.runs.tracing import traces_endpoint
from agentprof.runs.workloads import FixedPrompts, Questions, RandomWords, Workload, read_questions


@click.command()
@backend_options
@click.option("--input-tokens", type=click.IntRange(1), default=1024, show_default=True, help="Prompt length.")
@click.option("--output-tokens", type=click.IntRange(2), default=1024, show_default=True, help="Forced reply length.")
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Requests at once.")
@click.option("--requests", type=click.IntRange(1), default=3, show_default=True, help="Requests in all.")
@click.option(
    "--warmup", type=click.IntRange(0), default=None, help="Requests before, kept apart.  [default: the concurrency]"
)
@click.option(
    "--endpoint", type=click.Choice(["completions", "chat"]), default="completions", show_default=True, help="API used."
)
@click.option(
    "--prompts",
    type=click.Choice(["random", "fixed"]),
    default="random",
    show_default=True,
    help="Random words of exact length, or three technical prompts through the chat endpoint.",
)
@click.option(
    "--questions", type=click.Path(path_type=Path), help="Ask and score a JSONL of questions (GSM8K's shape)."
)
@click.option("--users", default="1", show_default=True, help="With --questions: numbers of users, such as 1,8.")
@click.option(
    "--seed", type=int, default=None, help="Seed of the random prompts; equal seeds repeat them.  [default: random]"
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="The run folder.  [default: runs/TIME-bench-…]"
)
@click.option("--otlp-endpoint", metavar="URL", help="Export the spans live, OTLP over HTTP protobuf.")
@click.option(
    "--import",
    "imported",
    type=click.Path(path_type=Path),
    help="Read a result file of vllm bench serve, sglang.bench_serving, guidellm, aiperf or llama-bench instead.",
)
def bench(imported: Path | None, **options: Any) -> int:
    """Run the raw serving benchmark: random words in, a forced length out, temperature 0, no agent.

    \b
    Examples:
      agentprof bench -b new
      agentprof bench -b new --concurrency 8 --requests 24
      agentprof bench -b new --questions gsm8k.jsonl --users 1,8
      agentprof bench --import vllm-result.json
    """
    if imported is not None:
        click.echo(render_benchmark(read_benchmark(imported)))
        return ExitCode.OK
    workloads = _workloads(options)
    if options["out"] is not None:
        check_new(options["out"])
    traces_endpoint(options["otlp_endpoint"])
    seed = secrets.randbelow(10**9) if options["seed"] is None else options["seed"]
    console = Console(stderr=True)
    slots = max(workload.concurrency for workload in workloads)
    with open_backends(chosen_backends(options), slots, console) as backends:
        folder = options["out"] or new_folder("bench", [backend.name for backend in backends])
        kept = {"concurrency": slots, "seed": seed, "endpoint": options["endpoint"], "warmup": options["warmup"]}
        with RunProgress(console) as progress:
            work = Bench(workloads, backends, folder, progress, seed, kept, options["otlp_endpoint"])
            summary = run_to_end(work.run)
    _print(read_run(folder))
    return _conclude(summary)


def _workloads(options: dict[str, Any]) -> list[Workload]:
    if options["questions"] is not None:
        questions = read_questions(options["questions"])
        return [
            Questions(questions, users, options["output_tokens"], options["questions"].name, f"questions-{users}")
            for users in _numbers(options["users"])
        ]
    concurrency = options["concurrency"]
    warmup = concurrency if options["warmup"] is None else options["warmup"]
    if options["prompts"] == "fixed":
        return [FixedPrompts(options["output_tokens"], concurrency, warmup)]
    if options["requests"] < concurrency:
        raise InputError(
            f"--requests {options['requests']} is less than --concurrency {concurrency}: "
            f"no {concurrency} could run at once."
        )
    return [
        RandomWords(
            options["input_tokens"],
            options["output_tokens"],
            options["requests"],
            concurrency,
            warmup,
            options["endpoint"],
        )
    ]


def _numbers(text: str) -> Sequence[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise InputError(f"--users: {text!r} is not a list of different numbers from 1, such as 1,8.")
    return numbers


def _print(data: RunData) -> None:
    """The benchmark of each backend, and the score where questions were asked."""
    frames = session_frames(data.spans)
    facts = {**data.facts, "folder": str(data.folder)}
    for backend in data.facts["backends"]:
        for group in data.facts["scenarios"]:
            some = [frame for frame in frames if (frame.backend, frame.scenario) == (backend, group)]
            if any(frame.outcome == "completed" and not frame.is_warmup for frame in some):
                click.echo(render_benchmark(benchmark_of_run(facts, some, backend=backend)))
                click.echo(render_questions(group, some))
    for note in data.facts["options"].get("notes", ()):
        click.echo(f"Prompts: {note}.")


def _conclude(summary: BenchSummary) -> int:
    interrupted = "interrupted; the requests that had ended are kept."
    code = conclude_counts(summary.folder, summary.counts, interrupted=interrupted)
    if code is not ExitCode.OK:
        return code
    complain_of_each(summary.failures)
    return ExitCode.INCOMPLETE if summary.failures else ExitCode.OK
