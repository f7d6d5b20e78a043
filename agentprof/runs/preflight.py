"""Before a run: is each backend there, what is it, and does it answer? Ready means one real completion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
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
_MODELS = "/v1/models"
_SIDE_LIMIT_S = 10
_MOST_NAMES = 5
READY_LIMIT_S = 600
"""How long a server may take to load its model and answer."""

_PING = ChatRequest(messages=({"role": "user", "content": "ping"},), tools=(), max_tokens=1, temperature=0.0)

_UNREACHABLE = "Is the server up, and is base_url right (it usually ends in /v1)?"
_ADVICE = {
    "refused": _UNREACHABLE,
    "connect_timeout": _UNREACHABLE,
    "unreachable": _UNREACHABLE,
    "not_http": "Is base_url right, http or https included?",
    "not_a_stream": "Does the server stream chat completions (stream: true)?",
    "disconnected": "Is base_url right, http or https included?",
    "dns": "Is base_url right?",
    "tls": "Is base_url right (http or https), and is its certificate trusted here?",
    "http_401": "Check api_key_env and the key that it names.",
    "http_403": "Check api_key_env and the key that it names.",
    "http_404": "Is the model's name right, and does base_url end as it should (usually /v1)?",
    "http_429": "The server is busy or a quota is used up: try again later.",
}
_FAULTY_SERVER = "The server's own log should say why."
_OTHERWISE = "Does the server speak the OpenAI chat completions API?"


class PreflightError(BackendError):
    """A backend can't be used, found before anything ran."""

    exit_code = ExitCode.BAD_INPUT


async def fingerprint(backend: Backend) -> Fingerprint:
    """What answers at a backend. Endpoints that aren't there are no error."""
    parts = urlsplit(backend.base_url)
    root = urlunsplit((parts.scheme, parts.netloc, parts.path.removesuffix("/").removesuffix("/v1"), "", ""))
    return identify(await _ask(backend, {path: root + path for path in _SIDE_PATHS} | _models_url(backend)))


def _models_url(backend: Backend) -> dict[str, str]:
    return {_MODELS: backend.base_url.rstrip("/") + "/models"}


async def _ask(backend: Backend, urls: Mapping[str, str]) -> dict[str, Any]:
    """What those of the URLs answer that answer with 200 and JSON."""
    key = api_key(backend)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=_SIDE_LIMIT_S)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        answers = await asyncio.gather(*(_get(session, url) for url in urls.values()))
    return {path: answer for path, answer in zip(urls, answers, strict=True) if answer is not None}


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


async def make_ready(
    backend: Backend, on_wait: Callable[[str], None], *, limit_s: float = READY_LIMIT_S
) -> tuple[ChatClient, Fingerprint]:
    """A client whose backend has answered a real completion, and the backend's fingerprint.

    Waits while a server says that it is loading, or says nothing, `limit_s` seconds at most. Raises PreflightError, one
    line, when it can't be used.
    """
    client = ChatClient(backend, "openai", retry=RetryPolicy(attempts=1))
    try:
        async with asyncio.timeout(limit_s) as limit:
            await _wait_until_ready(client, on_wait)
        found = await fingerprint(backend)
        if found.engine == "llama.cpp":
            await _check_model(backend)
    except TimeoutError:
        await client.close()
        if not limit.expired():
            raise
        raise PreflightError(
            f'backend "{backend.name}": no completion from {client.address} within {limit_s:g} s. Is it still loading?'
        ) from None
    except BaseException:  # cancellation too: the client has connections
        await client.close()
        raise
    client.engine = found.engine
    client.retry = RetryPolicy()
    return client, found


async def _check_model(backend: Backend) -> None:
    """llama.cpp answers to any model name; another server's would be a 404. Raises PreflightError."""
    served = await _served_models(backend)
    if served and backend.model not in served:
        raise PreflightError(
            f'backend "{backend.name}": there is no model "{backend.model}" at {backend.base_url}. '
            f"It serves: {', '.join(served[:_MOST_NAMES])}."
        )


async def _wait_until_ready(client: ChatClient, on_wait: Callable[[str], None]) -> None:
    """Ping until a completion comes; the first call also warms the client itself up."""
    while True:
        try:
            await ping(client)
        except CallError as error:
            if error.kind != "loading":
                raise PreflightError(await _explain(client, error)) from None
            on_wait(f'backend "{client.backend.name}" is loading its model')
            await asyncio.sleep(1)
        else:
            return


async def _explain(client: ChatClient, error: CallError) -> str:
    """The error in one line, with what to do."""
    otherwise = _FAULTY_SERVER if error.kind.startswith("http_5") else _OTHERWISE
    advice = _ADVICE.get(error.kind, otherwise)
    if error.kind == "http_404" and (served := await _served_models(client.backend)):
        names = ", ".join(served[:_MOST_NAMES]) + (", …" if len(served) > _MOST_NAMES else "")
        advice = f"It serves: {names}." if client.backend.model not in served else advice
    end = "" if error.message.endswith("?") else "."
    return f"{error.message.rstrip('.')}{end} {advice}"


async def _served_models(backend: Backend) -> list[str]:
    answers = await _ask(backend, _models_url(backend))
    data = answers[_MODELS].get("data") if isinstance(answers.get(_MODELS), dict) else None
    models = data if isinstance(data, list) else []
    return [model["id"] for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)]
