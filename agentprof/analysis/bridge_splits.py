"""The rows of a bridge that can be opened: first-token waits and decode, down to what the server reports.

Parts add up to their row exactly. Logarithms aren't exact, so of two parts the second is what the first leaves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from agentprof import semconv
from agentprof.analysis.call_times import CallTimes, tokens_per_step, wait_parts
from agentprof.analysis.calls import CallFrame
from agentprof.analysis.frames import SessionFrame
from agentprof.records.benchmark import Benchmark

CACHE_BLOCK_TOKENS = 128
"""The largest cache block taken into account: a prompt counts as still cached if at most so much of it is missing."""

_PARTS = ("connect", "network", "gateway", "queue", "prefill", "rest")


@dataclass(frozen=True, slots=True)
class Row:
    """One row: nanoseconds per output token, and the parts it can be opened into, which add up to it.

    is_estimated: rests on an assumption that docs/bridge.md names. why_whole: why it has no parts, where a reader
    would expect some.
    """

    key: str
    ns: Fraction
    parts: tuple[Row, ...] = ()
    is_estimated: bool = False
    why_whole: str | None = None


def wait_row(tokens: int, benchmark: Benchmark, sessions: Sequence[SessionFrame], calls: Sequence[CallTimes]) -> Row:
    """First-token waits: more of them, and each one longer or shorter than the benchmark's."""
    ttft, length = _known(benchmark.ttft_ns.value), _known(benchmark.output_length.value)
    split = [times for times in calls if times.kind == "split"]
    share = Fraction(sum(times.tokens for times in split), tokens)
    wait_ns = sum(times.wait_ns for times in split)
    more = Row("more_of_them", ttft * (Fraction(len(split), tokens) - share / length))
    longer_ns = (wait_ns - len(split) * ttft) / tokens
    longer = Row("each_one_longer", longer_ns, _longer_parts(tokens, benchmark, sessions, split) if split else ())
    return Row("first_token_waits", Fraction(wait_ns, tokens) - share * ttft / length, (more, longer))


def _longer_parts(
    tokens: int, benchmark: Benchmark, sessions: Sequence[SessionFrame], split: Sequence[CallTimes]
) -> tuple[Row, ...]:
    """What first-token waits are made of, less the same of the benchmark.

    A benchmark that doesn't know its parts stands as one negative row, `benchmark_wait`.
    """
    own = _sums(split)
    recomputed_ns = _recomputed_ns(sessions, split)
    theirs = benchmark.wait_parts_ns
    shown = [part for part in _PARTS if part in own and (not theirs or part in theirs or part == "rest")]
    spent = {part: Fraction(own[part]) for part in shown}
    spent["rest"] = sum(own.values()) - sum((ns for part, ns in spent.items() if part != "rest"), Fraction(0))
    base = {part: theirs[part] for part in shown if part in theirs and part != "rest"}
    ttft = _known(benchmark.ttft_ns.value)
    rows = []
    for part in shown:
        if part == "rest":
            continue
        ns = spent[part] - len(split) * base.get(part, Fraction(0))
        if part == "prefill" and recomputed_ns is not None:
            rows.append(Row("recomputed_because_scripted", Fraction(recomputed_ns, tokens), is_estimated=True))
            ns -= recomputed_ns
        rows.append(Row(part, ns / tokens))
    if theirs:
        rest = ttft - sum(base.values(), Fraction(0))
        rows.append(Row("rest", (spent["rest"] - len(split) * rest) / tokens))
    else:
        rows += [Row("rest", spent["rest"] / tokens), Row("benchmark_wait", -len(split) * ttft / tokens)]
    return tuple(rows)


def _sums(split: Sequence[CallTimes]) -> dict[str, int]:
    sums: defaultdict[str, int] = defaultdict(int)
    for times in split:
        for part, ns in wait_parts(times).items():
            sums[part] += ns
    return sums


def _recomputed_ns(sessions: Sequence[SessionFrame], split: Sequence[CallTimes]) -> int | None:
    """Prefill time of assistant turns that a recorded history made the server process again.

    None where it can't be known: no session is scripted with recorded history, or no call reports prefill time, prompt
    and cached tokens.
    """
    times_of = {times.call.ref: times for times in split}
    found: list[int] = []
    for session in sessions:
        if session.mode != "scripted" or session.history != "recorded":
            continue
        for before, call in _consecutive(session):
            times = times_of.get(call.ref)
            tokens = _recomputed_tokens(before, call)
            prefill_ns = wait_parts(times).get("prefill") if times else None
            uncached = (call.prompt_tokens or 0) - (call.cached_tokens or 0)
            if tokens is not None and prefill_ns is not None and uncached > 0:
                found.append(prefill_ns * min(tokens, uncached) // uncached)
    return sum(found) if found else None


def _consecutive(session: SessionFrame) -> Sequence[tuple[CallFrame, CallFrame]]:
    """Each call that didn't fail with the one before it in the same conversation."""
    chats = {span.ref: span for span in session.tree.all(semconv.CHAT)}
    conversations: defaultdict[int, list[CallFrame]] = defaultdict(list)
    for call in session.finished_calls:
        agent = session.tree.nearest(chats[call.ref], semconv.INVOKE_AGENT)
        conversations[agent.ref.span_id if agent else 0].append(call)
    return [pair for calls in conversations.values() for pair in pairwise(calls)]


def _recomputed_tokens(before: CallFrame, call: CallFrame) -> int | None:
    """Tokens of the assistant turn between two calls that weren't in the cache.

    The turn's length is taken to be what the server wrote, at most by how much the prompt grew. None without counts, or
    where the cache had lost more of the earlier prompt than a block.
    """
    counts = (before.prompt_tokens, before.output_tokens, call.prompt_tokens, call.cached_tokens)
    earlier, written, prompt, cached = counts
    if earlier is None or written is None or prompt is None or cached is None:
        return None
    if prompt < earlier or cached < earlier - CACHE_BLOCK_TOKENS:
        return None
    return max(0, min(written, prompt - earlier) - max(0, cached - earlier))


def decode_row(tokens: int, benchmark: Benchmark, calls: Sequence[CallTimes]) -> Row:
    """Decode: the same tokens at another speed, and fewer or more decoded tokens for each output token."""
    tpot, length = _known(benchmark.tpot_ns.value), _known(benchmark.output_length.value)
    split = [times for times in calls if times.kind == "split"]
    share = Fraction(sum(times.tokens for times in split), tokens)
    decode_ns = sum(times.split_decode_ns for times in split)
    decoded = sum(times.decoded_tokens for times in split)
    base = share * (length - 1) / length
    count = Row("count", tpot * (Fraction(decoded, tokens) - base))
    speed_ns = (decode_ns - decoded * tpot) / tokens
    parts, why = _speed_parts(speed_ns, Fraction(decoded, tokens), benchmark, split)
    speed = Row("speed", speed_ns, parts, why_whole=why)
    return Row("decode", Fraction(decode_ns, tokens) - tpot * base, (speed, count))


def _speed_parts(
    speed_ns: Fraction, decoded_share: Fraction, benchmark: Benchmark, split: Sequence[CallTimes]
) -> tuple[tuple[Row, ...], str | None]:
    """Acceptance and time per decoding step, weighted by the logarithmic mean of both TPOTs; else why not."""
    per_step = tokens_per_step(split)
    accepted_b, tpot_b = benchmark.acceptance_length.value, benchmark.tpot_ns.value
    has_drafts = any(times.call.server.draft_tokens for times in split)
    if per_step is None and accepted_b is None and not has_drafts:
        return (), None
    if per_step is None:
        return (), "not split: some calls don't report decoding steps"
    if not accepted_b:
        return (), "not split: the benchmark reports no acceptance"
    decode_ns = sum(times.split_decode_ns for times in split)
    decoded = sum(times.decoded_tokens for times in split)
    accepted = Fraction(*per_step)
    if accepted == accepted_b == 1 or not decode_ns or not decoded or not tpot_b:
        return (), None
    log_mean = _log_mean(Fraction(decode_ns, decoded), tpot_b)
    acceptance = Fraction(-log_mean * math.log(accepted / accepted_b)) * decoded_share
    return (Row("acceptance", acceptance), Row("step_time", speed_ns - acceptance)), None


def _log_mean(one: Fraction, other: Fraction) -> float:
    """(a − b) / (ln a − ln b); a where they are equal. Both above 0."""
    if one == other:
        return float(one)
    ratio = math.log(one / other)
    # Near 1 the quotient loses its digits; there the arithmetic mean is the limit.
    return float(one - other) / ratio if abs(ratio) > 1e-6 else float(one + other) / 2


def acceptance_of(calls: Sequence[CallTimes]) -> Fraction | None:
    """Output tokens per decoding step over split calls; None unless each that decoded tells its steps."""
    per_step = tokens_per_step([times for times in calls if times.kind == "split"])
    return Fraction(*per_step) if per_step else None


def parts_of(row: Row) -> Mapping[str, Row]:
    """A row's parts by key."""
    return {part.key: part for part in row.parts}


def _known(value: Fraction | None) -> Fraction:
    if value is None:
        raise ValueError("only a benchmark that is split has these rows")
    return value
