"""Sessions of one scenario on one backend, and their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Group:
    """The sessions of one scenario on one backend, in order of start."""

    scenario: str
    backend: str | None
    warmups: tuple[Mapping[str, Any], ...]
    measured: tuple[Mapping[str, Any], ...]

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.scenario} on {self.backend}" if self.backend else self.scenario

    @property
    def completed(self) -> tuple[Mapping[str, Any], ...]:
        """Those that means are taken over: no warm-up, and ended as completed (or imported, without an outcome)."""
        return tuple(session for session in self.measured if session["outcome"] in {None, "completed"})


def group_sessions(sessions: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Sessions by scenario and backend, in order of first appearance."""
    keys = list(dict.fromkeys((session["scenario"], session["backend"]) for session in sessions))
    groups = []
    for scenario, backend in keys:
        members = [session for session in sessions if (session["scenario"], session["backend"]) == (scenario, backend)]
        groups.append(
            Group(
                scenario,
                backend,
                tuple(session for session in members if session["warmup"]),
                tuple(session for session in members if not session["warmup"]),
            )
        )
    return groups


def mean_session(sessions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A session whose times and tokens are means over sessions, and whose rates are taken over all of their calls.

    A row is None where no session measures it, else unmeasured ones count as 0, so that rows still add up.
    """
    first = sessions[0]
    lags = [session["client_lag_p99_ns"] for session in sessions if session["client_lag_p99_ns"] is not None]
    passed = [session["checks_passed"] for session in sessions if session["checks_passed"] is not None]
    sources = {session["output_tokens_source"] for session in sessions}
    return {
        **{key: first[key] for key in ("scenario", "backend", "warmup", "outcome")},
        "checks_passed": all(passed) if passed else None,
        "wall_ns": _mean([session["wall_ns"] for session in sessions]),
        "model_time_ns": _mean([session["model_time_ns"] for session in sessions]),
        "output_tokens": _mean([session["output_tokens"] for session in sessions]),
        "output_tokens_source": "counted" if "counted" in sources else first["output_tokens_source"],
        "ledger": {row: _mean([session["ledger"][row] for session in sessions]) for row in first["ledger"]},
        "splits": {
            row: {part: _mean([session["splits"][row].get(part) for session in sessions]) for part in parts}
            for row, parts in _all_parts(sessions).items()
        },
        "rates": _rates(sessions),
        "client_lag_p99_ns": max(lags, default=None),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(values) if known else None


def _all_parts(sessions: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    return {
        row: list(dict.fromkeys(part for session in sessions for part in session["splits"][row]))
        for row in sessions[0]["splits"]
    }


def _rates(sessions: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Decode, call and agent tokens per second: sums of tokens over sums of time, never means of rates."""
    calls = [call for session in sessions for call in session["calls"]]
    whole = [call for call in calls if not call["error"] and call["output_tokens"] is not None]
    decoded = [call for call in whole if call["decode_ns"] and call["first_read_tokens"] is not None]
    tokens = sum(call["output_tokens"] for call in whole)
    decoded_tokens = sum(max(0, call["output_tokens"] - call["first_read_tokens"]) for call in decoded)
    return {
        "decode": _per_second(decoded_tokens, sum(call["decode_ns"] for call in decoded)),
        "call": _per_second(tokens, sum(call["wall_ns"] for call in whole)),
        "agent": _per_second(tokens, sum(session["wall_ns"] for session in sessions)),
    }


def _per_second(tokens: int, ns: int) -> float | None:
    return tokens * 1e9 / ns if tokens and ns else None
