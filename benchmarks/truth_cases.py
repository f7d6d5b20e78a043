"""The grid of truth.py: simulated servers of every kind, and the scenarios that are replayed against them.

Times leave the two cores idle most of the time: what is to be found is agentprof's error, not a starved machine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

THINK_NS = 100_000_000
_IDLE_CLOSE = "130ms"  # while tools run the connection is closed, in a pause it isn't
_PACE = {"prefill": {"base": "40ms", "per_token": "0.02ms", "jitter": "80ms"}, "decode": {"step": "8ms"}}
_SYSTEM = "You are a careful engineer. " + "Look before you change anything, and prove what you say. " * 12
_COMMAND = (
    "times >/dev/null; read -r ran waited _ </proc/$$/schedstat; start=$EPOCHREALTIME; "  # `times` brings it up to date
    'sleep {seconds}; echo "stamps $start $EPOCHREALTIME $((ran + waited))"'
)


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of server. `profile` overrides the common pace.

    tokens: of each reply. is_forced: the scenario forces them, else the server's own replies are so long. has_tls:
    served with a certificate made for this run.
    """

    name: str
    profile: Mapping[str, Any]
    tokens: int = 12
    is_forced: bool = True
    has_tls: bool = False

    def settings(self, cert: Path, key: Path, handshake_delay: str | None = None) -> dict[str, Any]:
        """The whole profile."""
        merged: dict[str, Any] = {**_PACE, "output": {"tokens": self.tokens}, **self.profile}
        merged["output"] = {"tokens": self.tokens, **merged["output"]}
        if self.has_tls:
            tls = {"cert": str(cert), "key": str(key)}
            merged["tls"] = tls | ({"handshake_delay": handshake_delay} if handshake_delay else {})
        return merged


def cases(concurrency: int) -> list[Case]:
    """All kinds of servers; only how often requests fail depends on how many sessions run at once."""
    openai, vllm, llama = {"engine": "openai"}, {"engine": "vllm"}, {"engine": "llama.cpp"}
    every = 5 if concurrency == 1 else 17  # no call meets three failures in a row
    failing = [
        {"kind": "http", "status": 500, "requests": list(range(3, 2000, 2 * every))},
        {"kind": "http", "status": 429, "retry_after": "0.2", "requests": list(range(3 + every, 2000, 2 * every))},
    ]
    fast = {"prefill": {"base": "15ms", "per_token": "0ms"}, "decode": {"step": "3ms"}}
    late_call = {"output": {"call_probability": 1.0}, "stream": {"tool_calls": "whole"}}
    return [
        Case("nothing reported", openai, is_forced=False),
        Case("vLLM metrics", vllm | {"inject": {"first_token": "40ms"}}),
        Case("llama.cpp timings", llama),
        Case("one slot", vllm | fast | {"slots": 1}, tokens=6),
        Case("prefix cache", vllm | {"prefill": {"base": "10ms", "per_token": "0.3ms", "jitter": "60ms"}}),
        Case(
            "several tokens a step",
            vllm | {"speculation": {"draft_tokens": 4, "acceptance_length": 3}, "decode": {"step": "20ms"}},
            tokens=32,
        ),
        Case("reasoning", vllm | {"output": {"reasoning_share": 0.5}}, tokens=16),
        Case("withheld call, silent", openai | late_call, tokens=40, is_forced=False),
        Case("withheld call, empty deltas", vllm | late_call, tokens=40, is_forced=False),
        Case("buffered", vllm | {"stream": {"buffered": True}}, tokens=24),
        Case("bursts", vllm | {"stream": {"burst_bytes": 2048}, "decode": {"step": "4ms"}}, tokens=64),
        Case("usage at the end", vllm | {"stream": {"usage": "final"}}),
        Case("usage on every chunk", openai | {"stream": {"usage": "every_chunk"}}, is_forced=False),
        Case("usage on the last chunk", openai | {"stream": {"usage": "last_chunk"}}, is_forced=False),
        Case("no usage", openai | {"stream": {"usage": "none"}}, is_forced=False),
        Case("early role, comments", vllm | {"stream": {"role": "at_once", "keep_alive": "15ms"}}),
        Case("slow tail", vllm | {"tail": "150ms"}),
        Case("gateway", vllm | {"gateway": {"overhead": "40ms"}}),
        Case("TLS", vllm | {"idle_close": _IDLE_CLOSE}, has_tls=True),
        Case("retries after 500 and 429", vllm | {"faults": failing}),
        Case("closed during tools", vllm | {"idle_close": _IDLE_CLOSE}),
    ]


def write_scenario(folder: Path, name: str, case: Case, *, is_short: bool = False, extra_tool_ns: int = 0) -> Path:
    """Write a scenario: two commands and a read in parallel, an answer, a pause, another answer.

    Commands tell their own start and end, and how old they were at the start by the kernel's count: on a processor and
    waiting for one. is_short: one command and one answer. Returns its file.
    """
    (folder / "workspace").mkdir(parents=True, exist_ok=True)
    (folder / "workspace" / "notes.txt").write_text("Measure twice.\n" * 40)
    (folder / "system.md").write_text(_SYSTEM)
    tokens = {"output_tokens": case.tokens} if case.is_forced else {}

    def command(seconds: float) -> dict[str, Any]:
        return {"bash": {"command": _COMMAND.format(seconds=f"{seconds + extra_tool_ns / 1e9:.3f}")}}

    answer = {"answer": "Done."} | tokens
    calls = [command(0.12)] if is_short else [command(0.08), command(0.16), {"read_file": {"path": "notes.txt"}}]
    turns: list[dict[str, Any]] = [{"user": "Look at the notes.", "steps": [{"calls": calls} | tokens, answer]}]
    if not is_short:
        turns.append({"user": "Anything else?", "think": f"{THINK_NS // 10**6}ms", "steps": [answer]})
    scenario = {
        "name": name,
        "workspace": "workspace",
        "system": "system.md",
        "tools": ["bash", "read_file"],
        "length": "forced" if case.is_forced else "free",
        "turns": turns,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(scenario, sort_keys=False))
    return path
