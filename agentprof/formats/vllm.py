"""`vllm bench serve --save-result` (0.33): one JSON object, or one a line with `--append-result`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentprof.formats.fields import Fields
from agentprof.formats.serving import percentage, read_serving
from agentprof.records.benchmark import Benchmark, measured

NAME = "vllm bench serve"
_TTFT_CHAT = "first chunk with choices, one with only a role included, from the request's start, connecting included"
_TTFT_COMPLETIONS = "first chunk with choices, its text may be empty, from the request's start, connecting included"


def is_vllm(value: Mapping[str, Any]) -> bool:
    """Whether an object is a serving result of vLLM's client."""
    return {"completed", "duration"} <= value.keys() and bool({"model_id", "tokenizer_id"} & value.keys())


def read_vllm(fields: Fields) -> Benchmark:
    """One result. Acceptance is in percent there, and an average over the server's whole run."""
    figures = read_serving(fields, "e2el")
    is_chat = "chat" in (fields.text("backend") or fields.text("endpoint_type") or "")
    return Benchmark(
        source=fields.place,
        tool=NAME,
        ttft_definition=_TTFT_CHAT if is_chat else _TTFT_COMPLETIONS,
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
        acceptance_rate=percentage(fields, "spec_decode_acceptance_rate"),
        acceptance_length=measured(fields.number("spec_decode_acceptance_length"), "spec_decode_acceptance_length"),
        seed=figures.seed,
        model=fields.text("model_id"),
        cautions=figures.cautions,
    )
