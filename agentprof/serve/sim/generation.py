"""One request for a completion, from its arrival to its last byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from agentprof.clock import now_ns
from agentprof.serve.sim.arrivals import Arrivals, client_port
from agentprof.serve.sim.cache import PrefixCache, extend_keys
from agentprof.serve.sim.chunks import KEEP_ALIVE, MALFORMED, Frame, Heading, Shaper
from agentprof.serve.sim.counters import Counters
from agentprof.serve.sim.deadlines import Deadlines
from agentprof.serve.sim.faults import choose_fault, refuse
from agentprof.serve.sim.outbox import Outbox
from agentprof.serve.sim.profile import Fault, Profile
from agentprof.serve.sim.replies import Plan, plan_reply
from agentprof.serve.sim.reports import Account, error_body, gateway_headers, report, usage
from agentprof.serve.sim.requests import Asked, Refused, check_context, read_body, understand
from agentprof.serve.sim.slots import Slots
from agentprof.serve.sim.timing import Pace
from agentprof.serve.sim.tokens import token_id
from agentprof.serve.sim.truth import RequestTruth, TruthLog

_KEYS_PER_TURN = 256


@dataclass(slots=True)
class Served:
    """What all requests of one simulated server share."""

    profile: Profile
    seed: int
    time_scale: float
    pace: Pace
    cache: PrefixCache
    slots: Slots
    deadlines: Deadlines
    arrivals: Arrivals
    counters: Counters
    log: TruthLog
    started_ns: int = field(default_factory=now_ns)
    last_number: int = 0

    @property
    def age_ns(self) -> float:
        """Age in the profile's time."""
        return (now_ns() - self.started_ns) * self.time_scale


class _Broken(Exception):  # noqa: N818  a fault that the profile asks for
    """The connection is to be closed here, with nothing more said."""


class Generation:
    """The life of one request. `answer` runs it; its truth goes into the log whatever happens."""

    def __init__(self, served: Served, request: web.Request, is_chat: bool) -> None:
        served.last_number += 1
        self._served, self._request, self._is_chat = served, request, is_chat
        self._account = Account()
        self._truth = RequestTruth(served.last_number, request.path, now_ns())
        self._truth.request_id = request.headers.get("X-Request-Id") or f"{served.seed}-{served.last_number}"
        self._truth.traceparent = request.headers.get("traceparent", "")
        self._truth.client_port = client_port(request.transport)
        self._fault: Fault | None = None

    async def answer(self) -> web.StreamResponse:
        """Answer the request."""
        try:
            return await self._answer()
        except Refused as refused:
            return await self._refuse(refused)
        except _Broken:
            if self._request.transport is not None:
                self._request.transport.close()
            raise ConnectionResetError("closed, as the profile wants it") from None
        except (asyncio.CancelledError, ConnectionError):
            self._truth.disconnected_ns = now_ns()
            raise
        finally:
            self._note_end()

    async def _answer(self) -> web.StreamResponse:
        served, truth = self._served, self._truth
        raw = await self._request.read()
        truth.body_ns = now_ns()
        truth.arrived_ns = served.arrivals.last_read_ns(truth.client_port) or truth.body_ns
        transport = self._request.transport
        if transport is not None and transport.get_extra_info("sslcontext") is None:
            transport.set_write_buffer_limits(high=0)  # uvloop then writes at once instead of after this turn
        self._fault = choose_fault(served.profile.faults, served.seed, truth.number, served.age_ns)
        await self._meet_early_fault()
        asked = understand(read_body(raw), served.profile.model, self._is_chat)
        check_context(asked, served.profile.context_tokens, served.profile.engine)
        truth.is_stream = asked.streams
        self._account.prompt_tokens = len(asked.prompt)
        plan = plan_reply(asked, served.profile, served.seed)
        self._account.reasoning_tokens = plan.reasoning_tokens
        truth.finish = plan.finish
        self._account.queue_start_ns = truth.body_ns + round(served.pace.gateway)
        truth.gateway_ns = round(served.pace.gateway)
        await served.deadlines.until(self._account.queue_start_ns)
        return await (self._stream(asked, plan) if asked.streams else self._reply_whole(asked, plan))

    async def _meet_early_fault(self) -> None:
        fault = self._fault
        if fault is None:
            return
        refused = refuse(fault)
        if refused is not None:
            self._truth.fault = f"{fault.kind}_{refused.status}" if fault.kind == "http" else fault.kind
            raise refused
        if fault.kind == "drop":
            self._truth.fault = fault.kind
            raise _Broken
        if fault.kind == "hang":
            self._truth.fault = fault.kind
            await asyncio.Event().wait()

    async def _stream(self, asked: Asked, plan: Plan) -> web.StreamResponse:
        served, profile = self._served, self._served.profile
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers | self._own_headers())
        if profile.closes_streams:
            response.force_close()
        response.enable_chunked_encoding()
        await response.prepare(self._request)
        self._truth.headers_ns, self._truth.status = now_ns(), 200
        shaper = Shaper(plan, asked, profile.stream, profile.reasoning_field, self._heading(), self._end_report)
        outbox = Outbox(self._request, profile.stream, self._truth)
        period_ns = round((profile.stream.keep_alive or 0) / served.time_scale)
        pings = asyncio.create_task(self._keep_alive(outbox, period_ns)) if period_ns else None
        try:
            outbox.send(shaper.open())
            end_ns = await self._run(asked, plan, lambda start, end: self._send_step(outbox, shaper, start, end))
            await served.deadlines.until(end_ns)
            outbox.send(shaper.finish())
        except _StreamError:
            outbox.send([shaper.error("The engine failed in the middle of the stream."), *shaper.done()])
        finally:
            if pings is not None:
                pings.cancel()
        outbox.flush()
        await response.write_eof()
        return response

    def _send_step(self, outbox: Outbox, shaper: Shaper, start: int, end: int) -> None:
        match self._take_late_fault(start):
            case "disconnect":
                outbox.flush()
                raise _Broken
            case "malformed":
                outbox.send([Frame(MALFORMED, "m")])
            case "error_event":
                raise _StreamError
        outbox.send(shaper.step(start, end))

    async def _reply_whole(self, asked: Asked, plan: Plan) -> web.StreamResponse:
        def send(start: int, _: int) -> None:
            match self._take_late_fault(start):
                case "disconnect":
                    raise _Broken
                case "error_event":
                    raise Refused(500, "InternalServerError", "The engine failed on this request.")

        end_ns = await self._run(asked, plan, send)
        await self._served.deadlines.until(end_ns)
        field_name = self._served.profile.reasoning_field
        body = orjson.dumps(whole_reply(asked, plan, self._heading(), field_name, self._end_report()))
        if self._truth.fault == "malformed":
            body = body[: len(body) // 2]
        return await self._send_json(200, body, {})

    def _take_late_fault(self, done_tokens: int) -> str | None:
        """The fault that strikes once this many tokens are out, once."""
        fault = self._fault
        if fault is None or fault.kind == "stall" or done_tokens < fault.after_tokens:
            return None
        self._truth.fault, self._fault = fault.kind, None
        return fault.kind

    async def _run(self, asked: Asked, plan: Plan, send: Callable[[int, int], None]) -> int:
        """Queue, prefill and decode against absolute deadlines; returns the deadline of the response's end."""
        served, account = self._served, self._account
        keys: list[bytes] = []
        while len(keys) < len(asked.prompt) // served.cache.block_tokens:
            extend_keys(keys, asked.prompt, served.cache.block_tokens, asked.salt, _KEYS_PER_TURN)
            await asyncio.sleep(0)
        account.queue_end_ns = due_ns = await served.slots.acquire(account.queue_start_ns)
        try:
            due_ns = await self._prefill(keys, plan, due_ns)
            due_ns = await self._decode(asked, plan, send, due_ns)
        finally:
            served.slots.release(due_ns if account.last_token_ns else now_ns())
        extend_keys(keys, asked.prompt + plan.pieces[:-1], served.cache.block_tokens, asked.salt)
        served.cache.insert(keys)
        served.counters.add_finished(account, plan.finish, self._truth.body_ns)
        self._truth.injected_ns += round(served.profile.inject.tail / served.time_scale)
        return due_ns + round(served.pace.tail)

    async def _prefill(self, keys: list[bytes], plan: Plan, start_ns: int) -> int:
        served, account = self._served, self._account
        account.cached_tokens = served.cache.lookup(keys, account.prompt_tokens)
        served.counters.add_lookup(account.prompt_tokens, account.cached_tokens)
        uncached = account.prompt_tokens - account.cached_tokens
        due_ns = start_ns + served.pace.prefill_ns(uncached, account.cached_tokens, plan.random)
        await served.deadlines.until(due_ns)
        account.prefill_end_ns = account.first_token_ns = now_ns()
        served.cache.insert(keys)
        if served.pace.inject_first_token:
            due_ns += round(served.pace.inject_first_token)
            self._truth.injected_ns += round(served.pace.inject_first_token)
            await served.deadlines.until(due_ns)
            account.first_token_ns = now_ns()
        return due_ns

    async def _decode(self, asked: Asked, plan: Plan, send: Callable[[int, int], None], due_ns: int) -> int:
        served, account = self._served, self._account
        pace, slots, deadlines = served.pace, served.slots, served.deadlines
        drafts = served.profile.speculation.draft_tokens if served.profile.speculation else 0
        context, extra = len(asked.prompt), pace.inject_decode / max(1, len(plan.steps) - 1)
        last, done = len(plan.steps) - 1, 0
        for number, length in enumerate(plan.steps):
            if number:
                due_ns += pace.step_ns(context + done, slots.running - 1, plan.random) + round(extra)
                self._truth.injected_ns += round(extra)
            due_ns += self._stall_ns(done)
            await deadlines.until(due_ns)
            if number:
                account.decode_steps += 1
                account.draft_tokens += drafts
                account.accepted_draft_tokens += length - 1 if drafts else 0
                if drafts:
                    served.counters.accepted_at.update(range(length - 1))
            done += length
            account.output_tokens = done
            if number == last:
                account.last_token_ns = now_ns()
            send(done - length, done)
        if not plan.steps:
            account.last_token_ns = account.first_token_ns
        return due_ns

    def _stall_ns(self, done_tokens: int) -> int:
        fault = self._fault
        if fault is None or fault.kind != "stall" or done_tokens < fault.after_tokens:
            return 0
        self._truth.fault, self._fault = fault.kind, None
        return round(fault.duration / self._served.time_scale)

    async def _keep_alive(self, outbox: Outbox, period_ns: int) -> None:
        while True:
            due_ns = outbox.last_write_ns + period_ns
            if due_ns <= now_ns():
                outbox.send([Frame(KEEP_ALIVE, "k")])
            await self._served.deadlines.until(max(due_ns, now_ns() + 1))

    def _end_report(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return usage(self._account), report(self._served.profile.report_style, self._account)

    def _heading(self) -> Heading:
        profile = self._served.profile
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        fingerprint = "b0-simulated" if profile.engine == "llama.cpp" else ""
        return Heading(f"{prefix}-{self._truth.request_id}", int(time.time()), profile.model, fingerprint)

    def _own_headers(self) -> dict[str, str]:
        gateway = gateway_headers(self._served.profile.gateway, self._served.pace.gateway)
        return {"X-Request-Id": self._truth.request_id} | gateway

    async def _refuse(self, refused: Refused) -> web.StreamResponse:
        engine = self._served.profile.engine
        body = error_body(refused.status, refused.kind, refused.message, engine, refused.extra)
        retry_after = self._fault.retry_after if self._fault is not None else None
        headers = {"Retry-After": retry_after} if retry_after is not None else {}
        return await self._send_json(refused.status, orjson.dumps(body), headers)

    async def _send_json(self, status: int, body: bytes, headers: dict[str, str]) -> web.StreamResponse:
        response = web.Response(
            status=status, body=body, content_type="application/json", headers=self._own_headers() | headers
        )
        self._truth.status, self._truth.headers_ns = status, now_ns()
        await response.prepare(self._request)
        await response.write_eof()
        return response

    def _note_end(self) -> None:
        truth, account = self._truth, self._account
        truth.finish_ns = now_ns()
        for name in Account.__dataclass_fields__:
            setattr(truth, name, getattr(account, name))
        truth.prefill_start_ns = account.queue_end_ns
        self._served.log.write(truth)


class _StreamError(Exception):
    """An error event is to be sent here."""


def whole_reply(
    asked: Asked, plan: Plan, heading: Heading, reasoning_field: str, ending: tuple[dict[str, Any], dict[str, Any]]
) -> dict[str, Any]:
    """The body of a response that isn't streamed."""
    used, reported = ending
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": plan.finish}
    if asked.is_chat:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": plan.arguments(call)}}
            for call in plan.calls
        ]
        message: dict[str, Any] = {"role": "assistant", "content": plan.text("c") or (None if calls else "")}
        if plan.reasoning_tokens:
            message[reasoning_field] = plan.text("r")
        if calls:
            message["tool_calls"] = calls
        choice["message"] = message
    else:
        choice["text"] = plan.text("c")
    own: dict[str, Any] = {}
    if asked.wants_token_ids:
        choice["token_ids"] = [token_id(piece) for piece in plan.pieces]
        own["prompt_token_ids"] = [token_id(piece) for piece in asked.prompt]
    if heading.fingerprint:
        own["system_fingerprint"] = heading.fingerprint
    kind = "chat.completion" if asked.is_chat else "text_completion"
    head = {"id": heading.id, "object": kind, "created": heading.created, "model": heading.model}
    return {**head, "choices": [choice], "usage": used, **own, **reported}
