"""The calls of a session as a table, one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentprof.report.layout import MISSING, count, hang, ms, percent, rate

_COLUMNS = (
    ("", "step", 4),
    ("", "prompt", 7),
    ("", "cached", 7),
    ("", "hit", 5),
    ("TTFT", "ms", 9),
    ("decode", "tok/s", 6),
    ("", "tokens", 6),
    ("call", "ms", 9),
)
_FINISH = 10
_MOST = 60


def render_calls(calls: Sequence[Mapping[str, Any]], width: int) -> str:
    """Prompt, cache, TTFT, decode rate and size of every call, with how it ended; empty without calls.

    Beyond 60 calls the rest is left to `--json`.
    """
    if not calls:
        return ""
    above = "  " + " ".join(f"{name:>{size}}" for name, _, size in _COLUMNS)
    names = "  " + " ".join(f"{name:>{size}}" for _, name, size in _COLUMNS) + f"  {'finish':<{_FINISH}} flags"
    lines = [above, names]
    for call in calls[:_MOST]:
        lead = "  " + " ".join(f"{cell:>{size}}" for cell, (*_, size) in zip(_cells(call), _COLUMNS, strict=True))
        lines += hang(" ".join(_flags(call)), width, f"{lead}  {_ending(call):<{_FINISH}} ")
    if len(calls) > _MOST:
        lines.append(f"  … and {len(calls) - _MOST} more: see --json")
    signs = {MISSING: "not measured", "~": "estimated", "≤": "upper bound"}
    shown = [f"{sign} {meaning}" for sign, meaning in signs.items() if any(sign in line for line in lines[2:])]
    return "\n".join([*lines, *([f"  {' · '.join(shown)}"] if shown else [])])


def _cells(call: Mapping[str, Any]) -> tuple[str, ...]:
    is_upper_bound = "buffered" in call["flags"] and call["ttft_ns"] is not None
    about = "~" if call["output_tokens_source"] == "counted" else ""
    return (
        count(call["step"]),
        count(call["prompt_tokens"]),
        count(call["cached_tokens"]),
        percent(call["cached_tokens"], call["prompt_tokens"]),
        ("≤" if is_upper_bound else "") + ms(call["ttft_ns"]),
        _decode_rate(call),
        MISSING if call["output_tokens"] is None else about + count(call["output_tokens"]),
        ms(call["wall_ns"]),
    )


def _decode_rate(call: Mapping[str, Any]) -> str:
    tokens, first, decode_ns = call["output_tokens"], call["first_read_tokens"], call["decode_ns"]
    if call["error"] or tokens is None or first is None or not decode_ns:
        return MISSING
    about = "~" if "estimated_tokens" in call["flags"] else ""
    return about + rate(max(0, tokens - first) * 1e9 / decode_ns)


def _ending(call: Mapping[str, Any]) -> str:
    return str(call["error"]["kind"]) if call["error"] else call["finish"] or MISSING


def _flags(call: Mapping[str, Any]) -> list[str]:
    """Its flags, less those that the table shows otherwise, and its attempts where there were several."""
    shown_otherwise = {"ttft_upper_bound", "estimated_tokens"}
    attempts = [f"attempts:{call['attempts']}"] if call["attempts"] > 1 else []
    return [*attempts, *(flag for flag in call["flags"] if flag not in shown_otherwise)]
