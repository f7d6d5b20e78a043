"""A benchmark as plain text: its rate, and every figure with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from agentprof.analysis.bridge_cautions import rates_apart
from agentprof.records.benchmark import FIGURES, Benchmark, Figure
from agentprof.report.layout import MISSING, rate, table, wrap

_NAMES: Mapping[str, tuple[str, str]] = {
    "output_length": ("output length", "tokens"),
    "ttft_ns": ("TTFT, mean", "ms"),
    "tpot_ns": ("TPOT, mean", "ms"),
    "request_latency_ns": ("request latency, mean", "ms"),
    "throughput_tok_s": ("throughput, all requests", "tok/s"),
    "concurrency": ("concurrency", ""),
    "completed": ("requests completed", ""),
    "failed": ("requests failed", ""),
    "input_tokens": ("input tokens", ""),
    "output_tokens": ("output tokens", ""),
    "acceptance_rate": ("acceptance rate", "%"),
    "acceptance_length": ("acceptance length", "tokens per step"),
    "cached_tokens": ("cached prompt tokens", ""),
    "hit_rate": ("cache hit rate", "%"),
    "seed": ("seed", "name"),
}
_SPREADS = {"decode": "decode tok/s", "call": "call tok/s", "ttft": "TTFT ms", "tpot": "TPOT ms"}


def render_benchmark(benchmark: Benchmark, width: int = 100) -> str:
    """One sentence, the figures with their provenance, their spread over requests, and cautions."""
    lines = wrap(_sentence(benchmark), width)
    lines += [
        "",
        *table(("figure", "value", "provenance", "from"), benchmark_rows(benchmark), left=(0, 2, 3), width=width),
    ]
    lines += ["", *wrap(f"TTFT: {benchmark.ttft_definition}.", width, first="  ", rest="    ")]
    if benchmark.spreads:
        headers = ("over requests", "mean", "std", "min", "median", "max")
        lines += ["", *table(headers, _spread_rows(benchmark), left=(0,), width=width)]
    apart = rates_apart(benchmark)
    cautions = [*benchmark.cautions, *([apart] if apart else [])]
    if cautions:
        lines += ["", "Cautions:"]
        lines += [line for caution in cautions for line in wrap(caution, width, first="  * ", rest="    ")]
    return "\n".join(lines)


def _sentence(benchmark: Benchmark) -> str:
    version = f" {benchmark.tool_version}" if benchmark.tool_version else ""
    model = f", {benchmark.model}" if benchmark.model else ""
    where = f" on {benchmark.backend}" if benchmark.backend else ""
    speed = benchmark.call_tok_s
    answer = "no rate" if speed is None else f"{rate(speed)} tok/s for one request"
    return f"{benchmark.source} ({benchmark.tool}{version}{model}){where}: {answer}."


def benchmark_rows(benchmark: Benchmark) -> list[tuple[str, str, str, str]]:
    """Each figure as name, value with unit, provenance, and the fields it rests on."""
    rows: list[tuple[str, str, str, str]] = []
    for field in FIGURES:
        figure: Figure = getattr(benchmark, field)
        name, unit = _NAMES[field]
        rows.append((name, _value(figure, unit), figure.provenance, figure.how or ""))
    return rows


def _value(figure: Figure, unit: str) -> str:
    if figure.number is None:
        return MISSING
    number = figure.number
    match unit:
        case "ms":
            text = f"{number / 1e6:,.2f}"
        case "%":
            text = f"{100 * number:.1f}"
        case "tok/s":
            text = f"{number:,.2f}"
        case "name":
            return f"{number:.0f}"
        case _:
            text = f"{number:,.0f}" if number == int(number) else f"{number:,.2f}"
    return f"{text} {unit}".rstrip()


def _spread_rows(benchmark: Benchmark) -> list[tuple[str, ...]]:
    return [
        (
            _SPREADS.get(name, name),
            *(
                MISSING if value is None else f"{value:,.2f}"
                for value in (spread.mean, spread.std, spread.min, spread.median, spread.max)
            ),
        )
        for name, spread in benchmark.spreads.items()
    ]
