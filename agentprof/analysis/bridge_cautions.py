"""What to know before trusting a bridge: short sentences, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from agentprof.analysis.bench import backend_facts
from agentprof.analysis.bridge_match import is_verified
from agentprof.analysis.call_times import CallTimes
from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.rates import busy_time
from agentprof.records.benchmark import TTFT_DEFINITION, Benchmark

RATE_TOLERANCE = 0.05
HIT_RATE_LIMIT = 0.05


def bridge_cautions(
    benchmark: Benchmark,
    sessions: Sequence[SessionFrame],
    calls: Sequence[CallTimes],
    measured: int,
    differences: Sequence[str],
    run: Mapping[str, Any],
) -> Iterator[str]:
    """The cautions of a bridge over completed sessions, out of `measured` ones, and their calls."""
    if differences:
        yield f"FORCED: the benchmark is of another backend than the run's: {'; '.join(differences)}."
    if not benchmark.is_split:
        yield (
            "The benchmark doesn't know TTFT and time per token apart, so waiting and decoding are one row, "
            f"generation: its price is {_price_basis(benchmark)}."
        )
    yield from _on_the_match(benchmark, sessions, run)
    yield from _on_the_benchmark(benchmark)
    yield from _on_acceptance(benchmark, sessions, calls)
    if len(sessions) < measured:
        verb = "is" if measured - len(sessions) == 1 else "are"
        yield f"{measured - len(sessions)} of {measured} sessions didn't complete and {verb} left out."
    yield from _on_the_calls(calls)
    yield from benchmark.cautions


def _price_basis(benchmark: Benchmark) -> str:
    if benchmark.output_length.value and benchmark.request_latency_ns.value:
        return "a request's whole time / its tokens"
    if benchmark.concurrency.value is None:
        return "1 / throughput, taken to be one user's since its concurrency isn't known"
    return "concurrency / throughput"


def _on_the_match(benchmark: Benchmark, sessions: Sequence[SessionFrame], run: Mapping[str, Any]) -> Iterator[str]:
    about = backend_facts(run, sessions[0].backend)
    if not is_verified(benchmark, about):
        known = "by the model's name alone" if benchmark.model else "by nothing: the benchmark doesn't name its model"
        yield (
            f"That the benchmark is of the run's backend was checked {known}; measure one with `agentprof bench` to "
            "have fingerprints compared."
        )
    elif _is_elsewhere(benchmark, sessions[0].backend, about.get("base_url")):
        yield (
            f"The benchmark was taken at {benchmark.address} and the run at {about['base_url']}: what lies between "
            "them, such as a gateway, is in the rows."
        )
    if benchmark.is_split and benchmark.ttft_definition != TTFT_DEFINITION:
        yield (
            f"TTFT isn't the same thing on both sides: {benchmark.tool} takes the {benchmark.ttft_definition}; "
            f"agentprof the {TTFT_DEFINITION}."
        )
    _, peak = busy_time((session.start_ns, session.start_ns + session.wall_ns) for session in sessions)
    at_once = benchmark.concurrency.value
    if at_once is None:
        yield f"The benchmark doesn't say how many requests ran at once; in the run it was {peak}."
    elif round(at_once) != peak:
        yield (
            f"Concurrency differs: {float(at_once):.3g} at once in the benchmark, {peak} in the run; batching changes "
            "both waits and decoding."
        )


def _is_elsewhere(benchmark: Benchmark, backend: str | None, address: object) -> bool:
    """Whether the address may be another route: an engine that is started anew has a new port, but its old name."""
    if not benchmark.address or not isinstance(address, str) or benchmark.address == address:
        return False
    return benchmark.backend != backend or urlsplit(benchmark.address).hostname != urlsplit(address).hostname


def _on_the_benchmark(benchmark: Benchmark) -> Iterator[str]:
    hit_rate = benchmark.hit_rate.value
    if hit_rate is None:
        seed = "" if benchmark.seed.value is None else f" (seed {int(benchmark.seed.value)})"
        yield (
            f"The benchmark's cache state isn't known{seed}: it may have met its own prompts before, which shortens "
            "TTFT."
        )
    elif hit_rate > HIT_RATE_LIMIT and benchmark.tool != "agentprof bench":
        share = f"{100 * float(hit_rate):.0f} %"
        yield f"{share} of the benchmark's prompt tokens came from the cache, which shortens TTFT."
    contradiction = rates_apart(benchmark)
    if contradiction is not None:
        yield contradiction
    estimated = [name for name in ("ttft_ns", "tpot_ns") if getattr(benchmark, name).provenance == "estimated"]
    if estimated:
        names = " and ".join(name.removesuffix("_ns").upper() for name in estimated)
        basis = "; ".join(str(getattr(benchmark, name).how) for name in estimated)
        yield f"{names} of the benchmark {'is' if len(estimated) == 1 else 'are'} estimated: {basis}."


def rates_apart(benchmark: Benchmark) -> str | None:
    """How far the rate of one request and the throughput of one at a time are apart; None where they aren't."""
    rate, throughput, at_once = benchmark.call_tok_s, benchmark.throughput_tok_s.number, benchmark.concurrency.value
    if not (benchmark.is_split and rate and throughput and at_once and round(at_once) == 1):
        return None
    if abs(rate / throughput - 1) <= RATE_TOLERANCE:
        return None
    return (
        f"TTFT and TPOT of the benchmark give {rate:.4g} tok/s, its throughput is {throughput:.4g}: time between its "
        "requests, means of unequal requests, or a wrong unit."
    )


def _on_acceptance(benchmark: Benchmark, sessions: Sequence[SessionFrame], calls: Sequence[CallTimes]) -> Iterator[str]:
    has_drafts = any(times.call.server.draft_tokens for times in calls)
    is_forced = has_drafts and any(session.length == "forced" for session in sessions)
    length = benchmark.acceptance_length.value
    if has_drafts and length is None and benchmark.fingerprint is not None:
        yield (
            "The run's server drafts tokens and the benchmark's reports no drafting: is the benchmark of another "
            "configuration? Labels in the backends file tell configurations apart."
        )
    has_benchmark = benchmark.acceptance_rate.value is not None or (length is not None and length != 1)
    theirs = _unnatural(benchmark) if has_benchmark else None
    if theirs and is_forced:
        sides = f"on both sides: the benchmark's text is {theirs}, the run's is forced in length"
    elif theirs:
        sides = f"in the benchmark, whose text is {theirs}"
    elif is_forced:
        sides = "in the run, whose text is forced in length"
    else:
        return
    yield f"Acceptance isn't representative {sides}."


def _unnatural(benchmark: Benchmark) -> str | None:
    """What makes a benchmark's text unlike real text; None where nothing does."""
    if benchmark.prompts is None and benchmark.is_length_forced is None:
        return "usually random and forced in length"
    causes = ["random"] if benchmark.prompts == "random" else []
    causes += ["forced in length"] if benchmark.is_length_forced else []
    return " and ".join(causes) or None


def _on_the_calls(calls: Sequence[CallTimes]) -> Iterator[str]:
    counts = {kind: sum(times.kind == kind for times in calls) for kind in ("failed", "unsplit", "bare")}
    if counts["failed"]:
        yield f"{counts['failed']} of {len(calls)} calls failed: their time is in retry, their tokens in nothing."
    if counts["unsplit"]:
        yield (
            f"{counts['unsplit']} of {len(calls)} calls couldn't be split at their first token: they are in "
            "generation. Look for a proxy that buffers, or a tool parser that withholds."
        )
    if counts["bare"]:
        yield f"{counts['bare']} of {len(calls)} calls have no phases in this trace: their time is unattributed."
    silent = [times for times in calls if times.kind != "failed" and times.call.output_tokens is None]
    if silent:
        yield f"{len(silent)} of {len(calls)} calls reported no output tokens: time per token is an upper bound."
    if any(times.kind != "failed" and times.call.is_estimated for times in calls):
        yield "Tokens of some calls were counted from their streams, so decode speed and count are estimated."
