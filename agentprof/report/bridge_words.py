"""A bridge in words: the sentence above it, the name of each row and what stands beside it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from agentprof.analysis.bridge import Bridge
from agentprof.analysis.bridge_splits import Row, parts_of
from agentprof.report.layout import count, ms, percent, rate

NAMES = {
    "first_token_waits": "first-token waits",
    "pool_wait": "pool wait",
    "more_of_them": "more of them",
    "each_one_longer": "each one longer",
    "step_time": "time per step",
    "recomputed_because_scripted": "recomputed because scripted",
    "benchmark_wait": "the benchmark's own wait",
    "queue": "queue",
    "prefill": "prefill of uncached tokens",
    "rest": "not split further",
    "count": "decoded tokens per token",
}
_IN_SENTENCE = {
    "first_token_waits": ("first-token waits", "take"),
    "decode": ("slower decoding", "takes"),
    "generation": ("waiting and decoding", "take"),
    "tail": ("stream tails", "take"),
    "pool_wait": ("waiting for the connection pool", "takes"),
    "retry": ("retries", "take"),
    "tool": ("tools", "take"),
    "agent": ("the agent's own work", "takes"),
    "think": ("recorded pauses", "take"),
    "unattributed": ("unattributed time", "takes"),
}
_COUNTERFACTUALS = {
    "tool": "tools at zero",
    "first_token_waits": "first-token waits as in the benchmark",
    "decode": "decoding as in the benchmark",
    "decode_halved": "decoding twice as fast",
    "generation": "generation as in the benchmark",
    "tail": "stream tails at zero",
    "retry": "retries at zero",
    "agent": "the agent's own work at zero",
    "think": "recorded pauses at zero",
}
_LEAST_SHARE = 0.005
_LEAST_GAIN = 0.01


def name_of(row: Row) -> str:
    """A row's name as it is printed; `each one longer` says shorter where it is."""
    if row.key == "each_one_longer" and row.ns < 0:
        return "each one shorter"
    return NAMES.get(row.key, row.key.replace("_", " "))


def sentence(bridge: Bridge) -> str:
    """The answer in plain words: both ends, and what takes most of what lies between them."""
    ends = f"The agent gets {rate(bridge.agent_tok_s)} tok/s where the benchmark gets {rate(bridge.benchmark_tok_s)}."
    if bridge.mismatch:
        ends = f"FORCED, of another backend: {ends[0].lower()}{ends[1:]}"
    if bridge.gap_ns <= 0:
        return f"{ends} It is no slower per token than the benchmark, so there is no gap to explain."
    largest = sorted((row for row in bridge.rows if row.ns > 0), key=lambda row: -row.ns)[:3]
    largest = [row for row in largest if (bridge.share(row) or 0) >= _LEAST_SHARE]
    parts = []
    for index, row in enumerate(largest):
        name, verb = _IN_SENTENCE.get(row.key, (name_of(row), "takes"))
        parts.append(f"{name} {verb + ' ' if index == 0 else ''}{percent(float(row.ns), float(bridge.gap_ns))}")
    gap = f"Of the {per_token(bridge.gap_ns)} ms per token between them, {', '.join(parts)}."
    saved_ns = -sum(float(row.ns) for row in bridge.rows if row.ns < 0)
    saved = percent(saved_ns, float(bridge.gap_ns))
    return f"{ends} {gap}" + (f" {saved} is won back elsewhere." if saved_ns / float(bridge.gap_ns) >= 0.05 else "")


def per_token(ns: Fraction) -> str:
    """Nanoseconds per token as milliseconds, to a hundredth below 1 s; what isn't 0 never prints as 0."""
    value = float(ns) / 1e6
    if 0 < abs(value) < 0.005:
        return "<0.01" if value > 0 else "−<0.01"
    text = f"{abs(value):.2f}" if abs(value) < 1000 else f"{abs(value):,.0f}"
    return f"−{text}" if value < 0 else text


def share_of(bridge: Bridge, row: Row) -> str:
    """A row's share of the gap; empty where there is none to share."""
    share = bridge.share(row)
    if share is None or bridge.gap_ns <= 0 or not row.ns:
        return ""
    return f"−{percent(-share, 1)}" if share < 0 else percent(share, 1)


def note_of(bridge: Bridge, row: Row) -> str:
    """What stands beside a row: how many, how much longer, made of what; empty where there is nothing to say."""
    totals = bridge.totals
    match row.key:
        case "first_token_waits":
            return _wait_note(bridge)
        case "decode":
            return ", ".join(_decode_notes(bridge, row))
        case "generation":
            return _generation_note(bridge)
        case "tool":
            shown = [tool for tool, ns in totals.tools_ns.items() if ns][:3]
            return ", ".join(f"{tool} {percent(totals.tools_ns[tool], totals.ledger_ns['tool'])}" for tool in shown)
        case "retry":
            return f"{totals.failed_calls} calls failed for good" if totals.failed_calls else ""
        case "overlap":
            return "saved by calls that ran at once"
        case "each_one_longer":
            mean_ns = totals.wait_ns / totals.split_calls if totals.split_calls else None
            return f"{ms(mean_ns)} ms on average, the benchmark's {ms(bridge.benchmark.ttft_ns.number)} ms"
        case "more_of_them" if totals.split_calls:
            return (
                f"{totals.split_tokens / totals.split_calls:,.0f} tokens each, {_length(bridge):,.0f} in the benchmark"
            )
        case "speed" if row.why_whole:
            return row.why_whole
    return "estimated" if row.is_estimated else ""


def _length(bridge: Bridge) -> float:
    return bridge.benchmark.output_length.number or 0.0


def _wait_note(bridge: Bridge) -> str:
    totals, ttft = bridge.totals, bridge.benchmark.ttft_ns.number
    if not totals.split_calls or ttft is None:
        return ""
    more = f"{totals.split_calls} calls, not {totals.split_tokens / _length(bridge):.1f}"
    longer_ns = totals.wait_ns / totals.split_calls - ttft
    return f"{more}; each {ms(abs(longer_ns))} ms {'longer' if longer_ns >= 0 else 'shorter'}"


def _decode_notes(bridge: Bridge, row: Row) -> Iterator[str]:
    totals, tpot = bridge.totals, bridge.benchmark.tpot_ns.number
    if totals.decode_ns and totals.decoded_tokens and tpot:
        yield f"TPOT {tpot / 1e6:.2f} → {totals.decode_ns / totals.decoded_tokens / 1e6:.2f} ms"
    if totals.prompt_tokens is not None:
        yield f"prompts of {count(totals.prompt_tokens)} tokens"
    theirs, ours = bridge.benchmark.acceptance_length.number, float(bridge.acceptance or 0)
    if theirs and ours and not theirs == ours == 1:
        yield f"{theirs:.2f} → {ours:.2f} tokens per step"
    speed = parts_of(row).get("speed")
    if speed and speed.why_whole:
        yield f"acceptance {speed.why_whole}"


def _generation_note(bridge: Bridge) -> str:
    totals = bridge.totals
    if not bridge.is_split:
        return "waits and decoding together: the benchmark doesn't tell them apart"
    return f"{totals.unsplit_calls} of {totals.calls} calls, not split" if totals.unsplit_calls else ""


def shown_rows(bridge: Bridge) -> list[Row]:
    """Rows that took or saved time, and always `unattributed`."""
    return [row for row in bridge.rows if row.ns or row.key == "unattributed"]


def counterfactual_words(bridge: Bridge, most: int = 6) -> list[str]:
    """`tools at zero → 91 tok/s` for those that change the rate by 1 % or more, the largest first."""
    least = bridge.agent_tok_s * (1 + _LEAST_GAIN)
    shown = [one for one in bridge.counterfactuals if one.tok_s >= least][:most]
    return [f"{_COUNTERFACTUALS[one.key]} → {rate(one.tok_s)} tok/s" for one in shown]


def subtitle(bridge: Bridge) -> str:
    """What was compared with what."""
    names = ", ".join(bridge.scenarios)
    where = f" on {bridge.backend}" if bridge.backend else ""
    many = f"{bridge.sessions} session" + ("" if bridge.sessions == 1 else "s")
    return f"{names}{where}: {many}, {count(bridge.totals.tokens)} tokens; benchmark: {bridge.benchmark.source}"


COUNTERFACTUAL_RULE = "Each alone, the critical path recomputed: they don't add up."
