"""How late are arrival stamps, and what does a chunk cost the client?

    python benchmarks/lateness.py [--seconds 5] [--loads 1 16 64] [--rate 200]

A simulated server in a process of its own streams one token a chunk at a fixed rate and logs when it sent each. Three
clients of one process read the same load one after the other, in the same run: agentprof's, the `openai` package's
stream iterator stamping each chunk as it is handed over, and a protocol that only stamps (the floor: kernel, scheduler
and event loop, no HTTP). Lateness is the client's stamp less the server's; both read one monotonic clock. The first
half second of each stream, in which all requests start at once, is left out. CPU per chunk is the client process's CPU
time over the whole load, parsing included, over all chunks; what a client costs before its first load is warmed away.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import openai
import uvloop

from agentprof.clock import now_ns
from agentprof.records.backend import Backend
from agentprof.records.call import ChatRequest
from agentprof.records.spans import ListRecorder
from agentprof.serve.sim import Profile, RunningSim, start_sim
from agentprof.wire.client import ChatClient

_SETTLE_NS = 500_000_000
_MESSAGES = [{"role": "user", "content": "Stream."}]

Stamps = dict[str, list[int]]
"""Arrival stamps of token chunks by trace id."""


@dataclass(frozen=True, slots=True)
class Load:
    """So many streams at once, each of so many tokens."""

    streams: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Result:
    """Lateness in sorted milliseconds, and the client's CPU time per chunk in µs."""

    late_ms: Sequence[float]
    cpu_us: float

    def percentile(self, share: float) -> float:
        """The lateness that this share of the chunks doesn't exceed, in ms."""
        return self.late_ms[min(len(self.late_ms) - 1, int(len(self.late_ms) * share))]


async def read_with_agentprof(sim: RunningSim, load: Load) -> Stamps:
    """agentprof's own client."""
    backend = Backend(name="sim", base_url=sim.base_url, model="simulated")
    client = ChatClient(backend, "vllm")
    request = ChatRequest(_MESSAGES, (), max_tokens=load.tokens, forced_tokens=load.tokens)

    async def one(trace_id: int) -> tuple[str, list[int]]:
        recorder = ListRecorder(trace_id=trace_id)
        result = await client.call(request, recorder=recorder, parent=recorder.reserve(), prepared_from_ns=now_ns())
        return f"{trace_id:032x}", [event.at_ns for event in result.reply.events]

    try:
        return dict(await asyncio.gather(*(one(_trace_id()) for _ in range(load.streams))))
    finally:
        await client.close()


async def read_with_openai(sim: RunningSim, load: Load) -> Stamps:
    """The stream iterator of the `openai` package."""
    async with openai.AsyncOpenAI(base_url=sim.base_url, api_key="none", max_retries=0) as client:

        async def one(trace: str) -> tuple[str, list[int]]:
            stream = await client.chat.completions.create(
                model="simulated",
                messages=_MESSAGES,  # type: ignore[arg-type]
                max_tokens=load.tokens,
                stream=True,
                extra_body={"ignore_eos": True},
                extra_headers={"traceparent": f"00-{trace}-{1:016x}-01"},
            )
            stamps = [now_ns() async for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
            return trace, stamps

        return dict(await asyncio.gather(*(one(f"{_trace_id():032x}") for _ in range(load.streams))))


class _Stamper(asyncio.Protocol):
    """Notes when each piece of a response arrives; counts the chunks in it."""

    def __init__(self, request: bytes) -> None:
        self.stamps: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        at_ns = now_ns()
        self.stamps.extend([at_ns] * (data.count(b'"content":"') - data.count(b'"content":""')))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        self.done.set_result(None)


async def read_with_protocol(sim: RunningSim, load: Load) -> Stamps:
    """The floor: stamp what the socket gives, parse nothing."""
    host, port = urlsplit(sim.base_url).hostname, urlsplit(sim.base_url).port

    async def one(trace: str) -> tuple[str, list[int]]:
        body = (
            b'{"model":"simulated","messages":[{"role":"user","content":"Stream."}],"stream":true,"ignore_eos":true,'
            b'"max_tokens":%d}' % load.tokens
        )
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\ntraceparent: 00-{trace}-{1:016x}-01\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        _, protocol = await asyncio.get_running_loop().create_connection(
            lambda: _Stamper(head.encode() + body), host, port
        )
        await protocol.done
        return trace, protocol.stamps

    return dict(await asyncio.gather(*(one(f"{_trace_id():032x}") for _ in range(load.streams))))


def _trace_id() -> int:
    return time.time_ns() << 20 | time.perf_counter_ns() & 0xFFFFF


def measure(
    read: Callable[[RunningSim, Load], Awaitable[Stamps]], profile: Profile, load: Load, *, is_uvloop: bool
) -> Result:
    """Run one client under one load and hold its stamps against the server's log."""
    factory = uvloop.new_event_loop if is_uvloop else None
    with start_sim(profile) as sim, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(read(sim, Load(1, 20)))  # imports, connections, caches
        gc.collect()
        gc.freeze()  # as a run does: a full collection would visit every object of every library
        cpu_before = _cpu_s()
        stamps = runner.run(read(sim, load))
        cpu_s = _cpu_s() - cpu_before
        truth = sim.truth(load.streams + 1)
    late, chunks = [], 0
    for request in truth:
        arrived = stamps.get(request.traceparent.split("-")[1])
        if arrived is None:
            continue
        sent = [chunk.at_ns for chunk in request.token_chunks]
        if len(sent) != len(arrived):
            raise SystemExit(f"{read.__name__}: {len(sent)} chunks sent, {len(arrived)} seen")
        chunks += len(sent)
        late += [(got - at) / 1e6 for at, got in zip(sent, arrived, strict=True) if at - sent[0] >= _SETTLE_NS]
    return Result(sorted(late), cpu_s / chunks * 1e6)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


_CLIENTS = (
    ("agentprof", read_with_agentprof, True),
    ("openai stream iterator", read_with_openai, False),
    ("stamping protocol (floor)", read_with_protocol, True),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each stream")
    parser.add_argument("--rate", type=int, default=200, help="chunks per second and stream")
    parser.add_argument("--loads", type=int, nargs="+", default=[1, 16, 64], help="streams at once")
    options = parser.parse_args()
    profile = Profile.model_validate(
        {"decode": {"step": f"{1000 / options.rate}ms"}, "prefill": {"base": "20ms", "per_token": "0ms"}}
    )
    print("| load | client | p50 ms | p95 ms | p99 ms | max ms | CPU µs/chunk |")
    print("|---|---|---|---|---|---|---|")
    for streams in options.loads:
        load = Load(streams, max(2, int(options.seconds * options.rate)))
        for name, read, is_uvloop in _CLIENTS:
            result = measure(read, profile, load, is_uvloop=is_uvloop)
            figures = [result.percentile(share) for share in (0.5, 0.95, 0.99, 1.0)]
            cells = " | ".join(f"{figure:.2f}" for figure in figures)
            print(f"| {streams}×{options.rate}/s | {name} | {cells} | {result.cpu_us:.1f} |", flush=True)


if __name__ == "__main__":
    main()
