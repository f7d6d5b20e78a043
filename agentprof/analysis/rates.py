"""Tokens per second, each rate named: decode, call, agent, and aggregate over concurrent sessions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentprof.analysis.calls import CallFrame

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second of one session; None where it can't be computed.

    decode: Σ(n − n₁) / Σ decode time. call: Σn / Σ call time. agent: Σn / session time. Calls that failed count in
    none of them; unsplit calls don't count in decode.
    """

    decode: float | None
    call: float | None
    agent: float | None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What one backend delivered to sessions that ran at the same time.

    wall_ns: time during which at least one session ran. peak: the most that ran at once.
    """

    backend: str | None
    sessions: int
    peak: int
    wall_ns: int
    output_tokens: int

    @property
    def tok_s(self) -> float | None:
        """Output tokens of all sessions per second of `wall_ns`."""
        return per_second(self.output_tokens, self.wall_ns)


def per_second(tokens: int | None, ns: int | None) -> float | None:
    """Tokens per second; None without tokens or without time."""
    return tokens * SECOND_NS / ns if tokens and ns and ns > 0 else None


def session_rates(calls: Sequence[CallFrame], wall_ns: int) -> Rates:
    """The rates of a session from its calls and its wall time in nanoseconds."""
    whole = [call for call in calls if call.error is None and call.output_tokens is not None]
    decoded = [call for call in whole if call.decoded_tokens is not None]
    tokens = sum(call.output_tokens or 0 for call in whole)
    return Rates(
        decode=per_second(
            sum(call.decoded_tokens or 0 for call in decoded), sum(call.decode_ns or 0 for call in decoded)
        ),
        call=per_second(tokens, sum(call.wall_ns for call in whole)),
        agent=per_second(tokens, wall_ns),
    )


def busy_time(intervals: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Length of the union of intervals in nanoseconds, and the most of them that hold at one instant."""
    edges = sorted(edge for start, end in intervals if start < end for edge in ((start, 1), (end, -1)))
    busy = peak = running = since = 0
    for at, change in edges:
        if running:
            busy += at - since
        running += change
        peak = max(peak, running)
        since = at
    return busy, peak
