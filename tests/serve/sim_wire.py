"""A raw client for the simulated server, and the server itself in a thread: what the tests share."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from agentprof.serve.sim.app import SimOptions, running_app
from agentprof.serve.sim.profile import Profile
from agentprof.serve.sim.truth import RequestTruth, read_truth

MS = 1_000_000
FAST = {"prefill": {"base": "2ms", "per_token": "0ms"}, "decode": {"step": "1ms"}}


@dataclass
class Server:
    port: int
    log: Path

    def truth(self, requests: int) -> list[RequestTruth]:
        end = time.monotonic() + 5
        while len(found := read_truth(self.log)) < requests and time.monotonic() < end:
            time.sleep(0.005)
        assert len(found) == requests
        return found


@contextmanager
def serving(tmp_path: Path, seed: int = 0, time_scale: float = 1.0, **profile: Any) -> Iterator[Server]:
    """A server in a thread; the profile's times are short unless given."""
    log = tmp_path / f"truth-{time.perf_counter_ns()}.jsonl"
    options = SimOptions(log=log, seed=seed, time_scale=time_scale)
    ready: list[int] = []
    is_ready = threading.Event()
    stop: list[Any] = []

    async def run() -> None:
        end = asyncio.Event()
        stop.extend([asyncio.get_running_loop(), end])
        async with running_app(Profile.model_validate(FAST | profile), options) as base_url:
            ready.append(int(base_url.rsplit(":", 1)[1].split("/")[0]))
            is_ready.set()
            await end.wait()

    thread = threading.Thread(target=lambda: uvloop.run(run()))
    thread.start()
    assert is_ready.wait(10)
    try:
        yield Server(ready[0], log)
    finally:
        stop[0].call_soon_threadsafe(stop[1].set)
        thread.join(10)


@dataclass
class Answer:
    """A response as it came in: raw reads with stamps, and what they hold."""

    sent_ns: int
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    was_reset: bool = False

    @property
    def raw(self) -> bytes:
        return b"".join(data for _, data in self.reads)

    @property
    def status(self) -> int:
        return int(self.raw.split(b" ", 2)[1])

    @property
    def headers(self) -> dict[str, str]:
        lines = self.raw.split(b"\r\n\r\n", 1)[0].decode().split("\r\n")[1:]
        return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}

    @property
    def body(self) -> bytes:
        body = self.raw.split(b"\r\n\r\n", 1)[1]
        if self.headers.get("transfer-encoding") != "chunked":
            return body
        found = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            if not int(size, 16):
                return found
            found, body = found + body[: int(size, 16)], body[int(size, 16) + 2 :]
        return found

    @property
    def is_whole(self) -> bool:
        """Whether the chunked body was ended."""
        return self.raw.endswith(b"0\r\n\r\n")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON of each data event; other lines and [DONE] as text."""
        blocks = [block for block in self.body.decode().split("\n\n") if block]
        return [_event(block) for block in blocks]

    @property
    def deltas(self) -> list[dict[str, Any]]:
        chunks = [event for event in self.events if isinstance(event, dict) and event.get("choices")]
        return [chunk["choices"][0].get("delta", {}) for chunk in chunks]

    @property
    def text(self) -> str:
        return "".join(delta.get("content") or "" for delta in self.deltas)

    @property
    def finishes(self) -> list[str]:
        chunks = [event for event in self.events if isinstance(event, dict) and event.get("choices")]
        return [reason for chunk in chunks if (reason := chunk["choices"][0]["finish_reason"])]

    @property
    def usage(self) -> dict[str, Any]:
        return [event["usage"] for event in self.events if isinstance(event, dict) and event.get("usage")][-1]

    def at_ns(self, marker: bytes) -> int:
        """When the read came that completed the first occurrence of these bytes."""
        seen = b""
        for at_ns, data in self.reads:
            seen += data
            if marker in seen:
                return at_ns
        raise AssertionError(f"{marker!r} never came")


def _event(block: str) -> Any:
    data = block.removeprefix("data: ")
    try:
        return json.loads(data)
    except json.JSONDecodeError:
        return block


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def send(open_socket: socket.socket, method: str, path: str, body: Any, headers: dict[str, str] | None = None) -> int:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: sim", "Connection: close", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    sent_ns = time.perf_counter_ns()
    open_socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    return sent_ns


def receive(open_socket: socket.socket, sent_ns: int) -> Answer:
    answer = Answer(sent_ns)
    try:
        while data := open_socket.recv(1 << 16):
            answer.reads.append((time.perf_counter_ns(), data))
    except ConnectionResetError:
        answer.was_reset = True
    return answer


def ask(server: Server, body: Any, path: str = "/v1/chat/completions", **headers: str) -> Answer:
    """POST a body and read to the end of the connection."""
    with connect(server) as open_socket:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return receive(open_socket, send(open_socket, "POST", path, body, names))


def get(server: Server, path: str) -> Answer:
    with connect(server) as open_socket:
        return receive(open_socket, send(open_socket, "GET", path, None))


def chat(text: str = "Fix the failing test.", **body: Any) -> dict[str, Any]:
    """A streamed chat request of forced length 12, with usage."""
    fixed: dict[str, Any] = {
        "model": "simulated",
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 12,
        "ignore_eos": True,
    }
    return {name: value for name, value in (fixed | body).items() if value is not None}


def in_parallel(calls: list[Any]) -> list[Any]:
    """Run callables in threads, started in order 10 ms apart; results in that order."""
    results: list[Any] = [None] * len(calls)

    def run(number: int) -> None:
        results[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
        time.sleep(0.01)
    for thread in threads:
        thread.join(30)
    return results


TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}, "times": {"type": "integer", "minimum": 2, "maximum": 5}},
            "required": ["command", "times"],
        },
    },
}
