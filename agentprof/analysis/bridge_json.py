"""The `bridge` key of `explain --json`, and a benchmark as JSON: contracts, documented in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from agentprof.analysis.bridge import Bridge
from agentprof.analysis.bridge_splits import Row
from agentprof.records.benchmark import FIGURES, Benchmark

MS_NS = 1_000_000


def bridge_json(bridge: Bridge) -> dict[str, Any]:
    """A bridge as values that `json.dumps` takes; times in milliseconds per output token, as floats."""
    return {
        "benchmark_ms_per_token": float(bridge.benchmark_ns / MS_NS),
        "agent_ms_per_token": float(bridge.agent_ns / MS_NS),
        "rows": {row.key: float(row.ns / MS_NS) for row in bridge.rows},
        "shares": {row.key: bridge.share(row) for row in bridge.rows},
        "splits": {row.key: _parts(row) for top in bridge.rows for row in _opened(top)},
        "estimated": [row.key for top in bridge.rows for row in _all(top) if row.is_estimated],
        "counterfactual_tok_s": {one.key: one.tok_s for one in bridge.counterfactuals},
        "benchmark_tok_s": bridge.benchmark_tok_s,
        "agent_tok_s": bridge.agent_tok_s,
        "is_split": bridge.is_split,
        "backend": bridge.backend,
        "scenarios": list(bridge.scenarios),
        "sessions": bridge.sessions,
        "left_out": bridge.left_out,
        "output_tokens": bridge.totals.tokens,
        "mismatch": list(bridge.mismatch),
        "cautions": list(bridge.cautions),
        "benchmark": benchmark_json(bridge.benchmark),
    }


def benchmark_json(benchmark: Benchmark) -> dict[str, Any]:
    """A benchmark as values that `json.dumps` takes; each figure with its provenance."""
    return {
        "source": benchmark.source,
        "tool": benchmark.tool,
        "tool_version": benchmark.tool_version,
        "backend": benchmark.backend,
        "model": benchmark.model,
        "ttft_definition": benchmark.ttft_definition,
        "call_tok_s": benchmark.call_tok_s,
        "figures": {name: _figure(benchmark, name) for name in FIGURES},
        "spreads": {name: asdict(spread) for name, spread in benchmark.spreads.items()},
        "fingerprint": None if benchmark.fingerprint is None else dict(benchmark.fingerprint),
        "cautions": list(benchmark.cautions),
    }


def _figure(benchmark: Benchmark, name: str) -> dict[str, Any]:
    figure = getattr(benchmark, name)
    return {"value": figure.number, "provenance": figure.provenance, "how": figure.how}


def _parts(row: Row) -> dict[str, float]:
    return {part.key: float(part.ns / MS_NS) for part in row.parts}


def _all(row: Row) -> Iterator[Row]:
    yield row
    for part in row.parts:
        yield from _all(part)


def _opened(row: Row) -> Iterator[Row]:
    return (one for one in _all(row) if one.parts)
