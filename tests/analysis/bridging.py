"""Benchmarks and sessions for bridges, with figures that are worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from handwritten import MS, Trace

from agentprof import semconv
from agentprof.analysis.bridge import Bridge
from agentprof.records.benchmark import TTFT_DEFINITION, Benchmark, measured
from agentprof.records.spans import SpanRef


def milliseconds(value: str | int) -> Fraction:
    """Exact nanoseconds of milliseconds."""
    return Fraction(str(value)) * MS


def raw(ttft: str | int = 100, tpot: str | int = 10, length: int = 10, **more: Any) -> Benchmark:
    """A benchmark in milliseconds: by default (100 + 9 × 10) / 10 = 19 ms per token."""
    fields: dict[str, Any] = {
        "source": "bench.json",
        "tool": "agentprof bench",
        "ttft_definition": TTFT_DEFINITION,
        "output_length": measured(length, "set"),
        "ttft_ns": measured(milliseconds(ttft), "set"),
        "tpot_ns": measured(milliseconds(tpot), "set"),
        "concurrency": measured(1, "set"),
        "hit_rate": measured(0, "set"),
    }
    return Benchmark(**(fields | more))


def session_root(trace: Trace, end: float, **attributes: Any) -> SpanRef:
    """The span of a completed session from 0 to `end` milliseconds."""
    return trace.add(None, "invoke_agent fix", 0, end, {semconv.OUTCOME: "completed", **attributes})


def rows_ms(bridge: Bridge) -> dict[str, Fraction]:
    """Rows in milliseconds per token, zeros left out, after checking that they add up exactly."""
    assert sum(row.ns for row in bridge.rows) == bridge.agent_ns - bridge.benchmark_ns
    return {row.key: row.ns / MS for row in bridge.rows if row.ns}


def parts_ms(bridge: Bridge, *path: str) -> dict[str, Fraction]:
    """The parts of a row in milliseconds per token, after checking that they add up to it."""
    parts, row = {one.key: one for one in bridge.rows}, None
    for key in path:
        row = parts[key]
        parts = {part.key: part for part in row.parts}
    assert row is not None
    assert not parts or sum(part.ns for part in parts.values()) == row.ns
    return {key: part.ns / MS for key, part in parts.items()}
