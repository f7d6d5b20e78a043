"""Real calls of the product's client to a scripted server, and what it recorded of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvloop
from scripted_server import CHUNKED, LAST_CHUNK, Script, ScriptedServer, chunk
from timeline import DONE, finish, text, usage

from agentprof import semconv
from agentprof.clock import now_ns
from agentprof.errors import CallError
from agentprof.records.backend import Backend
from agentprof.records.call import CallResult, ChatRequest
from agentprof.records.spans import ListRecorder, Span, SpanRef
from agentprof.wire.client import ChatClient
from agentprof.wire.failures import RetryPolicy
from agentprof.wire.transport import StampingTransport

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
REQUEST = ChatRequest(messages=({"role": "user", "content": "hello"},), tools=(), max_tokens=64, temperature=0.0)
REPLY = (text("one"), text(" two"), finish("stop") + usage(5, 2))
"""Three events: two tokens, then the end."""


def run(main: Coroutine[Any, Any, Any], loop: str = "asyncio") -> Any:
    """Run to the end on the named kind of loop."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(main)


def stream(*, first: float = 0.0, gap: float = 0.0, events: Sequence[bytes] = REPLY, last: float = 0.002) -> Script:
    """A chunked stream as vLLM sends it: `first` seconds of silence, events, `[DONE]`, and later the last chunk."""
    steps: list[Any] = [first, CHUNKED]
    for event in events:
        steps += [chunk(event), gap]
    return [*steps, chunk(DONE), last, LAST_CHUNK]


def until_closed(*events: bytes) -> bytes:
    """A response whose body ends with the connection."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + b"".join(events)


def client(
    server: ScriptedServer,
    *,
    pool: int = 10,
    attempts: int = 1,
    max_wait_ns: int = 60_000_000_000,
    tls: Any = None,
    connect_timeout_s: float = 10.0,
    engine: Any = "vllm",
    **backend: Any,
) -> ChatClient:
    """A client of this server."""
    return ChatClient(
        Backend(**{"name": "test", "base_url": server.url, "model": "tiny", **backend}),
        engine,
        retry=RetryPolicy(attempts, max_wait_ns),
        transport=StampingTransport(pool=pool, connect_timeout_s=connect_timeout_s, tls=tls),
    )


@dataclass(slots=True)
class Call:
    """One call and what was recorded of it."""

    recorder: ListRecorder
    parent: SpanRef
    result: CallResult | None = None
    error: CallError | None = None
    phases: list[str] = field(default_factory=list)
    events: int = 0

    @property
    def chat(self) -> Span:
        (chat,) = [span for span in self.recorder.spans if span.name.startswith(semconv.CHAT + " ")]
        return chat

    def below(self, parent: Span) -> list[Span]:
        """The children of a span, in the order of time."""
        return sorted(
            (span for span in self.recorder.spans if span.parent == parent.ref),
            key=lambda span: (span.start_ns, span.end_ns, span.ref.span_id),
        )

    def named(self, name: str) -> Span:
        (found,) = [span for span in self.recorder.spans if span.name == name]
        return found

    def attribute(self, name: str) -> Any:
        return self.chat.attributes.get(name)


async def make_call(
    chat_client: ChatClient, request: ChatRequest = REQUEST, recorder: ListRecorder | None = None
) -> Call:
    """Make one call; a CallError is kept, anything else escapes."""
    recorder = recorder or ListRecorder()
    call = Call(recorder, recorder.reserve())
    await _make(call, chat_client, request)
    return call


async def _make(call: Call, chat_client: ChatClient, request: ChatRequest) -> None:
    def count(events: int) -> None:
        call.events += events

    try:
        call.result = await chat_client.call(
            request,
            recorder=call.recorder,
            parent=call.parent,
            prepared_from_ns=now_ns(),
            on_phase=call.phases.append,
            on_events=count,
        )
    except CallError as error:
        call.error = error


def start_call(chat_client: ChatClient, request: ChatRequest = REQUEST) -> tuple[Call, asyncio.Task[None]]:
    """Start one call as a task that may be cancelled."""
    recorder = ListRecorder()
    call = Call(recorder, recorder.reserve())
    return call, asyncio.create_task(_make(call, chat_client, request))


def check_tiling(call: Call) -> None:
    """Spans lie end to end: nothing of the call is in no span, or in two."""
    chat = call.chat
    prepare = call.named(semconv.PREPARE)
    assert prepare.end_ns == chat.start_ns
    assert prepare.parent == chat.parent == call.parent
    _check_end_to_end(call, chat)
    for attempt in call.below(chat):
        if attempt.name.startswith(semconv.ATTEMPT) and attempt.error is None:
            _check_end_to_end(call, attempt)


def _check_end_to_end(call: Call, parent: Span) -> None:
    children = call.below(parent)
    at_ns = parent.start_ns
    for child in children:
        assert child.start_ns == at_ns, [(one.name, one.start_ns, one.end_ns) for one in children]
        at_ns = child.end_ns
    assert at_ns == parent.end_ns, [(one.name, one.start_ns, one.end_ns) for one in children]


async def check_clean(chat_client: ChatClient) -> None:
    """Close the client; no task of the call's may be left. Connections are watched by the warnings filter."""
    await chat_client.close()
    await asyncio.sleep(0)
    gc.collect(1)  # what this call left unclosed warns now, not in another test
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left
