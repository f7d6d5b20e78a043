"""Do other tools' clients and `agentprof bench` agree on one server?

    python benchmarks/side_by_side.py --tokenizer DIR [--aiperf FILE] [--guidellm FILE] [--vllm FILE]
        [--endpoint chat] [--rounds 6] [--requests 5] [--input-tokens 256] [--output-tokens 64]

Starts the embedded engine on one thread, without a prompt cache, and lets agentprof and each client whose command is
given measure it in turn, round after round, so that other load on the machine meets all of them. Every round has new
prompts. All are asked for random prompts and for a reply of a forced length; their templates differ, so agentprof is
given the prompt length that the first other client's requests have for the server.

The engine logs what each request took: the time of its prompt, and the time from its first token to its last. What a
client reports less the engine's, over the same requests, is what that client adds, whatever else the machine did.

DIR is a folder that `transformers` reads the model's tokeniser from; the clients run  aiperf doesn't
XX
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentprof.analysis.bench import benchmark_of_run
from agentprof.analysis.frames import session_frames
from agentprof.formats.benchmarks import read_benchmark
from agentprof.records.benchmark import Benchmark
from agentprof.runs.store import read_run
from agentprof.serve.local import EngineOptions, LocalEngine, start_engine

_TIMING = re.compile(r"task (\d+) \|\s+(prompt eval|eval) time =\s+([\d.]+) ms /\s+(\d+) tokens")


@dataclass(frozen=True, slots=True)
class Shape:
    """What every client is asked for."""

    endpoint: str
    requests: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Job:
    """One client's turn: its command writes into `out`."""

    engine: LocalEngine
    shape: Shape
    seed: int
    out: Path
    tokenizer: str
    agentprof_input_tokens: int

    @property
    def root(self) -> str:
        """The server's address without /v1."""
        return self.engine.base_url.removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class Turn:
    """One client's figures and the engine's for the same requests, means in ms.

    cpu_s: CPU time of the client's processes, its start and the making of its prompts included.
    """

    ttft: float
    tpot: float
    prompt: float
    step: float
    prompt_tokens: float
    cpu_s: float


def agentprof_command(_: str, job: Job) -> list[str]:
    """agentprof's own benchmark, without a warm-up, as the others have none."""
    lengths = ["--input-tokens", str(job.agentprof_input_tokens), "--output-tokens", str(job.shape.output_tokens)]
    return [
        *(sys.executable, "-m", "agentprof", "bench", "--base-url", job.engine.base_url, "--model", job.engine.model),
        *("--endpoint", job.shape.endpoint, *lengths, "--requests", str(job.shape.requests), "--warmup", "0"),
        *("--seed", str(job.seed), "--out", str(job.out / "run")),
    ]


def aiperf_command(path: str, job: Job) -> list[str]:
    """aiperf counts tokens itself unless told to take the server's."""
    lengths = ["--isl", str(job.shape.input_tokens), "--osl", str(job.shape.output_tokens)]
    return [
        *(path, "profile", "-m", job.engine.model, "--url", job.root, "--endpoint-type", job.shape.endpoint),
        *("--streaming", "--tokenizer", job.tokenizer, *lengths, "--concurrency", "1"),
        *("--request-count", str(job.shape.requests), "--extra-inputs", "ignore_eos:true", "temperature:0"),
        *("--use-server-token-count", "--random-seed", str(job.seed), "--ui", "none"),
        *("--artifact-dir", str(job.out)),
    ]


def guidellm_command(path: str, job: Job) -> list[str]:
    """guidellm asks for the forced length itself."""
    api = "/v1/chat/completions" if job.shape.endpoint == "chat" else "/v1/completions"
    lengths = f"prompt_tokens={job.shape.input_tokens},output_tokens={job.shape.output_tokens}"
    backend = f"kind=openai_http,target={job.root},model={job.engine.model},request_format={api}"
    return [
        *(path, "run", "--backend", backend, "--profile", "kind=synchronous"),
        *("--constraint", f"kind=max_requests,count={job.shape.requests}"),
        *("--data", f"kind=synthetic_text,{lengths}", "--tokenizer", f"kind=hf_auto,model={job.tokenizer}"),
        *("--seed", f"kind=static,value={job.seed}", "--output", f"kind=json,path={job.out / 'guidellm.json'}"),
    ]


def vllm_command(path: str, job: Job) -> list[str]:
    """vLLM's benchmark client."""
    api = "/v1/chat/completions" if job.shape.endpoint == "chat" else "/v1/completions"
    lengths = ["--random-input-len", str(job.shape.input_tokens), "--random-output-len", str(job.shape.output_tokens)]
    return [
        *(path, "bench", "serve", "--backend", "openai-chat" if job.shape.endpoint == "chat" else "openai"),
        *("--endpoint", api, "--base-url", job.root, "--model", job.engine.model, "--tokenizer", job.tokenizer),
        *("--dataset-name", "random", *lengths, "--num-prompts", str(job.shape.requests), "--max-concurrency", "1"),
        *("--ignore-eos", "--temperature", "0", "--seed", str(job.seed), "--save-result", "--save-detailed"),
        *("--result-dir", str(job.out), "--result-filename", "vllm.json"),
    ]


Command = Callable[[str, Job], list[str]]
CLIENTS: dict[str, tuple[Command, str]] = {
    "agentprof": (agentprof_command, "run"),
    "aiperf": (aiperf_command, "profile_export_aiperf.json"),
    "guidellm": (guidellm_command, "guidellm.json"),
    "vllm": (vllm_command, "vllm.json"),
}
"""How each client is run, and the file that holds its result."""


def result_of(path: Path) -> Benchmark:
    """A result file, or a run folder."""
    if path.is_dir():
        data = read_run(path)
        return benchmark_of_run(data.facts, session_frames(data.spans))
    return read_benchmark(path)


def engine_times(log: str, output_tokens: int) -> Iterator[tuple[float, float, int]]:
    """Of each request with a reply of this length: ms of its prompt, ms per token after the first, prompt tokens."""
    prompts: dict[str, tuple[float, int]] = {}
    for task, kind, ms, tokens in _TIMING.findall(log):
        if kind == "prompt eval":
            prompts[task] = (float(ms), int(tokens))
        elif int(tokens) == output_tokens:
            prompt_ms, prompt_tokens = prompts[task]
            yield prompt_ms, float(ms) / (output_tokens - 1), prompt_tokens


def take_turn(name: str, path: str, job: Job, cwd: Path) -> Turn | str:
    """Run a client once; why its figures can't be used where a request of it failed or was cut.

    Ends the program with the client's own words where it doesn't run.
    """
    command, result = CLIENTS[name]
    begun, cpu_s = job.engine.log.stat().st_size, children_cpu_s()
    done = subprocess.run(command(path, job), cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        sys.exit(f"{name}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    found = result_of(job.out / result)
    log = job.engine.log.read_bytes()[begun:].decode(errors="replace")
    times = list(engine_times(log, job.shape.output_tokens))
    if len(times) != job.shape.requests or found.completed.value != job.shape.requests:
        return f"{found.completed.value} requests completed; the engine logged {len(times)} of that length"
    if found.ttft_ns.value is None or found.tpot_ns.value is None:
        return f"no TTFT or no TPOT: {' '.join(found.cautions)}"
    if found.output_tokens.value != job.shape.output_tokens * len(times):
        return f"it counts {found.output_tokens.value} output tokens; the engine {job.shape.output_tokens * len(times)}"
    prompt, step, tokens = (statistics.fmean(column) for column in zip(*times, strict=True))
    ttft, tpot = float(found.ttft_ns.value) / 1e6, float(found.tpot_ns.value) / 1e6
    return Turn(ttft, tpot, prompt, step, tokens, children_cpu_s() - cpu_s)


def children_cpu_s() -> float:
    """CPU seconds of child processes that have ended; the engine, which runs on, isn't among them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation over rounds."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):,.{digits}f} ± {deviation:,.{digits}f}"


def table(turns: dict[str, list[Turn]]) -> str:
    """Markdown: means over rounds ± their standard deviation; 'added' is the client's figure less the engine's."""
    lines = [
        "| client | rounds | prompt tokens | TTFT | engine's prompt time | added | TPOT | engine's | added | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, some in turns.items():
        if not some:
            continue
        cells = [
            str(len(some)),
            f"{statistics.fmean([turn.prompt_tokens for turn in some]):.1f}",
            spread([turn.ttft for turn in some]),
            spread([turn.prompt for turn in some]),
            spread([turn.ttft - turn.prompt for turn in some]),
            spread([turn.tpot for turn in some], 2),
            spread([turn.step for turn in some], 2),
            spread([turn.tpot - turn.step for turn in some], 3),
            spread([turn.cpu_s for turn in some]),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measure(options: argparse.Namespace, shape: Shape, folder: Path) -> dict[str, list[Turn]]:
    """All rounds. The order of the clients is reversed in every second one."""
    paths = {"aiperf": options.aiperf, "guidellm": options.guidellm, "vllm": options.vllm}
    others = [name for name in CLIENTS if paths.get(name)]
    turns: dict[str, list[Turn]] = {name: [] for name in [*others, "agentprof"]}
    tokenizer = options.tokenizer.resolve()
    input_tokens = shape.input_tokens
    with start_engine(EngineOptions(threads=1, has_prompt_cache=False)) as engine:
        for number in range(options.rounds):
            for name in [*turns] if number % 2 == 0 else reversed([*turns]):
                out = folder / f"{number}-{name}"
                out.mkdir(parents=True)
                job = Job(engine, shape, options.seed + number, out, tokenizer.name, input_tokens)
                turn = take_turn(name, str(paths.get(name)), job, tokenizer.parent)
                print(f"{number} {name}: load {os.getloadavg()[0]:.1f}, {turn}", file=sys.stderr, flush=True)
                if isinstance(turn, str):
                    continue
                if name == others[0] and number == 0:
                    input_tokens = round(turn.prompt_tokens)
                turns[name].append(turn)
    return turns


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tokenizer", type=Path, required=True)
    for name in CLIENTS:
        if name != "agentprof":
            parser.add_argument(f"--{name}", metavar="FILE", help=f"the command {name}")
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--input-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep the clients' result files in this new folder")
    options = parser.parse_args()
    if not (options.aiperf or options.guidellm or options.vllm):
        parser.error("give at least one of --aiperf, --guidellm, --vllm.")
    shape = Shape(options.endpoint, options.requests, options.input_tokens, options.output_tokens)
    with tempfile.TemporaryDirectory() as temporary:
        turns = measure(options, shape, options.keep.resolve() if options.keep else Path(temporary))
    print(f"{options.endpoint}, {options.requests} requests a round, {options.rounds} rounds; times in ms")
    print(table(turns))


if __name__ == "__main__":
    main()
