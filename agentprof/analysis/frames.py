"""Sessions as values: what the spans of a trace say of one run of the agent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentprof import semconv
from agentprof.analysis import attributes
from agentprof.analysis.calls import CallFrame, call_frames
from agentprof.analysis.ledger import LEDGER_ROWS, Ledger, build_ledger
from agentprof.analysis.rates import Aggregate, Rates, busy_time, session_rates
from agentprof.analysis.tree import Tree, in_order, rest_of, trees
from agentprof.records.spans import Span

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class SessionFrame:
    """One session. `spans` are all of its trace, other services' included; `tree` those that take part in the ledger.

    checks_passed: None where no checks ran. lag_p99_ns: how late the client's event loop was while streams were open.
    """

    tree: Tree
    spans: tuple[Span, ...]
    calls: tuple[CallFrame, ...]
    ledger: Ledger
    rates: Rates
    session: str
    scenario: str
    backend: str | None
    repetition: int | None
    is_warmup: bool
    mode: str | None
    length: str | None
    history: str | None
    cache: str | None
    outcome: str | None
    outcome_reason: str | None
    checks_passed: bool | None
    lag_p99_ns: int | None
    lag_max_ns: int | None

    @property
    def start_ns(self) -> int:
        """Start of the session's span, on the clock of its spans."""
        return self.tree.root.start_ns

    @property
    def wall_ns(self) -> int:
        """Session wall time in nanoseconds: the workspace is ready before it, checks run after it."""
        return self.ledger.wall_ns

    @property
    def finished_calls(self) -> tuple[CallFrame, ...]:
        """The calls that didn't fail."""
        return tuple(call for call in self.calls if call.error is None)

    @property
    def output_tokens(self) -> int | None:
        """Output tokens of the calls that didn't fail; None where none of them says."""
        known = [call.output_tokens for call in self.finished_calls if call.output_tokens is not None]
        return sum(known) if known or not self.finished_calls else None

    @property
    def output_tokens_source(self) -> str | None:
        """`counted` where any call's tokens were counted from the stream, else `server`; None without tokens."""
        sources = {call.output_tokens_source for call in self.finished_calls if call.output_tokens is not None}
        return "counted" if "counted" in sources else "server" if sources else None


def session_frames(spans: Iterable[Span]) -> list[SessionFrame]:
    """The sessions in a set of spans, in order of start; the order of `spans` doesn't matter.

    A trace without an `invoke_agent` span holds no session and is left out.
    """
    traces: defaultdict[int, list[Span]] = defaultdict(list)
    for span in in_order(spans):
        traces[span.ref.trace_id].append(span)
    frames = [_session_frame(tree, trace) for trace in traces.values() for tree in trees(trace)]
    return sorted(frames, key=lambda frame: (frame.start_ns, frame.tree.root.ref.trace_id, frame.tree.root.ref.span_id))


def _session_frame(tree: Tree, trace: Sequence[Span]) -> SessionFrame:
    root = tree.root
    calls = call_frames(tree)
    ledger = build_ledger(tree, calls)
    return SessionFrame(
        tree=tree,
        spans=tuple(trace),
        calls=calls,
        ledger=ledger,
        rates=session_rates(calls, ledger.wall_ns),
        session=attributes.text(root, semconv.SESSION_ID) or f"{root.ref.trace_id:032x}",
        scenario=attributes.text(root, semconv.SCENARIO) or rest_of(root) or "unnamed",
        backend=attributes.text(root, semconv.BACKEND),
        repetition=attributes.size(root, semconv.REPETITION),
        is_warmup=attributes.truth(root, semconv.WARMUP) or False,
        mode=attributes.text(root, semconv.MODE),
        length=attributes.text(root, semconv.LENGTH),
        history=attributes.text(root, semconv.HISTORY),
        cache=attributes.text(root, semconv.CACHE),
        outcome=attributes.text(root, semconv.OUTCOME),
        outcome_reason=attributes.text(root, semconv.OUTCOME_REASON),
        checks_passed=_checks_passed(trace),
        lag_p99_ns=attributes.size(root, semconv.LAG_P99_NS),
        lag_max_ns=attributes.size(root, semconv.LAG_MAX_NS),
    )


def _checks_passed(trace: Sequence[Span]) -> bool | None:
    """What the trace's `checks` span says; False if several disagree."""
    verdicts = [attributes.truth(span, semconv.CHECKS_PASSED) for span in trace if span.name == semconv.CHECKS]
    known = [verdict for verdict in verdicts if verdict is not None]
    return all(known) if known else None


def aggregates(sessions: Sequence[SessionFrame]) -> list[Aggregate]:
    """One aggregate for each backend whose sessions ran at the same time, warm-ups left out."""
    by_backend: defaultdict[str | None, list[SessionFrame]] = defaultdict(list)
    for session in sessions:
        if not session.is_warmup:
            by_backend[session.backend].append(session)
    found = []
    for backend, members in by_backend.items():
        busy_ns, peak = busy_time((member.start_ns, member.start_ns + member.wall_ns) for member in members)
        tokens = sum(member.output_tokens or 0 for member in members)
        if peak > 1:
            found.append(Aggregate(backend, len(members), peak, busy_ns, tokens))
    return found


def to_frames(sessions: Sequence[SessionFrame]) -> dict[str, pd.DataFrame]:
    """The tables `sessions`, `calls` and `spans`, joined by the column `session`; what isn't measured is missing.

    Ledger rows are columns of `sessions`, named `ledger_<row>_ns`. `start_ns` is absolute in `sessions`, and counted
    from the session's start in `calls` and `spans`.
    """
    import pandas as pd

    tables = {
        "sessions": [_session_row(frame) for frame in sessions],
        "calls": [_call_row(frame, call) for frame in sessions for call in frame.calls],
        "spans": [_span_row(frame, span) for frame in sessions for span in frame.spans],
    }
    return {name: _typed(pd.DataFrame(rows, dtype=object)) for name, rows in tables.items()}


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    whole = [column for column in table.columns if str(column).endswith(("_ns", "_tokens"))]
    return table.convert_dtypes().astype(dict.fromkeys(whole, "Int64"))


def _session_row(frame: SessionFrame) -> dict[str, Any]:
    return {
        "session": frame.session,
        "scenario": frame.scenario,
        "backend": frame.backend,
        "repetition": frame.repetition,
        "warmup": frame.is_warmup,
        "outcome": frame.outcome,
        "checks_passed": frame.checks_passed,
        "start_ns": frame.start_ns,
        "wall_ns": frame.wall_ns,
        "model_time_ns": frame.ledger.model_time_ns,
        "output_tokens": frame.output_tokens,
        "decode_tok_s": frame.rates.decode,
        "call_tok_s": frame.rates.call,
        "agent_tok_s": frame.rates.agent,
        **{f"ledger_{row}_ns": frame.ledger.rows[row] for row in LEDGER_ROWS},
    }


def _call_row(frame: SessionFrame, call: CallFrame) -> dict[str, Any]:
    return {
        "session": frame.session,
        "span": f"{call.ref.span_id:016x}",
        "step": call.step,
        "start_ns": call.start_ns - frame.start_ns,
        **{name: getattr(call, name) for name in _CALL_COLUMNS},
        "queue_ns": call.server.queue_ns,
        "prefill_ns": call.server.prefill_ns,
        "error": call.error.kind if call.error else None,
        "flags": ",".join(call.flags),
    }


_CALL_COLUMNS = (
    "wall_ns",
    "pool_wait_ns",
    "connect_ns",
    "send_ns",
    "wait_ns",
    "ttft_ns",
    "ttfo_ns",
    "first_event_ns",
    "decode_ns",
    "generation_ns",
    "tail_ns",
    "retry_ns",
    "rtt_ns",
    "gateway_ns",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "first_read_tokens",
    "decoded_tokens",
    "attempts",
    "finish",
)


def _span_row(frame: SessionFrame, span: Span) -> dict[str, Any]:
    return {
        "session": frame.session,
        "span": f"{span.ref.span_id:016x}",
        "parent": f"{span.parent.span_id:016x}" if span.parent else None,
        "name": span.name,
        "kind": span.kind,
        "start_ns": span.start_ns - frame.start_ns,
        "duration_ns": span.duration_ns,
        "error": span.error,
    }
