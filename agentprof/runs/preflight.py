"""Before a run: is each backend there, what is it, and does it answer? Ready means one real completion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import orjson

from agentprof.clock import now_ns
from agentprof.errors import BackendError, CallError, ExitCode
from agentprof.records.backend import Backend, Fingerprint
from agentprof.records.call import ChatRequest
from agentprof.records.spans import ListRecorder
from agentprof.wire.client import ChatClient, api_key
from agentprof.wire.dialects import identify
from agentprof.wire.failures import RetryPolicy

_SIDE_PATHS = ("/props", "/version", "/server_info", "/health/readiness")
_LOADING_LIMIT_S = 600
_PING = ChatRequest(messages=({"role": "user", "content": "ping"},), tools=(), max_tokens=1, temperature=0.0)

_ADVICE = {
    "refused": "Is the server up, and is base_url right (it usually ends in /v1)?",
    "connect_timeout": "Is the server up, and is base_url right (it usually ends in /v1)?",
    "dns": "Is base_url right?",
    "tls": "Is base_url right (http or https), and is its certificate trusted here?",
    "http_401": "Check api_key_env and the key that it names.",
    "http_403": "Check api_key_env and the key that it names.",
    "http_404": "Is the model's name right, and does base_url end as it should (usually /v1)?",
}


class PreflightError(BackendError):
    """A backend can't be used, found before anything ran."""

    exit_code = ExitCode.BAD_INPUT


async def fingerprint(backend: Backend) -> Fingerprint:
    """What answers at a backend. Endpoints that aren't there are no error."""
    parts = urlsplit(backend.base_url)
    root = urlunsplit((parts.scheme, parts.netloc, parts.path.removesuffix("/").removesuffix("/v1"), "", ""))
    key = api_key(backend)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    urls = {path: root + path for path in _SIDE_PATHS} | {"/v1/models": backend.base_url.rstrip("/") + "/models"}
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        answers = await asyncio.gather(*(_get(session, url) for url in urls.values()))
    return identify({path: answer for path, answer in zip(urls, answers, strict=True) if answer is not None})


async def _get(session: aiohttp.ClientSession, url: str) -> Any:
    try:
        async with session.get(url) as response:
            return orjson.loads(await response.read()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


async def ping(client: ChatClient) -> None:
    """One real completion of one token, its spans dropped. Raises CallError."""
    recorder = ListRecorder()
    await client.call(_PING, recorder=recorder, parent=recorder.reserve(), prepared_from_ns=now_ns())


async def make_ready(backend: Backend, on_wait: Callable[[str], None]) -> tuple[ChatClient, Fingerprint]:
    """A client whose backend has answered a real completion, and the backend's fingerprint.

    Waits while a server says that it is loading, ten minutes at most. Raises PreflightError, one line, otherwise.
    """
    client = ChatClient(backend, "openai", retry=RetryPolicy(attempts=1))
    try:
        await _wait_until_ready(client, on_wait)
        found = await fingerprint(backend)
    except BaseException:
        await client.close()
        raise
    client.engine = found.engine
    client.retry = RetryPolicy()
    return client, found


async def _wait_until_ready(client: ChatClient, on_wait: Callable[[str], None]) -> None:
    """Ping until a completion comes; the first call also warms the client itself up."""
    started_ns = now_ns()
    while True:
        try:
            await ping(client)
        except CallError as error:
            if error.kind == "loading" and now_ns() - started_ns < _LOADING_LIMIT_S * 10**9:
                on_wait(f'backend "{client.backend.name}" is loading its model')
                await asyncio.sleep(1)
                continue
            advice = _ADVICE.get(error.kind, "Does the server speak the OpenAI chat completions API?")
            raise PreflightError(f"{error.message.rstrip('.')}. {advice}") from None
        return
