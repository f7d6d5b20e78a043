"""guidellm's `benchmarks.json` (0.8): a report of versions 1 and 2, one benchmark for each rate that was tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from agentprof.formats.fields import Fields, found_count, found_text, unsplit_caution
from agentprof.records.benchmark import ABSENT, Benchmark, Figure, derived, estimated, first_known, measured

NAME = "guidellm"
_VERSIONS = (1, 2)
_TTFT = "first iteration with text or reasoning, from sending the request, connecting left out"
MS, SECOND = 1_000_000, 1_000_000_000


def is_guidellm(value: Mapping[str, Any]) -> bool:
    """Whether an object is a report of guidellm."""
    metadata = value.get("metadata")
    is_report = isinstance(value.get("benchmarks"), list)
    return is_report and ((isinstance(metadata, dict) and "guidellm_version" in metadata) or _has_metrics(value))


def _has_metrics(value: Mapping[str, Any]) -> bool:
    first = value["benchmarks"][0] if value["benchmarks"] else None
    return isinstance(first, dict) and isinstance(first.get("metrics"), dict) and "request_totals" in first["metrics"]


def read_guidellm(fields: Fields) -> tuple[Benchmark, ...]:
    """All benchmarks of a report. Raises InputError for a version that isn't known, or for none."""
    metadata = fields.below("metadata")
    version = metadata.values.get("version") if metadata else None
    if version is not None and version not in _VERSIONS:
        raise fields.error("metadata.version", f"expected 1 or 2; found {version}; this agentprof doesn't know it.")
    listed = fields.values["benchmarks"]
    if not listed:
        raise fields.error("benchmarks", "is empty, so there's nothing to read.")
    place = fields.place
    found = []
    for index, item in enumerate(listed):
        if not isinstance(item, dict):
            raise fields.error(f"benchmarks[{index}]", "expected an object.")
        one = Fields(place, item, f"benchmarks[{index}].")
        found.append(_read(one, metadata.text("guidellm_version") if metadata else None, fields))
    return tuple(found)


def _read(fields: Fields, version: str | None, report: Fields) -> Benchmark:
    metrics = fields.below("metrics")
    if metrics is None:
        raise fields.error("metrics", "is missing.")
    completed = _requests(metrics, "successful")
    if not completed.value:
        raise metrics.error("request_totals.successful", "0 requests succeeded, so there's nothing to read.")
    length = _mean(metrics, "output_token_count", 1)
    if not length.value:
        raise metrics.error("output_token_count.successful.mean", "is missing or 0: there are no output tokens.")
    ttft = _mean(metrics, "time_to_first_token_ms", MS)
    # Not time_per_output_token_ms, which spreads the first token's wait over all tokens.
    tpot = _mean(metrics, "inter_token_latency_ms", MS)
    cached, prompts = _cached(fields, int(completed.value))
    return Benchmark(
        source=fields.place,
        tool=NAME,
        ttft_definition=_TTFT,
        output_length=length,
        ttft_ns=ttft,
        tpot_ns=tpot,
        request_latency_ns=_mean(metrics, "request_latency", SECOND),
        throughput_tok_s=_mean(metrics, "output_tokens_per_second", 1),
        concurrency=_concurrency(fields, metrics),
        completed=completed,
        failed=_requests(metrics, "errored"),
        input_tokens=_total(metrics, "prompt_token_count"),
        output_tokens=_total(metrics, "output_token_count"),
        cached_tokens=derived(cached, "sum over requests"),
        hit_rate=derived(None if cached is None else cached / prompts, "Σ cached / Σ prompt tokens"),
        seed=measured(found_count(_seeds(fields, report)), "seed"),
        tool_version=version,
        model=found_text(_settings(fields, report, "model")),
        cautions=_cautions(fields, metrics, ttft, tpot),
    )


def _settings(fields: Fields, report: Fields, *keys: str) -> Iterator[Any]:
    """Settings of the benchmark first, then of the report; never what requests or metrics hold."""
    for holder in (fields.below("config"), report.below("args"), report.below("config")):
        if holder is not None:
            yield from holder.find(*keys)


def _seeds(fields: Fields, report: Fields) -> Iterator[Any]:
    """The seed of the prompts: a number, or from 0.8 on an object with its value, in the report's settings."""
    for found in _settings(fields, report, "random_seed", "seed"):
        yield found.get("value") if isinstance(found, dict) else found


def _successful(metrics: Fields, name: str) -> Fields | None:
    metric = metrics.below(name)
    return metric.below("successful") if metric else None


def _mean(metrics: Fields, name: str, unit: int) -> Figure:
    """The mean of successful requests; 0 means that the tool had nothing to measure."""
    summary = _successful(metrics, name)
    if summary is None:
        return ABSENT
    mean, median = summary.number("mean"), summary.number("median")
    return first_known(
        measured(mean * unit if mean else None, f"{name}.successful.mean"),
        estimated(median * unit if median else None, f"{name}.successful.median stands in for the mean"),
    )


def _total(metrics: Fields, name: str) -> Figure:
    summary = _successful(metrics, name)
    return measured(summary.number("total_sum") if summary else None, f"{name}.successful.total_sum")


def _cached(fields: Fields, completed: int) -> tuple[Fraction | None, Fraction]:
    """Cached and all prompt tokens of the requests listed; None where not every request says how many were cached."""
    requests = fields.below("requests")
    listed = requests.values.get("successful") if requests else None
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    each = [Fields(fields.place, item, f"{fields.path}requests.successful[{i}].") for i, item in enumerate(items)]
    cached = [count for one in each if (count := one.count("cached_tokens")) is not None]
    prompts = sum(one.count("prompt_tokens") or 0 for one in each)
    is_known = len(cached) == completed and prompts > 0
    return (Fraction(sum(cached)) if is_known else None), Fraction(prompts)


def _requests(metrics: Fields, status: str) -> Figure:
    totals = metrics.below("request_totals")
    latency = metrics.below("request_latency")
    counted = latency.below(status) if latency else None
    return first_known(
        measured(totals.count(status) if totals else None, f"request_totals.{status}"),
        derived(counted.count("count") if counted else None, f"request_latency.{status}.count"),
    )


def _concurrency(fields: Fields, metrics: Fields) -> Figure:
    """As the strategy set it; a synchronous one has 1; else the mean in flight."""
    config = fields.below("config")
    strategy = config.below("strategy") if config else None
    if strategy is None:
        return _mean(metrics, "request_concurrency", 1)
    is_alone = "synchronous" in {strategy.text("type_"), strategy.text("kind")}
    return first_known(
        measured(Fraction(1) if is_alone else None, "strategy synchronous"),
        measured(strategy.count("streams"), "strategy.streams"),
        _mean(metrics, "request_concurrency", 1),
        measured(strategy.count("max_concurrency"), "strategy.max_concurrency"),
    )


def _cautions(fields: Fields, metrics: Fields, ttft: Figure, tpot: Figure) -> tuple[str, ...]:
    cautions = [
        *unsplit_caution(
            fields.place,
            ("time_to_first_token_ms.successful.mean", ttft),
            ("inter_token_latency_ms.successful.mean", tpot),
        )
    ]
    incomplete = _requests(metrics, "incomplete").value
    if incomplete:
        cautions.append(f"{fields.place}: requests cut off, and in no figure: {int(incomplete)}.")
    return tuple(cautions)
