"""An explained run as plain text: what `agentprof explain` prints. Needs no colour; lines keep to a width."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentprof.report.calls_table import render_calls
from agentprof.report.groups import Group, group_sessions, mean_session
from agentprof.report.layout import MISSING, bar, count, duration, hang, ms, percent, rate, table, wrap
from agentprof.report.notes import missing_note, row_note

_IN_WORDS = {
    "connect": "connecting",
    "gateway": "the gateway",
    "queue": "queueing",
    "first_token_wait": "waiting for first tokens",
    "generation": "unsplit generation",
    "tail": "stream tails",
    "retry": "retries",
    "tool": "tools",
    "agent": "the agent's own work",
    "think": "recorded pauses",
    "unattributed": "unattributed time",
}
_PLURAL = frozenset({"tail", "retry", "tool", "think"})
_BAR_CELLS = 24


def render_run(explained: Mapping[str, Any], width: int = 100) -> str:
    """The whole report of a run, as `explain` of `agentprof.analysis` gives it.

    One measured session is shown with its calls; several as a line each, with the mean ledger of every scenario and
    backend. Warm-ups are left out of means and shown as cold start.
    """
    run, sessions = explained["run"], explained["sessions"]
    if not sessions:
        return "No session of this run has finished."
    groups = group_sessions(sessions)
    if sum(len(group.measured) for group in groups) == 1 or len(sessions) == 1:
        (group,) = (group for group in groups if group.measured or len(sessions) == 1)
        blocks = [render_session((group.measured or group.warmups)[0], _engine(run, group.backend), width)]
        blocks += [_cold_start(group, width) for group in groups]
    else:
        blocks = [_sessions_table(sessions, width)]
        blocks += [_group(group, _engine(run, group.backend), width) for group in groups]
        blocks += [_aggregate(run.get("aggregate", ()), width), _merged_cautions(sessions, width)]
    return "\n\n".join(block for block in blocks if block)


def render_session(session: Mapping[str, Any], engine: str | None = None, width: int = 100) -> str:
    """One session: a sentence, the ledger with bars, rates, calls and cautions. engine: names flags in the notes."""
    blocks = [
        "\n".join(wrap(_sentence(session), width)),
        _ledger(session, engine, width),
        _rates(session, session["calls"], width),
        render_calls(session["calls"], width),
        _cautions(session["cautions"], width),
    ]
    return "\n\n".join(block for block in blocks if block)


def _sentence(session: Mapping[str, Any]) -> str:
    """The answer in plain words."""
    tokens, agent = session["output_tokens"], session["rates"]["agent"]
    where = session["scenario"] + (f" on {session['backend']}" if session["backend"] else "")
    text = f"{where}{' (warm-up)' if session['warmup'] else ''}: {duration(session['wall_ns'])}"
    text += " for output tokens that weren't measured" if tokens is None else f" for {count(tokens)} tokens"
    text += f": {rate(agent)} agent tok/s." if agent is not None else "."
    ledger, wall_ns = session["ledger"], session["wall_ns"]
    largest = sorted((row for row in ledger if ledger[row]), key=lambda row: -ledger[row])[:3]
    if largest:
        verb = "take" if largest[0] in _PLURAL else "takes"
        names = [_IN_WORDS.get(row, row) for row in largest]
        shares = [percent(ledger[row], wall_ns) for row in largest]
        others = [f", {name} {share}" for name, share in zip(names[1:], shares[1:], strict=True)]
        text += f" {names[0][0].upper()}{names[0][1:]} {verb} {shares[0]}{''.join(others)}."
    if session["outcome"] not in {None, "completed"}:
        text += f" It ended as {session['outcome']}."
    if session["checks_passed"] is not None:
        text += " Checks passed." if session["checks_passed"] else " Checks failed."
    return text


def _ledger(session: Mapping[str, Any], engine: str | None, width: int) -> str:
    """Rows that spent time, rows that can't be measured here with the reason, and always `unattributed`."""
    ledger, wall_ns = session["ledger"], session["wall_ns"]
    lines = ["  row                         ms     share"]
    for row, ns in ledger.items():
        if ns is None:
            lead = f"  {row:<18}{'not measured':>12}  "
            lines += hang(missing_note(row, engine, ledger), width, lead)
        elif ns or row == "unattributed":
            share = ns / wall_ns if wall_ns else 0.0
            lead = f"  {row:<18}{ms(ns):>12}{percent(ns, wall_ns, 1):>9}  {bar(share, _BAR_CELLS):<{_BAR_CELLS}}  "
            lines += hang(row_note(row, ledger, session["splits"]), width, lead)
    lines.append(f"  {'in all':<18}{ms(wall_ns):>12}{percent(wall_ns, wall_ns, 1):>9}")
    model_ns = session["model_time_ns"]
    lines.append(f"  {'of it model time':<18}{ms(model_ns):>12}{percent(model_ns, wall_ns, 1):>9}")
    return "\n".join(lines)


def _rates(session: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], width: int) -> str:
    estimated = " (estimated)" if _is_estimated(session["output_tokens_source"], calls) else ""
    named = [
        f"{name} {'not measured' if value is None else f'{rate(value)} tok/s'}"
        for name, value in session["rates"].items()
    ]
    lines = wrap(f"Rates{estimated}: " + " · ".join(named), width)
    lines += wrap(_cache_sentence(calls), width)
    lag_ns = session["client_lag_p99_ns"]
    lines.append(f"Client lag p99: {'not measured' if lag_ns is None else f'{ms(lag_ns)} ms'}")
    return "\n".join(lines)


def _is_estimated(source: str | None, calls: Sequence[Mapping[str, Any]]) -> bool:
    return source == "counted" or any("estimated_tokens" in call["flags"] for call in calls if not call["error"])


def _cache_sentence(calls: Sequence[Mapping[str, Any]]) -> str:
    cached, prompt = cache_totals(calls)
    if prompt is None or cached is None:
        return "Prompt cache: not measured"
    return f"Prompt cache: {count(cached)} of {count(prompt)} prompt tokens, hit rate {percent(cached, prompt, 1)}"


def cache_totals(calls: Sequence[Mapping[str, Any]]) -> tuple[int | None, int | None]:
    """Cached and prompt tokens over the calls that report both; None where none does."""
    known = [call for call in calls if call["cached_tokens"] is not None and call["prompt_tokens"] is not None]
    if not known:
        return None, None
    return sum(call["cached_tokens"] for call in known), sum(call["prompt_tokens"] for call in known)


def _cautions(cautions: Sequence[str], width: int) -> str:
    lines = [line for caution in cautions for line in wrap(caution, width, first="  * ", rest="    ")]
    return "\n".join(["Cautions:", *lines]) if lines else ""


def _merged_cautions(sessions: Sequence[Mapping[str, Any]], width: int) -> str:
    """Cautions of all sessions; those that differ in their numbers alone are one, shown with the first's numbers."""
    kept: dict[str, list[str]] = {}
    for session in sessions:
        for caution in session["cautions"]:
            kept.setdefault(re.sub(r"\d[\d.,]*", "#", caution), []).append(caution)
    lines = []
    for same in kept.values():
        first = "" if len(set(same)) == 1 else ", the first shown"
        lines.append(same[0] if len(same) == 1 else f"{same[0]} ({len(same)} sessions{first})")
    return _cautions(lines, width)


def _sessions_table(sessions: Sequence[Mapping[str, Any]], width: int) -> str:
    headers = ("scenario", "backend", "rep", "result", "wall s", "model s", "tokens", "agent", "decode", "hit")
    lines = table(headers, [_session_cells(session) for session in sessions], left=(0, 1, 3), width=width)
    lines += wrap(f"agent and decode in tok/s · hit: prompt tokens from the cache · {MISSING} not measured", width)
    return "\n".join(lines)


def _session_cells(session: Mapping[str, Any]) -> tuple[str, ...]:
    cached, prompt = cache_totals(session["calls"])
    is_estimated = _is_estimated(session["output_tokens_source"], session["calls"])
    return (
        session["scenario"],
        session["backend"] or MISSING,
        count(session["repetition"]),
        _result(session),
        f"{session['wall_ns'] / 1e9:,.1f}",
        f"{session['model_time_ns'] / 1e9:,.1f}",
        count(session["output_tokens"]),
        rate(session["rates"]["agent"]),
        ("~" if is_estimated and session["rates"]["decode"] is not None else "") + rate(session["rates"]["decode"]),
        percent(cached, prompt),
    )


def _result(session: Mapping[str, Any]) -> str:
    outcome = session["outcome"] or MISSING
    if session["checks_passed"] is False and outcome == "completed":
        outcome = "checks failed"
    return f"warm-up, {outcome}" if session["warmup"] else outcome


def _group(group: Group, engine: str | None, width: int) -> str:
    """The mean ledger of a group, its rates over all calls, its cold start, and who is left out."""
    completed, measured = group.completed, group.measured
    blocks: list[str] = []
    left_out = len(measured) - len(completed)
    if completed:
        mean = mean_session(completed)
        calls = [call for session in completed for call in session["calls"]]
        many = f", mean of {len(completed)} sessions" if len(completed) > 1 else ""
        blocks += [
            "\n".join(wrap(_sentence({**mean, "scenario": group.scenario + many}), width)),
            _ledger(mean, engine, width),
            _rates(mean, calls, width),
        ]
    elif measured:
        blocks.append(f"{group.name}: no session completed, so there is no mean.")
    if completed and left_out:
        blocks.append(f"{left_out} of {len(measured)} sessions didn't complete and are left out of the mean.")
    return "\n".join(block for block in [*blocks, _cold_start(group, width)] if block)


def _cold_start(group: Group, width: int) -> str:
    """How long the warm-ups took, beside what followed; empty where there were none or nothing but they."""
    if not group.warmups or not group.measured:
        return ""
    first_ns = sum(session["wall_ns"] for session in group.warmups) / len(group.warmups)
    many = f" ({len(group.warmups)} sessions, mean)" if len(group.warmups) > 1 else ""
    text = f"Cold start, {group.name}: the warm-up{many} took {duration(first_ns)}"
    if group.completed:
        then_ns = sum(session["wall_ns"] for session in group.completed) / len(group.completed)
        text += f", {first_ns / then_ns:.2f} times what followed" if then_ns else ""
    return "\n".join(wrap(text + ". It is in no mean.", width))


def _aggregate(aggregates: Sequence[Mapping[str, Any]], width: int) -> str:
    lines = []
    for group in aggregates:
        where = f" on {group['backend']}" if group["backend"] else ""
        speed = "not measured" if group["tok_s"] is None else f"{rate(group['tok_s'])} tok/s"
        text = f"Aggregate{where}: {speed} over {group['sessions']} sessions, up to {group['peak']} at once"
        lines += wrap(f"{text}, in {duration(group['wall_ns'])}", width)
    return "\n".join(lines)


def _engine(run: Mapping[str, Any], backend: str | None) -> str | None:
    """The engine that answered at a backend, as the run's fingerprints or labels say."""
    facts = run.get("backends", {}).get(backend, {}) if isinstance(run.get("backends"), Mapping) else {}
    engine = (facts.get("fingerprint") or {}).get("engine") or (facts.get("labels") or {}).get("engine")
    return str(engine) if engine else None
