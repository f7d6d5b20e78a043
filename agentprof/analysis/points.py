"""Calls as points of a fit: how large each was, how long its rows took, and what else ran at the same time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from agentprof import semconv
from agentprof.analysis import attributes
from agentprof.analysis.call_times import CallTimes, call_times, wait_parts
from agentprof.analysis.calls import CallFrame
from agentprof.analysis.fit import Sample
from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.ledger import MODEL_ROWS

OWN_TEXT, AT_ONCE = "own_text", "at_once"
"""Kinds of a probe's requests that don't take part in every fit: the run's own text, and several at the same time."""

NEW_TOKENS_TERMS = ("once", "uncached", "pairs", "cached")
"""a + b·u + q·u·(c + u/2) + r·c: `pairs` are the pairs of a new token and a token before it.

The last term is what reading the cached tokens costs however few are new; it is 0 where the samples don't show it.
"""


@dataclass(frozen=True, slots=True)
class CallPoint:
    """One call. Tokens are None where nobody tells; rows as the ledger names them, nanoseconds, None = not measured.

    group: calls that repeat one another. meant_cached_tokens: what the probe had sent just before, about.
    decoded_tokens: what the decode time brought, 0 where it can't be split. steps, drafted_tokens: of that time.
    others: how many other calls decoded at the same time, on average.
    """

    group: str
    call: CallFrame
    kind: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    meant_cached_tokens: int | None
    output_tokens: int | None
    decoded_tokens: int
    steps: float
    drafted_tokens: float | None
    others: float
    rows: Mapping[str, int | None]

    @property
    def is_unsplit(self) -> bool:
        """Whether its generation can't be split at the first token."""
        return self.call.is_unsplit


@dataclass(frozen=True, slots=True)
class CallSize:
    """What a call's times depend on. steps, drafted_tokens: of its decoding."""

    uncached_tokens: float
    cached_tokens: float
    output_tokens: float
    decoded_tokens: float
    steps: float
    drafted_tokens: float
    others: float

    @property
    def prompt_tokens(self) -> float:
        """New and cached ones together."""
        return self.uncached_tokens + self.cached_tokens

    @property
    def context_tokens(self) -> float:
        """Tokens before the one that is decoded, in the middle of the decoding."""
        return self.prompt_tokens + self.output_tokens / 2

    def terms(self) -> dict[str, float]:
        """The size of every term that a fit may have."""
        new, cached = self.uncached_tokens, self.cached_tokens
        return {
            "once": 1.0,
            "uncached": new,
            "pairs": new * (cached + new / 2),
            "cached": cached,
            "prompt": new + cached,
            "step": self.steps,
            "step_context": self.steps * self.context_tokens,
            "drafted": self.drafted_tokens,
            "step_others": self.steps * self.others,
        }


def call_points(sessions: Sequence[SessionFrame]) -> list[CallPoint]:
    """The finished calls of completed sessions, warm-ups left out; warm-ups count among what ran at the same time."""
    decoding = Concurrency(
        interval for session in sessions for call in session.calls if (interval := decode_interval(call)) is not None
    )
    return [
        _point(session, times, decoding)
        for session in sessions
        if is_counted(session)
        for times in call_times(session)
        if times.kind != "failed"
    ]


def is_counted(session: SessionFrame) -> bool:
    """Whether a session's figures are used: no warm-up, and completed (or imported, without an outcome)."""
    return not session.is_warmup and session.outcome in {None, "completed"}


def _point(session: SessionFrame, times: CallTimes, decoding: Concurrency) -> CallPoint:
    root, call = session.tree.root, times.call
    meant_prompt, meant_cached = (
        attributes.size(root, name) for name in (semconv.PROBE_PROMPT_TOKENS, semconv.PROBE_SHARED_TOKENS)
    )
    prompt = meant_prompt if call.prompt_tokens is None else call.prompt_tokens
    if meant_cached and meant_prompt and prompt:
        meant_cached = round(meant_cached * prompt / meant_prompt)  # as this tokeniser counts
    interval = decode_interval(call)
    steps, drafted = decode_work(times)
    return CallPoint(
        group=f"{session.scenario}, step {call.step}",
        call=call,
        kind=attributes.text(root, semconv.PROBE_KIND),
        prompt_tokens=prompt,
        cached_tokens=call.cached_tokens,
        meant_cached_tokens=meant_cached,
        output_tokens=call.output_tokens,
        decoded_tokens=times.decoded_tokens,
        steps=steps,
        drafted_tokens=drafted,
        others=0.0 if interval is None else decoding.others(*interval),
        rows=call_rows(times),
    )


def decode_work(times: CallTimes) -> tuple[float, float | None]:
    """Decoding steps and drafted tokens of the decode time; drafted is None where the server reports none.

    Steps are as reported, else tokens less accepted drafts; where the server reports neither, each token is one. The
    report is of all tokens but the first, which the prefill yields: of it as much counts as arrived after the first
    read.
    """
    server, all_after_first = times.call.server, times.tokens - 1
    if all_after_first < 1:
        return 0.0, server.draft_tokens
    steps = server.decode_steps or all_after_first - (server.accepted_draft_tokens or 0)
    share = min(1.0, times.decoded_tokens / all_after_first)
    drafted = None if server.draft_tokens is None else server.draft_tokens * share
    return min(max(1, steps), all_after_first) * share, drafted


def call_rows(times: CallTimes) -> dict[str, int | None]:
    """The time of one call by ledger row, whatever ran beside it; None for rows that it doesn't measure."""
    spent = {"generation": times.generation_ns, "tail": times.tail_ns}
    if times.kind == "split":
        parts = wait_parts(times)
        spent |= {**parts, "first_token_wait": parts["rest"], "decode": times.decode_ns}
    else:
        spent["network"] = times.send_ns
    spent["connect"] = times.pool_wait_ns + times.connect_ns
    return {row: spent.get(row, 0) if row in times.call.rows else None for row in MODEL_ROWS}


def decode_interval(call: CallFrame) -> tuple[int, int] | None:
    """First token event to last, on the clock of the spans; None without a decode time above zero."""
    if not call.decode_ns:
        return None
    last_ns = call.end_ns - (call.tail_ns or 0)
    return last_ns - call.decode_ns, last_ns


class Concurrency:
    """How many intervals hold at each instant."""

    def __init__(self, intervals: Iterable[tuple[int, int]]) -> None:
        edges = sorted(edge for start, end in intervals for edge in ((start, 1), (end, -1)))
        self._at = [at for at, _ in edges]
        self._running = list(accumulate(change for _, change in edges))
        lengths = [after - before for before, after in zip(self._at, self._at[1:], strict=False)]
        areas = (length * running for length, running in zip(lengths, self._running, strict=False))
        self._area = list(accumulate(areas, initial=0))

    def others(self, start_ns: int, end_ns: int) -> float:
        """How many other intervals held on average during one of them."""
        return max(0.0, (self._until(end_ns) - self._until(start_ns)) / (end_ns - start_ns) - 1.0)

    def _until(self, at_ns: int) -> int:
        """Sum of the lengths of all intervals, each up to an instant."""
        index = bisect_right(self._at, at_ns) - 1
        if index < 0:
            return 0
        return self._area[index] + self._running[index] * (at_ns - self._at[index])


def samples_of(points: Sequence[CallPoint], sizes: Sequence[CallSize], row: str) -> list[Sample]:
    """What the points say of one row; those that don't measure it say nothing."""
    return [
        Sample(point.group, size.terms(), float(ns))
        for point, size in zip(points, sizes, strict=True)
        if (ns := point.rows[row]) is not None
    ]
