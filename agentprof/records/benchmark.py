"""A raw serving benchmark as values: our own, or read from another tool's result file (docs/bridge.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

Provenance = Literal["measured", "derived", "estimated", "absent"]

TTFT_DEFINITION = "first token event − start of the attempt that succeeded, its connect included"
"""What agentprof's own TTFT is (docs/metrics.md, "One call")."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a benchmark and where it comes from.

    measured: the tool measured or set it. derived: computed from measured figures, exactly. estimated: stands in for a
    figure that wasn't measured. absent: `value` is None. how: the fields it rests on.
    """

    value: Fraction | None
    provenance: Provenance
    how: str | None = None

    @property
    def number(self) -> float | None:
        """The value for printing."""
        return None if self.value is None else float(self.value)


ABSENT = Figure(None, "absent")


def measured(value: Fraction | int | None, how: str | None = None) -> Figure:
    """A figure that the tool measured or set; absent if None."""
    return ABSENT if value is None else Figure(Fraction(value), "measured", how)


def derived(value: Fraction | int | None, how: str) -> Figure:
    """A figure computed from measured ones; absent if None."""
    return ABSENT if value is None else Figure(Fraction(value), "derived", how)


def estimated(value: Fraction | int | None, how: str) -> Figure:
    """A figure that stands in for one that wasn't measured; absent if None."""
    return ABSENT if value is None else Figure(Fraction(value), "estimated", how)


def first_known(*figures: Figure) -> Figure:
    """The first figure that isn't absent."""
    return next((figure for figure in figures if figure.value is not None), ABSENT)


@dataclass(frozen=True, slots=True)
class Spread:
    """How requests differ in one figure. `std` is the sample's, None with fewer than two."""

    count: int
    mean: float
    std: float | None
    min: float
    median: float
    max: float


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A run of requests of fixed length without an agent. Times in nanoseconds.

    source: the file or run it was read from. ttft_definition: what the tool calls TTFT. output_length: mean output
    tokens of a request (L). tpot_ns: time per token after the first. request_latency_ns: mean time of a whole request.
    throughput_tok_s: output tokens of all requests per second. concurrency: requests at once, as set, else as measured.
    acceptance_length: tokens per decoding step. acceptance_rate: accepted / drafted tokens, 0 to 1. hit_rate: cached /
    prompt tokens. prompts: what they were, such as `random`; is_length_forced: whether replies ran to a set length;
    None where the file doesn't say. wait_parts_ns: what the mean first-token wait is made of, for the parts that were
    reported. spreads: by rate (`decode`, `call` in tok/s) or time (`ttft`, `tpot` in ms). fingerprint, labels,
    backend: of our own benchmarks alone.
    """

    source: str
    tool: str
    ttft_definition: str
    output_length: Figure = ABSENT
    ttft_ns: Figure = ABSENT
    tpot_ns: Figure = ABSENT
    request_latency_ns: Figure = ABSENT
    throughput_tok_s: Figure = ABSENT
    concurrency: Figure = ABSENT
    completed: Figure = ABSENT
    failed: Figure = ABSENT
    input_tokens: Figure = ABSENT
    output_tokens: Figure = ABSENT
    acceptance_rate: Figure = ABSENT
    acceptance_length: Figure = ABSENT
    cached_tokens: Figure = ABSENT
    hit_rate: Figure = ABSENT
    seed: Figure = ABSENT
    tool_version: str | None = None
    backend: str | None = None
    model: str | None = None
    address: str | None = None
    prompts: str | None = None
    is_length_forced: bool | None = None
    fingerprint: Mapping[str, Any] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    wait_parts_ns: Mapping[str, Fraction] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    cautions: tuple[str, ...] = ()

    @property
    def is_split(self) -> bool:
        """Whether TTFT, TPOT and output length are known apart, so that waits and decoding can be compared."""
        return None not in {self.output_length.value, self.ttft_ns.value, self.tpot_ns.value}

    @property
    def price_ns(self) -> Fraction | None:
        """Nanoseconds per output token of one request, w_b.

        TTFT/L + TPOT·(L−1)/L where these are known; else the request's latency / L; else concurrency / throughput.
        None where the benchmark has none of them.
        """
        length, ttft, tpot = self.output_length.value, self.ttft_ns.value, self.tpot_ns.value
        if length and ttft is not None and tpot is not None:
            return ttft / length + tpot * (length - 1) / length
        if length and self.request_latency_ns.value:
            return self.request_latency_ns.value / length
        if self.throughput_tok_s.value:
            return 1_000_000_000 * (self.concurrency.value or 1) / self.throughput_tok_s.value
        return None

    @property
    def call_tok_s(self) -> float | None:
        """Tokens per second of one request, the whole request counted: 1 / `price_ns`."""
        price_ns = self.price_ns
        return float(1_000_000_000 / price_ns) if price_ns else None


FIGURES = (
    "output_length",
    "ttft_ns",
    "tpot_ns",
    "request_latency_ns",
    "throughput_tok_s",
    "concurrency",
    "completed",
    "failed",
    "input_tokens",
    "output_tokens",
    "acceptance_rate",
    "acceptance_length",
    "cached_tokens",
    "hit_rate",
    "seed",
)
"""The fields of a benchmark that are figures, in the order in which they are printed."""
