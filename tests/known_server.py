"""Sessions on a server whose times follow a formula exactly, written by hand: what a probe must find again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentprof import semconv
from agentprof.analysis.frames import SessionFrame, session_frames
from agentprof.records.spans import Span, SpanRef

MS = 1_000_000


@dataclass(frozen=True)
class Server:
    """Times in milliseconds. `is_reporting`: prefill is told. `tokens_per_step`: 1 where nothing is drafted."""

    connect: float = 1.0
    send: float = 0.5
    base: float = 40.0
    per_token: float = 0.2
    per_pair: float = 1e-4
    per_cached: float = 0.0
    step: float = 10.0
    per_context_token: float = 2e-3
    per_other: float = 0.0
    tail: float = 0.25
    wait_per_prompt_token: float = 0.01
    is_reporting: bool = True
    tells_cache: bool = True
    has_cache: bool = True
    block_tokens: int = 1
    drafts_per_step: int = 0
    accepted_per_step: int = 0
    per_draft: float = 0.0


@dataclass(frozen=True)
class Call:
    """A call: prompt tokens, of them sent before, output tokens, others that decode all along."""

    prompt: int
    shared: int = 0
    output: int = 41
    others: int = 0
    slower: float = 1.0


def held(server: Server, call: Call) -> int:
    return call.shared // server.block_tokens * server.block_tokens if server.has_cache else 0


def prefill_ms(server: Server, call: Call) -> float:
    cached = held(server, call)
    new = call.prompt - cached
    attention = server.per_pair * new * (cached + new / 2)
    return server.base + server.per_token * new + attention + server.per_cached * cached


def steps_of(server: Server, call: Call) -> int:
    decoded = call.output - 1
    assert decoded % (1 + server.accepted_per_step) == 0
    return decoded // (1 + server.accepted_per_step)


def decode_ms(server: Server, call: Call) -> float:
    steps = steps_of(server, call)
    context = call.prompt + call.output / 2
    each = server.step + server.per_context_token * context + server.per_other * call.others
    return steps * each + steps * server.drafts_per_step * server.per_draft


def session(
    server: Server,
    scenario: str,
    calls: Sequence[Call],
    *,
    trace: int = 1,
    tool_ms: float = 0.0,
    start_ms: float | None = None,
    root_attributes: dict[str, Any] | None = None,
    call_attributes: dict[str, Any] | None = None,
) -> list[Span]:
    """One session: a step for each call, a tool after each. Sessions start an hour apart unless told otherwise."""
    spans: list[Span] = []

    def add(
        parent: SpanRef | None, name: str, start: float, end: float, values: dict[str, Any] | None = None
    ) -> SpanRef:
        ref = SpanRef(trace, len(spans) + 2)
        spans.append(Span(ref, parent, name, round(start * MS), round(end * MS), "internal", values or {}))
        return ref

    root, at = SpanRef(trace, 1), 3.6e6 * trace if start_ms is None else start_ms
    start = at
    for number, call in enumerate(calls, start=1):
        step = SpanRef(trace, 10_000 + number)
        began = at
        sent = at + server.connect + server.send
        wait = (prefill_ms(server, call) + server.wait_per_prompt_token * call.prompt) * call.slower
        first = sent + wait
        last = first + decode_ms(server, call) * call.slower
        end = last + server.tail
        values: dict[str, Any] = {
            semconv.TTFT_NS: round((first - at) * MS),
            semconv.INPUT_TOKENS: call.prompt,
            semconv.OUTPUT_TOKENS: call.output,
            semconv.OUTPUT_TOKENS_SOURCE: "server",
            semconv.FIRST_READ_TOKENS: 1,
        }
        if server.tells_cache:
            values[semconv.CACHED_TOKENS] = held(server, call)
        if server.is_reporting:
            values[semconv.PREFILL_NS] = round(prefill_ms(server, call) * call.slower * MS)
        if server.drafts_per_step:
            values[semconv.DRAFT_TOKENS] = steps_of(server, call) * server.drafts_per_step
            values[semconv.ACCEPTED_TOKENS] = steps_of(server, call) * server.accepted_per_step
        chat = add(step, "chat m", at, end, values | (call_attributes or {}))
        add(chat, "connect", at, at + server.connect)
        add(chat, "send", at + server.connect, sent)
        add(chat, "first_token_wait", sent, first)
        add(chat, "decode", first, last)
        add(chat, "tail", last, end)
        if tool_ms:
            add(step, "execute_tool bash", end, end + tool_ms)
        at = end + tool_ms
        spans.append(Span(step, root, f"step {number}", round(began * MS), round(at * MS)))
    facts = {semconv.SCENARIO: scenario, semconv.OUTCOME: "completed", semconv.REPETITION: trace, semconv.BACKEND: "b"}
    spans.append(
        Span(
            root,
            None,
            f"invoke_agent {scenario}",
            round(start * MS),
            round(at * MS),
            "internal",
            facts | (root_attributes or {}),
        )
    )
    return spans


LENGTHS = (64, 256, 1000, 4001)


def probe_sessions(server: Server, lengths: Sequence[int] = LENGTHS, repeats: int = 1) -> list[SessionFrame]:
    """A probe: each length new, then again with a short and a longer suffix."""
    spans: list[Span] = []
    trace = 100
    for _ in range(repeats):
        for length in lengths:
            for shared, prompt in ((0, length), (length - 5, length + 16), (length + 11, length + 160)):
                trace += 1
                attributes = {semconv.PROBE_PROMPT_TOKENS: prompt, semconv.PROBE_SHARED_TOKENS: shared}
                name = f"probe {prompt - shared}+{shared}"
                spans += session(server, name, [Call(prompt, shared)], trace=trace, root_attributes=attributes)
    return session_frames(spans)


CALLS = (Call(900, 0, 81), Call(1100, 900, 41), Call(1500, 1100, 21), Call(3000, 1500, 121))


def run_sessions(
    server: Server, calls: Sequence[Call] = CALLS, scenario: str = "fix", tools_ms: Sequence[float] = (500.0,)
) -> list[SessionFrame]:
    """A run: one session for each duration of its tools."""
    return session_frames(
        [
            span
            for number, tool_ms in enumerate(tools_ms, start=1)
            for span in session(server, scenario, calls, trace=number, tool_ms=tool_ms)
        ]
    )
