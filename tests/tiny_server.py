"""A small OpenAI-compatible server in a thread: it streams words with usage, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class TinyServer:
    """What it was asked, and what it shall say.

    reply: chunks' deltas instead of words, by the number of the chat request from 0. fault: an error response, by the
    same number; None for none. token_s: pause before each token. Pings are requests too.
    """

    base_url: str = ""
    requests: list[Json] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    reply: Callable[[int], list[Json] | None] = lambda number: None
    fault: Callable[[int], web.Response | None] = lambda number: None
    token_s: float = 0.002
    running: int = 0
    most_running: int = 0

    @property
    def agent_requests(self) -> list[Json]:
        """The requests of sessions: those with a system prompt."""
        return [body for body in self.requests if body["messages"][0]["role"] == "system"]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.requests)
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        fault = self.fault(number)
        if fault is not None:
            return fault
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            return await self._stream(request, body, number)
        finally:
            self.running -= 1

    async def _stream(self, request: web.Request, body: Json, number: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        deltas = self.reply(number)
        is_scripted = deltas is not None
        deltas = deltas if deltas is not None else [{"content": f"w{index} "} for index in range(body["max_tokens"])]
        for delta in deltas:
            await asyncio.sleep(self.token_s)
            await response.write(_event(choices=[{"index": 0, "delta": delta, "finish_reason": None}]))
        finish = "tool_calls" if any("tool_calls" in delta for delta in deltas) else "stop" if is_scripted else "length"
        await response.write(_event(choices=[{"index": 0, "delta": {}, "finish_reason": finish}]))
        prompt = len(json.dumps(body["messages"])) // 4
        usage = {"prompt_tokens": prompt, "completion_tokens": len(deltas), "total_tokens": prompt + len(deltas)}
        await response.write(_event(choices=[], usage=usage) + b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "tests"}]})


def _event(**fields: Any) -> bytes:
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "tiny", **fields}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def error(status: int, message: str, **headers: str) -> web.Response:
    """An error as OpenAI's API words it."""
    return web.json_response({"error": {"message": message, "type": "error"}}, status=status, headers=headers)


@contextmanager
def serve(routes: dict[str, Handler]) -> Iterator[str]:
    """Serve `METHOD /path` handlers on a free port of 127.0.0.1; gives the root URL. Ends with the block."""
    loop, is_up, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    port = 0

    async def run() -> None:
        nonlocal port
        app = web.Application(client_max_size=1 << 26)
        for route, handler in routes.items():
            method, path = route.split()
            app.router.add_route(method, path, handler)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        is_up.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    assert is_up.wait(10)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


@contextmanager
def tiny_server(**changes: Any) -> Iterator[TinyServer]:
    """A running tiny server."""
    tiny = TinyServer(**changes)
    with serve({"POST /v1/chat/completions": tiny.chat, "GET /v1/models": tiny.models}) as url:
        tiny.base_url = url + "/v1"
        yield tiny


def tool_call_delta(name: str, arguments: str, call_id: str = "call_1", index: int = 0) -> Json:
    """A whole tool call in one delta."""
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
