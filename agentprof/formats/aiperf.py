"""aiperf (0.13): `profile_export_aiperf.json`, a summary, and `profile_export.jsonl`, one request a line.

Every metric says its unit; means are over requests that succeeded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from agentprof.formats.fields import Fields, found_count, found_text, found_words, mean, unsplit_caution
from agentprof.records.benchmark import ABSENT, Benchmark, Figure, derived, first_known, measured

NAME = "aiperf"
_TTFT = "first response with content or reasoning, from the request's start, connecting included"
_UNITS: Mapping[str, Fraction] = {
    "ns": Fraction(1),
    "nanoseconds": Fraction(1),
    "us": Fraction(1_000),
    "µs": Fraction(1_000),
    "ms": Fraction(1_000_000),
    "s": Fraction(1_000_000_000),
    "sec": Fraction(1_000_000_000),
    "seconds": Fraction(1_000_000_000),
}
_COUNTS = frozenset({"tokens", "requests", "count", "tokens/sec", "tokens/s", "ratio", "tokens/step"})


def is_aiperf(value: Mapping[str, Any]) -> bool:
    """Whether an object is a summary of aiperf."""
    names = ("request_latency", "output_token_throughput", "time_to_first_token", "request_count")
    metrics = [value[name] for name in names if isinstance(value.get(name), dict)]
    return any("unit" in metric and "avg" in metric for metric in metrics)


def is_aiperf_request(value: Mapping[str, Any]) -> bool:
    """Whether an object is one request of aiperf's per-request export."""
    metadata = value.get("metadata")
    return isinstance(value.get("metrics"), dict) and isinstance(metadata, dict) and "request_start_ns" in metadata


def read_aiperf(fields: Fields) -> Benchmark:
    """One summary."""
    completed = _metric(fields, "request_count")
    if completed.value == 0:
        raise fields.error("request_count.avg", "0 requests succeeded, so there's nothing to read.")
    length = first_known(_metric(fields, "output_sequence_length"), _metric(fields, "output_token_count"))
    if not length.value:
        raise fields.error("output_sequence_length.avg", "is missing or 0: there are no output tokens.")
    ttft, tpot = _metric(fields, "time_to_first_token"), _metric(fields, "inter_token_latency")
    return Benchmark(
        source=fields.place,
        tool=NAME,
        ttft_definition=_TTFT,
        output_length=length,
        ttft_ns=ttft,
        tpot_ns=tpot,
        request_latency_ns=_metric(fields, "request_latency"),
        throughput_tok_s=_metric(fields, "output_token_throughput"),
        concurrency=measured(found_count(_config(fields, "concurrency")), "input_config concurrency"),
        completed=completed,
        failed=_failed(fields, completed),
        input_tokens=_metric(fields, "total_isl"),
        output_tokens=first_known(_metric(fields, "total_osl"), _metric(fields, "total_output_tokens")),
        acceptance_rate=_metric(fields, "spec_decode_overall_draft_acceptance_rate"),
        acceptance_length=_metric(fields, "spec_decode_acceptance_length"),
        cached_tokens=_metric(fields, "total_usage_prompt_cache_read_tokens"),
        hit_rate=_metric(fields, "overall_usage_prompt_cache_read_pct"),
        seed=measured(found_count(_config(fields, "random_seed")), "input_config random_seed"),
        tool_version=fields.text("aiperf_version"),
        model=found_text(_models(fields)),
        cautions=_cautions(fields.place, ttft, tpot, is_cut=fields.values.get("was_cancelled") is True),
    )


def read_aiperf_requests(path: str, lines: Sequence[Fields]) -> Benchmark:
    """The per-request export as one benchmark; warm-up requests are left out, failed ones counted."""
    profiled = [line for line in lines if line.values["metadata"].get("benchmark_phase") != "warmup"]
    whole = [line for line in profiled if "error" not in line and not line.values["metadata"].get("was_cancelled")]
    if not whole:
        raise Fields(path, {}).error("metrics", "0 requests succeeded, so there's nothing to read.")
    metrics = [inner for line in whole if (inner := line.below("metrics")) is not None]
    lengths = _values(metrics, "output_sequence_length")
    if not sum(lengths):
        raise whole[0].error("metrics.output_sequence_length", "is missing or 0: there are no output tokens.")
    latencies = _values(metrics, "request_latency")
    ttft = derived(mean(_values(metrics, "time_to_first_token")), "mean over requests")
    tpot = derived(mean(_values(metrics, "inter_token_latency")), "mean over requests")
    span_ns = _span_ns(whole)
    tokens, in_flight_ns = sum(lengths, Fraction(0)), sum(latencies, Fraction(0))
    cached, prompts = (_values(metrics, f"usage_prompt_{name}") for name in ("cache_read_tokens", "tokens"))
    has_cached = bool(sum(prompts)) and len(cached) == len(prompts) == len(whole)
    return Benchmark(
        source=path,
        tool=NAME,
        ttft_definition=_TTFT,
        output_length=derived(mean(lengths), "mean over requests"),
        ttft_ns=ttft,
        tpot_ns=tpot,
        request_latency_ns=derived(mean(latencies), "mean over requests"),
        throughput_tok_s=derived(tokens * 10**9 / span_ns if span_ns else None, "tokens / first start to end"),
        concurrency=derived(in_flight_ns / span_ns if span_ns and latencies else None, "request time / duration"),
        completed=measured(len(whole), "lines"),
        failed=measured(len(profiled) - len(whole), "lines with an error"),
        input_tokens=derived(sum(_values(metrics, "input_sequence_length"), Fraction(0)) or None, "sum over requests"),
        output_tokens=derived(tokens, "sum over requests"),
        cached_tokens=derived(sum(cached, Fraction(0)) if has_cached else None, "sum over requests"),
        hit_rate=derived(
            sum(cached, Fraction(0)) / sum(prompts) if has_cached else None, "cached / prompt tokens of usage"
        ),
        cautions=_cautions(path, ttft, tpot, is_cut=False),
    )


def _failed(fields: Fields, completed: Figure) -> Figure:
    """Requests that failed; a file without any leaves their metric out."""
    ended = _converted(fields, "completed_request_count", "avg")
    failed = None if ended is None or completed.value is None else max(Fraction(0), ended - completed.value)
    return first_known(
        _metric(fields, "error_request_count"), derived(failed, "completed_request_count − request_count")
    )


def _models(fields: Fields) -> Iterator[Any]:
    """Names of models, as versions of the settings put them."""
    yield from _config(fields, "model_names", "model")
    config = fields.below("input_config")
    models = config.values.get("models") if config is not None else None
    if isinstance(models, dict):
        yield from Fields(fields.place, models).find("name")


def _span_ns(lines: Sequence[Fields]) -> int | None:
    metadata = [inner for line in lines if (inner := line.below("metadata")) is not None]
    starts = [start for inner in metadata if (start := inner.count("request_start_ns")) is not None]
    ends = [end for inner in metadata if (end := inner.count("request_end_ns")) is not None]
    return max(ends) - min(starts) if starts and ends and max(ends) > min(starts) else None


def _values(metrics: Sequence[Fields], tag: str) -> list[Fraction]:
    found = [_converted(inner, tag, "value") for inner in metrics]
    return [value for value in found if value is not None]


def _metric(fields: Fields, tag: str) -> Figure:
    value = _converted(fields, tag, "avg")
    return ABSENT if value is None else measured(value, f"{tag}.avg")


def _converted(fields: Fields, tag: str, key: str) -> Fraction | None:
    """A metric's number, times in nanoseconds, percent as a share. Raises InputError for a unit that isn't known."""
    metric = fields.below(tag)
    value = metric.number(key) if metric else None
    if metric is None or value is None:
        return None
    unit = metric.values.get("unit")
    if unit in _COUNTS or unit is None:
        return value
    if unit == "%":
        return value / 100
    if unit not in _UNITS:
        raise metric.error("unit", f"{found_words(unit)} is not a unit that is read here: ns, us, ms, sec, tokens.")
    return value * _UNITS[unit]


def _config(fields: Fields, *keys: str) -> Any:
    config = fields.below("input_config")
    if config is not None:
        yield from config.find(*keys)


def _cautions(place: str, ttft: Figure, tpot: Figure, *, is_cut: bool) -> tuple[str, ...]:
    cautions = [*unsplit_caution(place, ("time_to_first_token", ttft), ("inter_token_latency", tpot))]
    if is_cut:
        cautions.append(f"{place}: the benchmark was cancelled; its figures cover what ran.")
    return tuple(cautions)
