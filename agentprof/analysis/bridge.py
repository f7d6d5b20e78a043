"""From a raw benchmark to an agent, in time per output token, row by row (docs/bridge.md).

Rates don't add; time per token does. Rows are exact fractions and add up to the difference exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from agentprof.analysis.bench import backend_facts
from agentprof.analysis.bridge_cautions import bridge_cautions
from agentprof.analysis.bridge_match import mismatches
from agentprof.analysis.bridge_splits import Row, acceptance_of, decode_row, wait_row
from agentprof.analysis.call_times import CallTimes, call_times
from agentprof.analysis.counterfactuals import Counterfactual, counterfactuals
from agentprof.analysis.frames import SessionFrame
from agentprof.errors import InputError
from agentprof.records.benchmark import Benchmark

BRIDGE_ROWS = (
    "first_token_waits",
    "decode",
    "generation",
    "tail",
    "pool_wait",
    "retry",
    "tool",
    "agent",
    "think",
    "unattributed",
    "overlap",
)
"""All rows that a bridge may have, in the order in which they are printed."""

_LEDGER_ROWS = ("tool", "agent", "think", "unattributed")


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the sessions of a bridge. Times in nanoseconds, each call at its own length.

    split_*: calls that could be split at their first token. tools_ns: tool time on the critical path, by name.
    """

    wall_ns: int
    tokens: int
    calls: int
    failed_calls: int
    split_calls: int
    split_tokens: int
    first_tokens: int
    wait_ns: int
    decode_ns: int
    unsplit_calls: int
    unsplit_tokens: int
    unsplit_ns: int
    tail_ns: int
    pool_wait_ns: int
    retry_ns: int
    call_ns: int
    model_ns: int
    ledger_ns: Mapping[str, int]
    tools_ns: Mapping[str, int]
    prompt_tokens: int | None

    @property
    def decoded_tokens(self) -> int:
        """Tokens after the first read of split calls."""
        return self.split_tokens - self.first_tokens


@dataclass(frozen=True, slots=True)
class Bridge:
    """What lies between a benchmark and an agent, in nanoseconds per output token.

    The rows add up to `agent_ns - benchmark_ns` exactly. is_split: whether waits and decoding stand apart; without, one
    row `generation` holds both. acceptance: output tokens per decoding step in the run. left_out: sessions that didn't
    complete. mismatch: what tells the benchmark's backend from the run's, where the bridge was forced in spite of it.
    """

    benchmark: Benchmark
    backend: str | None
    scenarios: tuple[str, ...]
    sessions: int
    left_out: int
    totals: Totals
    benchmark_ns: Fraction
    agent_ns: Fraction
    rows: tuple[Row, ...]
    is_split: bool
    acceptance: Fraction | None = None
    counterfactuals: tuple[Counterfactual, ...] = ()
    mismatch: tuple[str, ...] = ()
    cautions: tuple[str, ...] = field(default=())

    @property
    def gap_ns(self) -> Fraction:
        """Agent less benchmark, per token; below 0 where the agent is faster."""
        return self.agent_ns - self.benchmark_ns

    @property
    def benchmark_tok_s(self) -> float:
        """Output tokens per second of one request of the benchmark."""
        return float(1_000_000_000 / self.benchmark_ns)

    @property
    def agent_tok_s(self) -> float:
        """Output tokens per second of session wall time."""
        return float(1_000_000_000 / self.agent_ns)

    def share(self, row: Row) -> float | None:
        """A row's share of the gap; None where there is no gap."""
        return float(row.ns / self.gap_ns) if self.gap_ns else None


def build_bridge(
    sessions: Sequence[SessionFrame],
    benchmark: Benchmark,
    *,
    run: Mapping[str, Any] | None = None,
    backend: str | None = None,
    is_forced: bool = False,
) -> Bridge:
    """The bridge from a benchmark to the completed sessions of one backend, warm-ups left out.

    run: the facts of run.json, which name the backends' fingerprints. backend: which of several. is_forced: build it
    though the benchmark is of another backend, and say so. Raises InputError where there is nothing to explain, where
    backends are several and none is named, and where benchmark and run don't belong together.
    """
    name, measured = _choose(sessions, benchmark, backend)
    used = [session for session in measured if session.outcome in {None, "completed"}]
    calls = {session.tree.root.ref: call_times(session) for session in used}
    flat = [times for of_session in calls.values() for times in of_session]
    totals = _totals(used, flat)
    benchmark_ns = benchmark.price_ns
    if not used or not totals.tokens or not totals.wall_ns or not benchmark_ns:
        raise InputError(f"no bridge to {benchmark.source}: {_why_none(measured, used, totals)}.")
    differences = mismatches(benchmark, backend_facts(run or {}, name), used)
    if differences and not is_forced:
        raise InputError(
            f"{benchmark.source}: is a benchmark of another backend than the run's: {'; '.join(differences)}. "
            "Explain the run with a benchmark of its own backend, or add --force, and every output will say so."
        )
    agent_ns = Fraction(totals.wall_ns, totals.tokens)
    return Bridge(
        benchmark=benchmark,
        backend=name,
        scenarios=tuple(dict.fromkeys(session.scenario for session in used)),
        sessions=len(used),
        left_out=len(measured) - len(used),
        totals=totals,
        benchmark_ns=benchmark_ns,
        agent_ns=agent_ns,
        rows=tuple(_rows(totals, benchmark, benchmark_ns, used, flat)),
        is_split=benchmark.is_split,
        acceptance=acceptance_of(flat),
        counterfactuals=counterfactuals(used, calls, benchmark, benchmark_ns),
        mismatch=tuple(differences),
        cautions=tuple(bridge_cautions(benchmark, used, flat, len(measured), differences, run or {})),
    )


def _choose(
    sessions: Sequence[SessionFrame], benchmark: Benchmark, backend: str | None
) -> tuple[str | None, list[SessionFrame]]:
    """The backend to explain and its sessions: as named, else the only one, else the benchmark's own."""
    measured = [session for session in sessions if not session.is_warmup]
    names = list(dict.fromkeys(session.backend for session in measured))
    if backend is None and len(names) > 1:
        if benchmark.backend not in names:
            listed = ", ".join(str(name) for name in names)
            raise InputError(f"the run has several backends ({listed}): name the one that {benchmark.source} is of.")
        backend = benchmark.backend
    name = backend if backend is not None else names[0] if names else None
    return name, [session for session in measured if session.backend == name]


def _why_none(measured: Sequence[SessionFrame], used: Sequence[SessionFrame], totals: Totals) -> str:
    if not measured:
        return "the run has no measured session on that backend"
    if not used:
        return f"none of {len(measured)} sessions completed"
    if not totals.tokens:
        return "the sessions' calls brought no output tokens"
    return "the sessions took no time" if not totals.wall_ns else "the benchmark says nothing about speed"


def _totals(sessions: Sequence[SessionFrame], calls: Sequence[CallTimes]) -> Totals:
    split = [times for times in calls if times.kind == "split"]
    unsplit = [times for times in calls if times.kind in {"unsplit", "bare"}]
    tools: defaultdict[str, int] = defaultdict(int)
    for session in sessions:
        for tool, ns in session.ledger.splits["tool"].items():
            tools[tool] += ns or 0
    prompts = [times.call.prompt_tokens for times in calls if times.call.prompt_tokens is not None]
    return Totals(
        wall_ns=sum(session.wall_ns for session in sessions),
        tokens=sum(times.tokens for times in calls),
        calls=len(calls),
        failed_calls=sum(times.kind == "failed" for times in calls),
        split_calls=len(split),
        split_tokens=sum(times.tokens for times in split),
        first_tokens=sum(times.first_tokens for times in split),
        wait_ns=sum(times.wait_ns for times in split),
        decode_ns=sum(times.split_decode_ns for times in split),
        unsplit_calls=len(unsplit),
        unsplit_tokens=sum(times.tokens for times in unsplit),
        unsplit_ns=sum(times.unsplit_ns for times in unsplit),
        tail_ns=sum(times.tail_ns for times in calls),
        pool_wait_ns=sum(times.pool_wait_ns for times in calls),
        retry_ns=sum(times.retry_ns for times in calls),
        call_ns=sum(times.total_ns for times in calls),
        model_ns=sum(session.ledger.model_time_ns for session in sessions),
        ledger_ns={row: sum(session.ledger.rows[row] or 0 for session in sessions) for row in _LEDGER_ROWS},
        tools_ns=dict(sorted(tools.items(), key=lambda tool: (-tool[1], tool[0]))),
        prompt_tokens=sum(prompts) // len(prompts) if prompts else None,
    )


def _rows(
    totals: Totals,
    benchmark: Benchmark,
    benchmark_ns: Fraction,
    sessions: Sequence[SessionFrame],
    calls: Sequence[CallTimes],
) -> Iterator[Row]:
    """The rows of docs/bridge.md. Every one is there, at 0 where it has no time."""
    tokens = totals.tokens
    if benchmark.is_split:
        yield wait_row(tokens, benchmark, sessions, calls)
        yield decode_row(tokens, benchmark, calls)
        own_ns, share = totals.unsplit_ns, Fraction(totals.unsplit_tokens, tokens)
    else:
        own_ns, share = totals.wait_ns + totals.decode_ns + totals.unsplit_ns, Fraction(1)
    yield Row("generation", Fraction(own_ns, tokens) - share * benchmark_ns)
    yield Row("tail", Fraction(totals.tail_ns, tokens))
    yield Row("pool_wait", Fraction(totals.pool_wait_ns, tokens))
    yield Row("retry", Fraction(totals.retry_ns, tokens))
    for row in _LEDGER_ROWS:
        yield Row(row, Fraction(totals.ledger_ns[row], tokens))
    yield Row("overlap", Fraction(totals.model_ns - totals.call_ns, tokens))
