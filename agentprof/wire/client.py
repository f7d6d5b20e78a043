"""One call to a served model: a streamed chat completion through the openai client, retried by us, traced."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai
import orjson

from agentprof.clock import now_ns
from agentprof.errors import CallError, InputError
from agentprof.records.backend import Backend, Engine
from agentprof.records.call import CallResult, ChatRequest, Reply
from agentprof.records.spans import Recorder, SpanRef
from agentprof.wire import dialects
from agentprof.wire.assemble import assemble_in_steps
from agentprof.wire.call_spans import Attempt, CallTrace, record_call
from agentprof.wire.exchange import EXCHANGE, Exchange
from agentprof.wire.failures import RetryPolicy, backoff_ns, classify, classify_stream, last_words
from agentprof.wire.figures import failure as stream_failure
from agentprof.wire.figures import measure
from agentprof.wire.transport import StampingTransport


def api_key(backend: Backend) -> str | None:
    """The backend's key from the environment, without space around it; None where the backend needs none.

    Raises InputError if the variable is unset, or holds what no header can carry; what it holds is never shown.
    """
    if backend.api_key_env is None:
        return None
    key = os.environ.get(backend.api_key_env, "").strip()
    if not key:
        raise InputError(
            f'backend "{backend.name}": the environment variable {backend.api_key_env} is not set; '
            f"export it, or remove api_key_env if the server needs no key."
        )
    if not (key.isascii() and key.isprintable()):
        raise InputError(
            f'backend "{backend.name}": the environment variable {backend.api_key_env} holds a line break or another '
            f"character that no key has (what it holds isn't shown); set it again."
        )
    return key


class ChatClient:
    """Calls one backend. Keep one per run: it owns the connection pool. Close it when done.

    `engine` and `retry` may be set between calls, once more is known of the server.
    """

    def __init__(
        self,
        backend: Backend,
        engine: Engine,
        *,
        retry: RetryPolicy | None = None,
        transport: StampingTransport | None = None,
    ) -> None:
        self.backend = backend
        self.engine = engine
        self.retry = retry or RetryPolicy()
        self._key = api_key(backend)
        # The openai client would tell every server whose account OPENAI_ORG_ID and its like name, and send another
        # account's Authorization where OPENAI_CUSTOM_HEADERS holds one.
        omitted = ("OpenAI-Organization", "OpenAI-Project", "Authorization")
        self._headers: dict[str, Any] = {name: openai.Omit() for name in omitted} | self.authorization
        self._openai = openai.AsyncOpenAI(
            api_key=self._key or "none",
            base_url=backend.base_url,
            max_retries=0,
            timeout=None,
            http_client=httpx2.AsyncClient(transport=transport or StampingTransport()),
        )
        parts = urlsplit(backend.base_url)
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authorization(self) -> dict[str, str]:
        """The header that carries the backend's key; empty where it needs none."""
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    async def close(self) -> None:
        """Close the connections."""
        await self._openai.close()

    async def call(
        self,
        request: ChatRequest,
        *,
        recorder: Recorder,
        parent: SpanRef,
        prepared_from_ns: int,
        on_phase: Callable[[str], None] | None = None,
        on_events: Callable[[int], None] | None = None,
    ) -> CallResult:
        """Make one call and record its spans, `prepare` included, which began at `prepared_from_ns`.

        Raises CallError when it failed for good, after its retries. Whatever happens, cancellation included, the
        call's spans are recorded exactly once.
        """
        trace = CallTrace(recorder.reserve(), parent, prepared_from_ns, request, self.backend, (self.host, self.port))
        try:
            while True:
                attempt = Attempt(Exchange(on_events=on_events), now_ns())
                trace.attempts.append(attempt)
                if on_phase is not None:
                    on_phase("waiting for the model")
                await self._attempt(request, attempt, trace.ref.traceparent)
                if attempt.failure is None:
                    break
                wait_ns = backoff_ns(attempt.failure, len(trace.attempts), self.retry)
                if wait_ns is None:
                    break
                if on_phase is not None:
                    on_phase(f"retry in {wait_ns / 1e9:.1f} s: {attempt.failure.kind}")
                await asyncio.sleep(wait_ns / 1e9)
        except asyncio.CancelledError:
            trace.cancel(now_ns())
            raise
        finally:
            record_call(trace, recorder)
        last = trace.attempts[-1]
        if last.failure is not None:
            message = last_words(last.failure, len(trace.attempts), self.retry)
            raise CallError(last.failure.kind, f'backend "{self.backend.name}": {message}', last.end_ns)
        return trace.result()

    async def _attempt(self, request: ChatRequest, attempt: Attempt, traceparent: str) -> None:
        """Send one request; leaves the reply or the failure in `attempt`."""
        exchange = attempt.exchange
        EXCHANGE.set(exchange)
        # Not through `chat.completions.create`: it copies every message through its types, which takes longer with each
        # step of a session than all the rest of a call. The response is kept by the exchange.
        path = "/chat/completions" if request.prompt is None else "/completions"
        try:
            await self._openai.post(
                path,
                cast_to=httpx2.Response,
                content=_json(self._fields(request)),
                options={"headers": {"traceparent": traceparent, **self._headers}},
            )
        except (openai.APIError, httpx2.HTTPError) as error:
            attempt.fail(classify(error, exchange, self.address, self._key), now_ns())
            return
        attempt.end_ns = exchange.ended_ns or now_ns()
        attempt.reply = await _assemble(exchange)
        failed = stream_failure(attempt.reply, has_clean_eof=exchange.has_clean_eof)
        if failed is not None:
            attempt.failure = classify_stream(failed, exchange, self.address, self._key)
        attempt.figures = measure(
            attempt.reply,
            start_ns=attempt.start_ns,
            end_ns=attempt.end_ns,
            forced_tokens=request.forced_tokens,
        )

    def _fields(self, request: ChatRequest) -> dict[str, Any]:
        """The request's body; what the backend's `extra_body` names stands above the rest."""
        fields: dict[str, Any] = {
            "model": self.backend.model,
            **({"messages": list(request.messages)} if request.prompt is None else {"prompt": request.prompt}),
            "stream": True,
            "stream_options": dialects.stream_options(self.engine),
            "max_tokens": request.forced_tokens or request.max_tokens,
        }
        if request.tools:
            fields["tools"] = list(request.tools)
            # Under a forced length nobody runs the calls, and a parser that waits for one withholds tokens.
            fields["tool_choice"] = "none" if request.forced_tokens is not None else "auto"
        if request.temperature is not None:
            fields["temperature"] = request.temperature
        if request.seed is not None:
            fields["seed"] = request.seed
        return fields | dialects.request_fields(self.engine, request) | self.backend.extra_body


def _json(body: Mapping[str, Any]) -> bytes:
    """A request's body as JSON."""
    try:
        return orjson.dumps(body)
    except TypeError:  # half a surrogate pair in a text, or a number beyond 64 bits
        return json.dumps(body).encode()


async def _assemble(exchange: Exchange) -> Reply:
    """Parse a kept body, letting other streams' reads be stamped in between."""
    steps = assemble_in_steps(exchange.body, exchange.reads)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            reply: Reply = end.value
            return reply
        await asyncio.sleep(0)
