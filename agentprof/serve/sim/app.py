"""The HTTP routes of a simulated server, and its life: start, serve, stop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from aiohttp import web

from agentprof.errors import InputError
from agentprof.serve.sim.arrivals import Arrivals, StampingRunner
from agentprof.serve.sim.cache import PrefixCache
from agentprof.serve.sim.counters import Counters
from agentprof.serve.sim.deadlines import Deadlines
from agentprof.serve.sim.faults import is_loading
from agentprof.serve.sim.generation import Generation, Served
from agentprof.serve.sim.profile import Profile
from agentprof.serve.sim.reports import error_body
from agentprof.serve.sim.requests import Refused, read_body
from agentprof.serve.sim.slots import Slots
from agentprof.serve.sim.timing import Pace
from agentprof.serve.sim.tls import HandshakeDelay, server_context
from agentprof.serve.sim.tokens import piece_of, render_chat, token_id, tokenize
from agentprof.serve.sim.truth import TruthLog

_MAX_BODY_BYTES = 256 * 1024 * 1024
VERSION = "0.33.0+simulated"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class SimOptions:
    """How a server is run. `port` 0 takes a free one. `log` None keeps no log."""

    host: str = "127.0.0.1"
    port: int = 0
    log: Path | None = None
    seed: int = 0
    time_scale: float = 1.0


async def serve_until(
    profile: Profile, options: SimOptions, on_ready: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Serve until `stop` is set; `on_ready` gets the base URL, which ends in /v1. Raises InputError."""
    async with running_app(profile, options) as base_url:
        on_ready(base_url)
        gc.collect()
        gc.freeze()  # what lives as long as the server isn't looked through again while streams run
        await stop.wait()


@asynccontextmanager
async def running_app(profile: Profile, options: SimOptions) -> AsyncIterator[str]:
    """A server on the running loop; gives its base URL."""
    if not 0 < options.time_scale < inf:
        raise InputError(f"time scale {options.time_scale:g}: must be a number above 0; 10 runs ten times as fast")
    served = Served(
        profile=profile,
        seed=options.seed,
        time_scale=options.time_scale,
        pace=Pace.of(profile, options.time_scale),
        cache=PrefixCache(profile.cache.block_tokens, profile.cache.blocks),
        slots=Slots(profile.slots),
        deadlines=Deadlines(),
        arrivals=Arrivals(),
        counters=Counters(profile.model),
        log=TruthLog(options.log),
    )
    context = server_context(profile.tls) if profile.tls else None
    runner = StampingRunner(
        build_app(served),
        served.arrivals,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=max(0.05, profile.idle_close / 1e9 / options.time_scale),
        shutdown_timeout=0.2,
    )
    await runner.setup()
    front: HandshakeDelay | None = None
    shown = f"[{options.host}]" if ":" in options.host else options.host
    try:
        delay_ns = round(profile.tls.handshake_delay / options.time_scale) if profile.tls else 0
        host, port = ("127.0.0.1", 0) if delay_ns else (options.host, options.port)
        await web.TCPSite(runner, host, port, ssl_context=context, backlog=1024).start()
        bound: int = runner.addresses[0][1]
        if delay_ns:
            front = HandshakeDelay(bound, delay_ns, served.deadlines)
            bound = await front.start(options.host, options.port)
        yield f"{'https' if context else 'http'}://{shown}:{bound}/v1"
    except OSError as error:
        raise InputError(f"{shown}:{options.port}: can't listen there: {error.strerror}.") from None
    finally:
        if front is not None:
            await front.stop()
        await runner.cleanup()
        served.deadlines.close()
        served.log.close()


def build_app(served: Served) -> web.Application:
    """The routes of the profile's engine."""
    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    profile = served.profile

    async def complete_chat(request: web.Request) -> web.StreamResponse:
        return await Generation(served, request, is_chat=True).answer()

    async def complete_text(request: web.Request) -> web.StreamResponse:
        return await Generation(served, request, is_chat=False).answer()

    async def health(_: web.Request) -> web.Response:
        if is_loading(profile, served.last_number + 1, served.age_ns):
            body = error_body(503, "unavailable_error", "Loading model", profile.engine, {})
            return web.json_response(body, status=503)
        return web.json_response({"status": "ok"}) if profile.engine == "llama.cpp" else web.Response()

    async def models(_: web.Request) -> web.Response:
        model = {"id": profile.model, "object": "model", "created": 0, "owned_by": "simulated"}
        if profile.engine == "vllm":
            model["max_model_len"] = profile.context_tokens
        return web.json_response({"object": "list", "data": [model]})

    async def metrics(_: web.Request) -> web.Response:
        slots, cache = served.slots, served.cache
        text = served.counters.render(slots.running, slots.waiting, len(cache), cache.blocks, cache.block_tokens)
        return web.Response(text=text, content_type="text/plain")

    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", complete_chat)
    app.router.add_post("/v1/completions", complete_text)
    if profile.engine != "openai":
        app.router.add_get("/metrics", metrics)
        app.router.add_post("/tokenize", _refusing(_tokenize, served))
        app.router.add_post("/detokenize", _refusing(_detokenize, served))
    if profile.engine == "vllm":
        app.router.add_get("/version", _constant({"version": VERSION}))
    if profile.engine == "llama.cpp":
        props = {"default_generation_settings": {"n_ctx": profile.context_tokens}, "total_slots": profile.slots or 1}
        app.router.add_get("/props", _constant(props | {"build_info": "b0-simulated", "model_alias": profile.model}))
    return app


def _constant(value: dict[str, Any]) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response(value)

    return handle


def _refusing(answer: Callable[[dict[str, Any], Profile], dict[str, Any]], served: Served) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return web.json_response(answer(read_body(await request.read()), served.profile))
        except Refused as refused:
            body = error_body(refused.status, refused.kind, refused.message, served.profile.engine, refused.extra)
            return web.json_response(body, status=refused.status)

    return handle


def _tokenize(body: dict[str, Any], profile: Profile) -> dict[str, Any]:
    """vLLM's `prompt` or `messages`, or llama.cpp's `content`."""
    if isinstance(body.get("content"), str):
        return {"tokens": [token_id(piece) for piece in tokenize(body["content"])]}
    if isinstance(body.get("messages"), list):
        pieces = render_chat(body["messages"], body.get("tools") or ())
    elif isinstance(body.get("prompt"), str):
        pieces = list(tokenize(body["prompt"]))
    else:
        raise Refused(400, "BadRequestError", "One of `prompt`, `messages` and `content` is needed.")
    ids = [token_id(piece) for piece in pieces]
    return {"count": len(ids), "max_model_len": profile.context_tokens, "tokens": ids, "token_strs": None}


def _detokenize(body: dict[str, Any], profile: Profile) -> dict[str, Any]:
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(type(number) is int for number in tokens):
        raise Refused(400, "BadRequestError", "`tokens` must be a list of token ids.", param="tokens")
    text = "".join(piece_of(number) for number in tokens)
    return {"content": text} if profile.engine == "llama.cpp" else {"prompt": text}
