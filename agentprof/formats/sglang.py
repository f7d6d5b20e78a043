"""`python -m sglang.bench_serving --output-file` (0.5.23): JSON Lines, one run a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentprof.formats.fields import Fields, found_text
from agentprof.formats.serving import ServingFigures, read_serving
from agentprof.records.benchmark import ABSENT, Benchmark, Figure, derived, first_known, measured

NAME = "sglang.bench_serving"
_TTFT = "first chunk with text, from the request's start, connecting included"
_MARKS = {"total_output_tokens_retokenized", "mean_e2e_latency_ms", "accept_length", "random_output_len"}


def is_sglang(value: Mapping[str, Any]) -> bool:
    """Whether an object is a serving result of SGLang's client."""
    return {"completed", "duration", "total_output_tokens"} <= value.keys() and bool(_MARKS & value.keys())


def read_sglang(fields: Fields) -> Benchmark:
    """One run. The acceptance length is the server's average since it started, not this run's alone."""
    figures = read_serving(fields, "e2e_latency")
    cache = _cache(fields, figures)
    return Benchmark(
        source=fields.place,
        tool=NAME,
        ttft_definition=_TTFT,
        output_length=figures.output_length,
        ttft_ns=figures.ttft_ns,
        tpot_ns=figures.tpot_ns,
        request_latency_ns=figures.request_latency_ns,
        throughput_tok_s=figures.throughput_tok_s,
        concurrency=figures.concurrency,
        completed=measured(figures.completed, "completed"),
        failed=figures.failed,
        input_tokens=figures.input_tokens,
        output_tokens=figures.output_tokens,
        acceptance_length=measured(fields.number("accept_length"), "accept_length, the server's average"),
        cached_tokens=cache.tokens,
        hit_rate=cache.hit_rate,
        seed=figures.seed,
        model=found_text(iter([fields.values.get("model_id"), fields.values.get("model")]))
        or found_text(fields.find("model_path", "served_model_name")),
        prompts=fields.text("dataset_name"),
        cautions=figures.cautions,
    )


@dataclass(frozen=True, slots=True)
class _Cache:
    tokens: Figure = ABSENT
    hit_rate: Figure = ABSENT


def _cache(fields: Fields, figures: ServingFigures) -> _Cache:
    """What `cache_report` says, under the names that it has had."""
    report = fields.below("cache_report")
    if report is None:
        return _Cache()
    tokens = first_known(
        *(measured(report.count(key), f"cache_report.{key}") for key in ("total_cached_tokens", "cached_tokens"))
    )
    prompt = figures.input_tokens.value
    share = tokens.value / prompt if tokens.value is not None and prompt else None
    return _Cache(tokens, derived(share, "cached tokens / total_input_tokens"))
