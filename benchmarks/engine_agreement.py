"""Do TTFT and decode time agree with what a real engine says of itself?

    python benchmarks/engine_agreement.py [--calls 50] [--threads 1] [--tokens 48] [--prompt-cache]

llama.cpp serves a small model in a process of its own, one slot, and tells in `timings` how long it took for the prompt
(`prompt_ms`) and for the tokens after the first (`predicted_ms`). agentprof's own client makes streamed calls with
prompts of several lengths that no cache holds, of a forced length, one after the other, and measures from outside.

TTFT holds what `prompt_ms` doesn't: connecting (llama.cpp closes after each stream), sending, reading the request,
rendering its template, tokenising, sampling and sending the first token. So the difference from outside is printed
twice: whole, and for the wait alone, from the request's last byte to the first token. With `--prompt-cache` the engine
also saves the prompt before, which it doesn't count in `prompt_ms` either.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import uvloop

from agentprof import semconv
from agentprof.clock import now_ns
from agentprof.records.backend import Backend
from agentprof.records.call import ChatRequest
from agentprof.records.spans import ListRecorder
from agentprof.serve.local import EngineOptions, start_engine
from agentprof.wire.client import ChatClient

_TEXT = "the parser reads a line and counts its columns before it looks at the next one "
_PROMPT_WORDS = (40, 120, 300)
_WARM_CALLS = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """One call in ms: as agentprof saw it, and as llama.cpp told it."""

    ttft: float
    wait: float
    decode: float
    prompt_told: float
    predicted_told: float


async def make_calls(base_url: str, model: str, calls: int, tokens: int) -> list[Seen]:
    """Make the calls one after the other; the first few warm both sides and are left out."""
    client = ChatClient(Backend(name="local", base_url=base_url, model=model), "llama.cpp")
    try:
        seen = [await make_call(client, number, tokens) for number in range(_WARM_CALLS + calls)]
    finally:
        await client.close()
    return seen[_WARM_CALLS:]


async def make_call(client: ChatClient, number: int, tokens: int) -> Seen:
    """One call; its number comes first in the prompt, so that nothing of it is cached but the template's head."""
    count = _PROMPT_WORDS[number % len(_PROMPT_WORDS)]
    text = f"{number * 7919:08d} " + (_TEXT * count)[: count * 5]
    request = ChatRequest(({"role": "user", "content": text},), (), max_tokens=tokens, forced_tokens=tokens)
    recorder = ListRecorder()
    await client.call(request, recorder=recorder, parent=recorder.reserve(), prepared_from_ns=now_ns())
    spans = {span.name.split()[0]: span for span in recorder.spans}
    told = spans[semconv.CHAT].attributes

    def milliseconds(name: str) -> float:
        value = told[name]
        assert isinstance(value, int)
        return value / 1e6

    return Seen(
        ttft=milliseconds(semconv.TTFT_NS),
        wait=spans[semconv.FIRST_TOKEN_WAIT].duration_ns / 1e6,
        decode=spans[semconv.DECODE].duration_ns / 1e6,
        prompt_told=milliseconds(semconv.PREFILL_NS),
        predicted_told=milliseconds(semconv.SERVER_DECODE_NS),
    )


def print_row(name: str, measured: Sequence[float], told: Sequence[float]) -> None:
    """One line: typical values, the median of measured less told, and the 99th percentile of its absolute value."""
    pairs = list(zip(measured, told, strict=True))
    differences = sorted(ours - theirs for ours, theirs in pairs)
    distances = sorted(map(abs, differences))
    shares = sorted(abs(ours - theirs) / theirs * 100 for ours, theirs in pairs)
    values = (_at(sorted(measured), 0.5), _at(sorted(told), 0.5), _at(differences, 0.5), _at(distances, 0.99))
    cells = " | ".join(f"{value:.2f}" for value in values)
    print(f"| {name} | {len(told)} | {cells} | {_at(shares, 0.5):.2f} % | {_at(shares, 0.99):.2f} % |")


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, ceil(len(ordered) * share) - 1)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--tokens", type=int, default=48, help="of each reply")
    parser.add_argument("--prompt-cache", action="store_true", help="let the engine save prompts")
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores\n")
    with start_engine(EngineOptions(threads=options.threads, has_prompt_cache=options.prompt_cache)) as engine:
        seen = uvloop.run(make_calls(engine.base_url, engine.model, options.calls, options.tokens))
    prompt = [call.prompt_told for call in seen]
    print("| figure | calls | agentprof p50 ms | llama.cpp p50 ms | difference, p50 ms | p99 of its size | in % | |")
    print("|---|---|---|---|---|---|---|---|")
    print_row("TTFT − prompt_ms", [call.ttft for call in seen], prompt)
    print_row("first-token wait − prompt_ms", [call.wait for call in seen], prompt)
    print_row("decode − predicted_ms", [call.decode for call in seen], [call.predicted_told for call in seen])
    print(f"\nload average after: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
