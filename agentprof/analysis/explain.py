"""The JSON of `explain --json`: a contract, versioned, documented field by field in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentprof.analysis.calls import CallFrame
from agentprof.analysis.cautions import session_cautions
from agentprof.analysis.frames import SessionFrame, aggregates, session_frames
from agentprof.records.spans import Span

FORMAT = 1
"""Version of the contract: raised when a name goes or changes its meaning, not when one is added."""


def explain(run: Mapping[str, Any], spans: Iterable[Span]) -> dict[str, Any]:
    """What a run's spans say, as values that `json.dumps` takes; `run` is passed through, with `aggregate` added."""
    return explain_sessions(run, session_frames(spans))


def explain_sessions(run: Mapping[str, Any], sessions: Sequence[SessionFrame]) -> dict[str, Any]:
    """The same from frames that were already built."""
    warm = {(session.scenario, session.backend) for session in sessions if session.is_warmup}
    return {
        "format": FORMAT,
        "run": {**run, "aggregate": [asdict(group) | {"tok_s": group.tok_s} for group in aggregates(sessions)]},
        "sessions": [_session(session, (session.scenario, session.backend) in warm) for session in sessions],
    }


def _session(session: SessionFrame, has_warmup: bool) -> dict[str, Any]:
    ledger = session.ledger
    return {
        "scenario": session.scenario,
        "backend": session.backend,
        "repetition": session.repetition,
        "warmup": session.is_warmup,
        "outcome": session.outcome,
        "checks_passed": session.checks_passed,
        "wall_ns": session.wall_ns,
        "model_time_ns": ledger.model_time_ns,
        "output_tokens": session.output_tokens,
        "output_tokens_source": session.output_tokens_source,
        "ledger": dict(ledger.rows),
        "splits": {row: dict(parts) for row, parts in ledger.splits.items()},
        "rates": asdict(session.rates),
        "client_lag_p99_ns": session.lag_p99_ns,
        "cautions": session_cautions(session, has_warmup=has_warmup),
        "calls": [_call(call) for call in session.calls],
    }


def _call(call: CallFrame) -> dict[str, Any]:
    return {
        "step": call.step,
        "wall_ns": call.wall_ns,
        "pool_wait_ns": call.pool_wait_ns,
        "connect_ns": call.connect_ns,
        "send_ns": call.send_ns,
        "ttft_ns": call.ttft_ns,
        "ttfo_ns": call.ttfo_ns,
        "first_event_ns": call.first_event_ns,
        "decode_ns": call.decode_ns,
        "tail_ns": call.tail_ns,
        "retry_ns": call.retry_ns,
        "rtt_ns": call.rtt_ns,
        "gateway_ns": call.gateway_ns,
        "server": asdict(call.server),
        "prompt_tokens": call.prompt_tokens,
        "cached_tokens": call.cached_tokens,
        "output_tokens": call.output_tokens,
        "output_tokens_source": call.output_tokens_source,
        "reasoning_tokens": call.reasoning_tokens,
        "first_read_tokens": call.first_read_tokens,
        "peak_interval_tok_s": call.peak_interval_tok_s,
        "finish": call.finish,
        "tool_calls": [dict(tool_call) for tool_call in call.tool_calls],
        "attempts": call.attempts,
        "error": asdict(call.error) if call.error else None,
        "flags": list(call.flags),
    }
