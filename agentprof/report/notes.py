"""What stands beside a ledger row: what it is made of, or why it isn't measured and what would make it so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentprof.report.layout import ms, percent

_QUEUE_AND_PREFILL = {
    "vllm": "not split: vLLM reports it when started with --enable-per-request-metrics",
    "sglang": "not split: SGLang's replies carry no times; its spans do, with --enable-trace --otlp-traces-endpoint",
    "litellm": "not split: LiteLLM passes no server times on; point base_url at the server itself to see them",
}
_UNREPORTED = {
    ("queue", "llama.cpp"): "not split: llama.cpp reports no queue time; waiting for a slot is in first_token_wait",
    ("prefill", "llama.cpp"): "not split: llama.cpp's timings didn't arrive; point base_url at the server itself",
    **{(row, engine): note for engine, note in _QUEUE_AND_PREFILL.items() for row in ("queue", "prefill")},
}
_MISSING = {
    "connect": "connections weren't observed in this trace",
    "network": "no round trip was observed; it is in the wait",
    "gateway": "no gateway reported its time (headers x-litellm-overhead-duration-ms, Server-Timing)",
    "queue": "not split: this server reports no timings",
    "prefill": "not split: this server reports no timings",
    "first_token_wait": "not split: no call could be divided at its first token",
    "decode": "not split: no call could be divided at its first token",
    "agent": "the loop's own work has no spans in this trace",
}
_NAMES = {"tool_call": "tool calls", "pool_wait": "waiting for the pool"}


def missing_note(row: str, engine: str | None, ledger: Mapping[str, Any]) -> str:
    """Why a row isn't measured here, and what would make it measurable."""
    if row in {"queue", "prefill"} and ledger.get("first_token_wait") is None:
        return "not split: no call could be divided at its first token"
    return _UNREPORTED.get((row, engine or ""), _MISSING.get(row, "not observed in this trace"))


def row_note(row: str, ledger: Mapping[str, Any], splits: Mapping[str, Mapping[str, Any]]) -> str:
    """What a row is made of: its largest parts; empty where there is nothing to say."""
    parts = {part: ns for part, ns in splits.get(row, {}).items() if ns}
    largest = sorted(parts, key=lambda part: (-parts[part], part))[:4]
    if row == "connect":
        return ", ".join(f"{_NAMES.get(part, part)} {ms(parts[part])} ms" for part in parts)
    if row == "decode" and len(parts) < 2:
        return ""
    if largest:
        return ", ".join(f"{_NAMES.get(part, part)} {percent(parts[part], ledger[row])}" for part in largest)
    if row == "first_token_wait" and (lost := [key for key in ("queue", "prefill") if ledger[key] is None]):
        return f"with {' and '.join(lost)}"
    return "unsplit calls, sent to last token" if row == "generation" else ""
