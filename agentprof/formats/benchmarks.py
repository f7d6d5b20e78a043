"""Benchmark results of other tools, recognised by content: vLLM, SGLang, guidellm, aiperf, llama-bench."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentprof.errors import InputError
from agentprof.formats.aiperf import is_aiperf, is_aiperf_request, read_aiperf, read_aiperf_requests
from agentprof.formats.fields import Fields
from agentprof.formats.guidellm import is_guidellm, read_guidellm
from agentprof.formats.llama_bench import is_llama_bench, read_llama_bench
from agentprof.formats.sglang import is_sglang, read_sglang
from agentprof.formats.vllm import is_vllm, read_vllm
from agentprof.records.benchmark import Benchmark

READ_HERE = (
    "`vllm bench serve --save-result` or `--append-result`",
    "`sglang.bench_serving --output-file`",
    "guidellm's benchmarks.json",
    "aiperf's profile_export_aiperf.json or profile_export.jsonl",
    "`llama-bench -o json` or `-o jsonl`",
)
"""What is read, for messages and documentation."""


def read_benchmark(path: Path | str) -> Benchmark:
    """The one benchmark of a file; `FILE#2` names the second of several.

    Raises InputError for a file that can't be read, isn't a result of a known tool, or holds several.
    """
    file, _, number = str(path).rpartition("#")
    if file and number.isdecimal() and not Path(path).exists():
        benchmarks = read_benchmarks(Path(file))
        if not 1 <= int(number) <= len(benchmarks):
            raise InputError(f"{path}: {file} holds {_results(len(benchmarks))}; there is no number {number}.")
        return benchmarks[int(number) - 1]
    benchmarks = read_benchmarks(Path(path))
    if len(benchmarks) > 1:
        listed = "; ".join(f"{path}#{index} {_in_short(one)}" for index, one in enumerate(benchmarks, start=1))
        raise InputError(f"{path}: holds {_results(len(benchmarks))}: name one of them. {listed}.")
    return benchmarks[0]


def read_benchmarks(path: Path) -> tuple[Benchmark, ...]:
    """All benchmarks of a file, in its order; at least one. Raises InputError as `read_benchmark` does."""
    benchmarks = _read(path)
    for benchmark in benchmarks:
        if benchmark.price_ns is None:
            raise InputError(
                f"{benchmark.source}: has neither TTFT and TPOT nor a request latency nor a throughput, "
                f"so it says nothing about speed. {' '.join(benchmark.cautions)}".rstrip()
            )
    return benchmarks


def _read(path: Path) -> tuple[Benchmark, ...]:
    text = _text(path)
    place = str(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = _json_lines(place, text, error)
        return _from_lines(place, lines)
    if isinstance(value, list) and value and all(isinstance(item, dict) and is_llama_bench(item) for item in value):
        rows = [Fields(place, item, f"[{index}].") for index, item in enumerate(value)]
        return read_llama_bench(place, rows)
    if isinstance(value, dict):
        return _from_lines(place, [Fields(place, value)])
    raise _unknown(place, value)


def _text(path: Path) -> str:
    if path.is_dir():
        raise InputError(f"{path}: is a folder that holds no run; name a result file. Read here: {_listed()}.")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file.") from None
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text in UTF-8. Read here: {_listed()}.") from None


def _json_lines(place: str, text: str, error: ValueError | RecursionError) -> list[Fields]:
    """The objects of JSON Lines, `error` being why the text isn't one JSON value."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise InputError(f"{place}: is empty. Read here: {_listed()}.")
    objects = []
    for number, line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            objects.append(Fields(f"{place}:{number}", value))
        elif objects:
            raise InputError(f"{place}:{number}: is not a whole JSON object; is the file cut off there?")
        else:
            raise _not_json(place, text, error)
    return objects


def _not_json(place: str, text: str, error: ValueError | RecursionError) -> InputError:
    if isinstance(error, json.JSONDecodeError) and text.lstrip()[:1] in {"{", "["}:
        return InputError(
            f"{place}:{error.lineno}: is not whole JSON ({error.msg} at column {error.colno}); is the file cut off?"
        )
    return InputError(f"{place}: is not JSON. Read here: {_listed()}.")


_READERS: Sequence[tuple[Callable[[dict[str, Any]], bool], Callable[[Fields], Benchmark]]] = (
    (is_sglang, read_sglang),
    (is_vllm, read_vllm),
    (is_aiperf, read_aiperf),
)


def _from_lines(place: str, lines: Sequence[Fields]) -> tuple[Benchmark, ...]:
    first = dict(lines[0].values)
    if is_llama_bench(first):
        return read_llama_bench(place, lines)
    if is_aiperf_request(first):
        return (read_aiperf_requests(place, _all_like(lines, is_aiperf_request)),)
    if is_guidellm(first):
        return read_guidellm(lines[0])
    for recognises, read in _READERS:
        if recognises(first):
            return tuple(read(line) for line in _all_like(lines, recognises))
    raise _unknown(place, first)


def _all_like(lines: Sequence[Fields], recognises: Callable[[dict[str, Any]], bool]) -> Sequence[Fields]:
    for line in lines:
        if not recognises(dict(line.values)):
            raise InputError(f"{line.place}: is not of the same tool as the first line.")
    return lines


def _unknown(place: str, value: object) -> InputError:
    keys = ", ".join(list(value)[:6]) if isinstance(value, dict) else ""
    found = f" Its keys begin with {keys}." if keys else ""
    return InputError(f"{place}: is no benchmark result that is known here.{found} Read here: {_listed()}.")


def _listed() -> str:
    return "; ".join(READ_HERE)


def _results(count: int) -> str:
    return f"{count} result" + ("" if count == 1 else "s")


def _in_short(benchmark: Benchmark) -> str:
    """What tells one of several apart: concurrency, output length and rate."""
    parts = []
    if benchmark.concurrency.value is not None:
        parts.append(f"concurrency {float(benchmark.concurrency.value):.4g}")
    if benchmark.output_length.value is not None:
        parts.append(f"{float(benchmark.output_length.value):.4g} tokens each")
    if benchmark.throughput_tok_s.value is not None:
        parts.append(f"{float(benchmark.throughput_tok_s.value):.4g} tok/s")
    return f"({', '.join(parts)})"
