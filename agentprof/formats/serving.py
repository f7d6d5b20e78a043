"""Result files of `vllm bench serve` and of `sglang.bench_serving`, which share their shape.

Sources: vllm/benchmarks/serve.py (0.33) and sglang's bench_serving (0.5.23). Summaries are in milliseconds, arrays
in seconds; a request that failed has 0 in the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from agentprof.formats.fields import Fields, found_count, mean, unsplit_caution
from agentprof.records.benchmark import Figure, derived, estimated, first_known, measured

MS, SECOND = 1_000_000, 1_000_000_000


@dataclass(frozen=True, slots=True)
class ServingFigures:
    """What both tools say of a run."""

    completed: int
    failed: Figure
    input_tokens: Figure
    output_tokens: Figure
    output_length: Figure
    ttft_ns: Figure
    tpot_ns: Figure
    request_latency_ns: Figure
    throughput_tok_s: Figure
    concurrency: Figure
    seed: Figure
    cautions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Requests:
    """The arrays of a detailed result, requests that failed left out; None where an array isn't there. Seconds."""

    ttfts: Sequence[Fraction] | None
    waits: Sequence[Fraction] | None
    output_lens: Sequence[Fraction] | None
    failed: int | None


def read_serving(fields: Fields, latency: str) -> ServingFigures:
    """The figures of one result object; `latency`: what the tool calls a request's whole time in its keys.

    Raises InputError when no request completed, or none brought output tokens.
    """
    completed = fields.count("completed") or 0
    if completed == 0:
        raise fields.error("completed", "0 requests succeeded, so there's nothing to read; see the server's log.")
    requests = _requests(fields)
    tokens = _output_tokens(fields, requests)
    if tokens.value == 0:
        raise fields.error("total_output_tokens", "0 tokens came, so there's nothing to read.")
    length = derived(tokens.value / completed if tokens.value else None, "total_output_tokens / completed")
    ttft = _ttft(fields, requests)
    request_latency = _latency(fields, latency, requests)
    tpot = _tpot(fields, requests, ttft, request_latency, length)
    return ServingFigures(
        completed=completed,
        failed=_failed(fields, completed, requests),
        input_tokens=measured(fields.count("total_input_tokens"), "total_input_tokens"),
        output_tokens=tokens,
        output_length=length,
        ttft_ns=ttft,
        tpot_ns=tpot,
        request_latency_ns=request_latency,
        throughput_tok_s=_throughput(fields, tokens),
        concurrency=_concurrency(fields, completed, request_latency),
        seed=measured(found_count(iter([fields.values.get("seed")])), "seed"),
        cautions=unsplit_caution(fields.place, ("mean_ttft_ms", ttft), ("mean_tpot_ms", tpot)),
    )


def _requests(fields: Fields) -> _Requests:
    ttfts, waits = fields.numbers("ttfts"), fields.sums("itls")
    lengths, errors = fields.numbers("output_lens"), fields.values.get("errors")
    has_failed = [bool(error) for error in errors] if isinstance(errors, list) else None

    def succeeded(values: list[Fraction] | None) -> list[Fraction] | None:
        if values is None or has_failed is None or len(has_failed) != len(values):
            return values
        return [value for value, failed in zip(values, has_failed, strict=True) if not failed]

    return _Requests(
        succeeded(ttfts), succeeded(waits), succeeded(lengths), None if has_failed is None else sum(has_failed)
    )


def _output_tokens(fields: Fields, requests: _Requests) -> Figure:
    total = measured(fields.count("total_output_tokens"), "total_output_tokens")
    from_array = sum(requests.output_lens, Fraction(0)) if requests.output_lens else None
    return first_known(total, derived(from_array, "sum of output_lens"))


def _ttft(fields: Fields, requests: _Requests) -> Figure:
    """Mean TTFT. 0 means that replies weren't streamed, so it is absent."""
    from_array = mean(list(requests.ttfts)) if requests.ttfts else None
    return first_known(
        measured(_positive(fields.number("mean_ttft_ms"), MS), "mean_ttft_ms"),
        derived(_positive(from_array, SECOND), "mean of ttfts"),
        estimated(_positive(fields.number("median_ttft_ms"), MS), "median_ttft_ms stands in for the mean"),
    )


def _latency(fields: Fields, latency: str, requests: _Requests) -> Figure:
    key = f"mean_{latency}_ms"
    whole = None
    if requests.ttfts and requests.waits and len(requests.ttfts) == len(requests.waits):
        whole = mean([first + rest for first, rest in zip(requests.ttfts, requests.waits, strict=True)])
    return first_known(
        measured(_positive(fields.number(key), MS), key),
        derived(_positive(whole, SECOND), "mean of ttfts and itls together"),
        estimated(_positive(fields.number(f"median_{latency}_ms"), MS), f"median_{latency}_ms stands in for the mean"),
    )


def _tpot(fields: Fields, requests: _Requests, ttft: Figure, latency: Figure, length: Figure) -> Figure:
    """Mean time per token after the first. Never from gaps between chunks, which may bring several tokens."""
    from_arrays = from_means = None
    if requests.waits and requests.output_lens and len(requests.waits) == len(requests.output_lens):
        later = sum((max(Fraction(0), tokens - 1) for tokens in requests.output_lens), Fraction(0))
        from_arrays = sum(requests.waits, Fraction(0)) / later if later else None
    if ttft.value and latency.value and length.value and length.value > 1:
        from_means = max(Fraction(0), latency.value - ttft.value) / (length.value - 1)
    return first_known(
        measured(_positive(fields.number("mean_tpot_ms"), MS), "mean_tpot_ms"),
        derived(_positive(from_arrays, SECOND), "sum of itls / tokens after the first"),
        derived(_positive(from_means, 1), "(mean latency − mean TTFT) / (output length − 1)"),
        estimated(_positive(fields.number("median_tpot_ms"), MS), "median_tpot_ms stands in for the mean"),
    )


def _throughput(fields: Fields, tokens: Figure) -> Figure:
    duration = fields.number("duration")
    rate = tokens.value / duration if tokens.value and duration else None
    return first_known(
        measured(_positive(fields.number("output_throughput"), 1), "output_throughput"),
        derived(rate, "total_output_tokens / duration"),
    )


def _concurrency(fields: Fields, completed: int, latency: Figure) -> Figure:
    """The limit that was set; without one, how many requests were in flight on average."""
    duration = fields.number("duration")
    in_flight = latency.value * completed / (duration * SECOND) if latency.value and duration else None
    all_at_once = fields.count("num_prompts") if fields.values.get("request_rate") in ("inf", "Infinity") else None
    return first_known(
        measured(fields.count("max_concurrency"), "max_concurrency"),
        measured(fields.number("concurrency"), "concurrency, the mean in flight"),
        derived(in_flight, "request time / duration"),
        estimated(all_at_once, "num_prompts, all sent at once"),
    )


def _failed(fields: Fields, completed: int, requests: _Requests) -> Figure:
    planned = fields.count("num_prompts")
    return first_known(
        measured(fields.count("failed"), "failed"),
        derived(requests.failed, "errors that aren't empty"),
        derived(None if planned is None else max(0, planned - completed), "num_prompts − completed"),
    )


def _positive(value: Fraction | None, unit: int) -> Fraction | None:
    return value * unit if value else None


def percentage(fields: Fields, key: str) -> Figure:
    """A figure that the file gives in percent, as a share."""
    value = fields.number(key)
    return measured(None if value is None else value / 100, f"{key}, in percent")
