"""A benchmark out of the spans of a `bench` run: one session for each request, without an agent (docs/bridge.md)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from agentprof.analysis.call_times import CallTimes, call_times, tokens_per_step, wait_parts
from agentprof.analysis.calls import SHORT_OF_FORCED_LENGTH
from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.rates import busy_time
from agentprof.errors import InputError
from agentprof.records.benchmark import (
    ABSENT,
    TTFT_DEFINITION,
    Benchmark,
    Figure,
    Spread,
    derived,
    estimated,
    first_known,
    measured,
)

TEMPLATE_TOKENS, TEMPLATE_SHARE = 16, 0.05


def benchmark_of_run(
    facts: Mapping[str, Any],
    sessions: Sequence[SessionFrame],
    *,
    backend: str | None = None,
    group: str | None = None,
) -> Benchmark:
    """The benchmark that a run of requests measured, warm-ups and failed requests left out.

    facts: the run's run.json. backend, group: which of several; a group is what ran under one concurrency. Raises
    InputError when no request completed, when requests brought no tokens, or when there are several backends or groups
    and none is named.
    """
    source = str(facts.get("folder") or facts.get("name") or "this run")
    measured_ones = [session for session in sessions if not session.is_warmup]
    name = _only(source, "backend", [session.backend for session in measured_ones], backend)
    of_backend = [session for session in measured_ones if session.backend == name]
    group = _group(source, [session.scenario for session in of_backend], group)
    used = [session for session in of_backend if session.scenario == group]
    whole = [session for session in used if session.outcome in {None, "completed"}]
    every = [times for session in whole for times in call_times(session)]
    calls = [times for times in every if times.kind != "failed"]
    tokens = sum(times.tokens for times in calls)
    if not calls or not tokens:
        problem = "no request completed" if not calls else "its requests brought no tokens"
        raise InputError(f"{source}: {problem}, so there is no benchmark in it.")
    split = [times for times in calls if times.kind == "split"]
    about = backend_facts(facts, name)
    labels, fingerprint = about.get("labels"), about.get("fingerprint")
    return Benchmark(
        source=source,
        tool="agentprof bench",
        ttft_definition=TTFT_DEFINITION,
        output_length=_figure(Fraction(tokens, len(calls)), "mean over requests", calls),
        ttft_ns=_ttft(calls, split),
        tpot_ns=_tpot(calls, split),
        request_latency_ns=measured(Fraction(sum(_latency_ns(times) for times in calls), len(calls)), "mean"),
        throughput_tok_s=_throughput(whole, tokens),
        concurrency=_concurrency(facts, group, whole),
        completed=measured(len(calls), "requests"),
        failed=measured(len(used) - len(whole) + len(every) - len(calls), "requests"),
        input_tokens=measured(_sum([times.call.prompt_tokens for times in calls]), "usage"),
        output_tokens=_figure(Fraction(tokens), "usage", calls),
        tool_version=_text(facts.get("agentprof_version")),
        backend=name,
        model=_text(about.get("model")) or next((times.call.model for times in calls), None),
        address=_text(about.get("base_url")),
        fingerprint=fingerprint if isinstance(fingerprint, Mapping) else None,
        prompts=_text(_below(_below(facts, "scenarios"), group).get("prompts")),
        is_length_forced=all(session.length == "forced" for session in whole),
        labels=labels if isinstance(labels, Mapping) else {},
        wait_parts_ns=_wait_parts(split) if len(split) == len(calls) else {},
        spreads=_spreads(calls, split),
        seed=measured(_whole(_below(facts, "options").get("seed")), "seed"),
        cautions=tuple(_cautions(source, whole, calls, len(used) - len(whole))),
        **_drafts_and_cache(calls, split),
    )


def _only(source: str, kind: str, names: Sequence[str | None], named: str | None) -> str | None:
    """The name that was given, else the only one there is."""
    found = list(dict.fromkeys(names))
    if named is None and len(found) > 1:
        listed = ", ".join(str(name) for name in found)
        raise InputError(f"{source}: holds benchmarks of several {kind}s: {listed}. Name one {kind}.")
    return named if named is not None or not found else found[0]


def _group(source: str, names: Sequence[str | None], named: str | None) -> str | None:
    """The group that was given, else the only one there is."""
    found = list(dict.fromkeys(names))
    listed = ", ".join(f"{source}#{name}" for name in found)
    if named is None and len(found) > 1:
        raise InputError(f"{source}: holds benchmarks of several groups. Name one: {listed}.")
    if named is not None and found and named not in found:
        raise InputError(f"{source}: holds no group {named}. Name one: {listed}.")
    return named if named is not None or not found else found[0]


def backend_facts(facts: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    """What run.json says of a backend: model, labels, fingerprint, base_url; empty where it says nothing."""
    return _below(_below(facts, "backends"), name)


def _below(facts: Mapping[str, Any], key: str | None) -> Mapping[str, Any]:
    inner = facts.get(key) if key is not None else None
    return inner if isinstance(inner, Mapping) else {}


def _figure(value: Fraction | None, how: str, calls: Sequence[CallTimes]) -> Figure:
    """Measured; estimated where any call's tokens were counted from its stream."""
    is_counted = any(times.call.is_estimated for times in calls)
    return estimated(value, f"{how}, tokens counted from the stream") if is_counted else measured(value, how)


def _ttft(calls: Sequence[CallTimes], split: Sequence[CallTimes]) -> Figure:
    """Mean first-token wait; absent unless every request could be split."""
    if len(split) < len(calls):
        return ABSENT
    return measured(Fraction(sum(times.wait_ns for times in split), len(split)), "mean over requests")


def _tpot(calls: Sequence[CallTimes], split: Sequence[CallTimes]) -> Figure:
    """Σ decode time / Σ tokens after the first read; absent unless every request could be split."""
    decoded = sum(times.decoded_tokens for times in split)
    if len(split) < len(calls) or not decoded:
        return ABSENT
    return _figure(Fraction(sum(times.decode_ns for times in split), decoded), "Σ decode time / Σ(n − n₁)", calls)


def _latency_ns(times: CallTimes) -> int:
    """A request from the start of its attempt to its last token."""
    return times.wait_ns + times.split_decode_ns + times.unsplit_ns


def _throughput(sessions: Sequence[SessionFrame], tokens: int) -> Figure:
    """Tokens of all requests per second during which at least one ran."""
    busy_ns, _ = busy_time((session.start_ns, session.start_ns + session.wall_ns) for session in sessions)
    return derived(Fraction(tokens * 10**9, busy_ns) if busy_ns else None, "tokens / time with a request running")


def _concurrency(facts: Mapping[str, Any], group: str | None, sessions: Sequence[SessionFrame]) -> Figure:
    """As the group was run, else as the run was; without either, the most requests that ran at once."""
    _, peak = busy_time((session.start_ns, session.start_ns + session.wall_ns) for session in sessions)
    of_group = _whole(_below(_below(facts, "scenarios"), group).get("concurrency"))
    of_run = _whole(_below(facts, "options").get("concurrency"))
    return first_known(
        measured(of_group, "concurrency"),
        measured(of_run, "concurrency"),
        derived(peak or None, "most requests at once"),
    )


def _drafts_and_cache(calls: Sequence[CallTimes], split: Sequence[CallTimes]) -> dict[str, Figure]:
    """Acceptance over the requests that report drafts, and cached tokens over those that report both counts."""
    per_step = tokens_per_step(split)
    servers = [times.call.server for times in calls if times.call.server.draft_tokens]
    drafted = sum(server.draft_tokens or 0 for server in servers)
    accepted = sum(server.accepted_draft_tokens or 0 for server in servers)
    known = [
        (times.call.cached_tokens, times.call.prompt_tokens)
        for times in calls
        if times.call.cached_tokens is not None and times.call.prompt_tokens
    ]
    cached, prompt = sum(cached for cached, _ in known), sum(prompt for _, prompt in known)
    return {
        "acceptance_length": derived(Fraction(*per_step) if per_step else None, "Σ tokens / Σ decoding steps"),
        "acceptance_rate": derived(Fraction(accepted, drafted) if drafted else None, "Σ accepted / Σ drafted"),
        "cached_tokens": measured(cached if known else None, "usage"),
        "hit_rate": derived(Fraction(cached, prompt) if known else None, "Σ cached / Σ prompt tokens"),
    }


def _wait_parts(split: Sequence[CallTimes]) -> dict[str, Fraction]:
    """Means over requests of the parts that every request reports."""
    sums: defaultdict[str, int] = defaultdict(int)
    seen: defaultdict[str, int] = defaultdict(int)
    for times in split:
        for part, ns in wait_parts(times).items():
            sums[part] += ns
            seen[part] += 1
    return {part: Fraction(ns, len(split)) for part, ns in sums.items() if seen[part] == len(split)}


def _spreads(calls: Sequence[CallTimes], split: Sequence[CallTimes]) -> dict[str, Spread]:
    values: dict[str, list[float]] = {
        "ttft": [times.wait_ns / 1e6 for times in split],
        "tpot": [times.decode_ns / times.decoded_tokens / 1e6 for times in split if times.decoded_tokens],
        "decode": [times.decoded_tokens * 1e9 / times.decode_ns for times in split if times.decode_ns],
        "call": [times.tokens * 1e9 / ns for times in calls if (ns := times.call.wall_ns)],
    }
    return {name: spread(found) for name, found in values.items() if found}


def spread(values: Sequence[float]) -> Spread:
    """Mean, sample standard deviation, extremes and median of at least one value."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(len(values), statistics.fmean(values), std, min(values), statistics.median(values), max(values))


def _cautions(source: str, sessions: Sequence[SessionFrame], calls: Sequence[CallTimes], failed: int) -> Iterator[str]:
    if failed:
        yield f"{source}: {failed} of {failed + len(sessions)} requests failed and are left out."
    unsplit = sum(times.kind != "split" for times in calls)
    if unsplit:
        yield (
            f"{source}: {unsplit} of {len(calls)} requests arrived buffered or without token events, so waits and "
            "decoding can't be parted. Look for a proxy that buffers."
        )
    short = [times for times in calls if SHORT_OF_FORCED_LENGTH in times.call.flags]
    if short:
        yield (
            f"{source}: {len(short)} of {len(calls)} requests ended short of the forced length; see whether the "
            "server honours ignore_eos."
        )
    cached, prompt = _sum([t.call.cached_tokens for t in calls]), _sum([t.call.prompt_tokens for t in calls])
    if cached and prompt and cached > max(TEMPLATE_TOKENS * len(calls), TEMPLATE_SHARE * prompt):
        yield (
            f"{source}: {100 * cached / prompt:.0f} % of the benchmark's prompt tokens came from the cache, so its "
            "TTFT isn't that of a cold cache: give it another --seed, or restart the server."
        )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
