"""Before a run: a backend that can be used, and one clear line for every kind that can't."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from aiohttp import web
from tiny_server import TinyServer, error, serve, tiny_server

from agentprof.errors import ExitCode, InputError
from agentprof.records.backend import Backend, Fingerprint
from agentprof.runs.preflight import PreflightError, make_ready

KEY = "sk-tests-0123456789abcdef"


def backend(base_url: str, model: str = "tiny", **more: str) -> Backend:
    return Backend(name="new", base_url=base_url, model=model, **more)


def prepare(target: Backend, limit_s: float = 20) -> tuple[Fingerprint, list[str]]:
    """The fingerprint, and what was waited for."""
    waited: list[str] = []

    async def run() -> Fingerprint:
        client, found = await make_ready(target, waited.append, limit_s=limit_s)
        await client.close()
        return found

    return asyncio.run(run()), waited


def refused(target: Backend, limit_s: float = 20) -> str:
    """The one line of a backend that can't be used."""
    with pytest.raises(PreflightError) as caught:
        prepare(target, limit_s)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith('backend "new": ')
    return text


def test_a_server_is_ready_after_one_real_completion() -> None:
    with tiny_server() as tiny:
        found, waited = prepare(backend(tiny.base_url))
    assert (found.engine, found.settings, waited) == ("openai", {"owned_by": "tests"}, [])
    assert [body["max_tokens"] for body in tiny.requests] == [1]
    assert "Authorization" not in tiny.headers[0]


def test_a_dead_server() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    text = refused(backend(f"http://127.0.0.1:{port}/v1"))
    assert f"connection refused at 127.0.0.1:{port}. Is the server up, and is base_url right" in text


def test_a_host_that_is_unknown() -> None:
    assert "Is base_url right?" in refused(backend("http://no-such-host.invalid/v1"))


def test_a_wrong_model_is_told_which_there_are() -> None:
    with tiny_server(fault=lambda number: error(404, "The model `x` does not exist.")) as tiny:
        text = refused(backend(tiny.base_url, "x"))
    assert "HTTP 404" in text
    assert "The model `x` does not exist" in text
    assert text.endswith("It serves: tiny.")


def test_a_wrong_path() -> None:
    with tiny_server() as tiny:
        text = refused(backend(tiny.base_url.removesuffix("/v1")))
    assert "HTTP 404" in text
    assert "usually /v1" in text


def test_a_wrong_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_KEY", KEY)
    with tiny_server(fault=lambda number: error(401, f"Incorrect API key provided: {KEY}.")) as tiny:
        text = refused(backend(tiny.base_url, api_key_env="TINY_KEY"))
        assert tiny.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert "HTTP 401" in text
    assert text.endswith("Check api_key_env and the key that it names.")
    assert KEY not in text


def test_a_key_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINY_KEY", raising=False)
    with pytest.raises(InputError, match="the environment variable TINY_KEY is not set"):
        prepare(backend("http://127.0.0.1:9/v1", api_key_env="TINY_KEY"))


def test_the_key_goes_to_side_endpoints_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_KEY", KEY)
    asked: dict[str, str] = {}
    tiny = TinyServer()

    async def version(request: web.Request) -> web.Response:
        asked.update(request.headers)
        return web.json_response({"version": "0.11.2"})

    with serve({"POST /v1/chat/completions": tiny.chat, "GET /version": version}) as url:
        found, _ = prepare(backend(url + "/v1", api_key_env="TINY_KEY"))
    assert (found.engine, found.version) == ("vllm", "0.11.2")
    assert asked["Authorization"] == f"Bearer {KEY}"


def test_llama_cpp_answers_to_any_name_so_its_list_is_asked() -> None:
    tiny = TinyServer()

    async def props(request: web.Request) -> web.Response:
        return web.json_response({"default_generation_settings": {"n_ctx": 512}})

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "small"}]})

    routes = {"POST /v1/chat/completions": tiny.chat, "GET /props": props, "GET /v1/models": models}
    with serve(routes) as url:
        text = refused(backend(url + "/v1", model="nope"))
        found, _ = prepare(backend(url + "/v1", model="small"))
    assert 'there is no model "nope"' in text
    assert text.endswith("It serves: small.")
    assert found.engine == "llama.cpp"


def test_a_server_that_loads_is_waited_for() -> None:
    with tiny_server(fault=lambda number: error(503, "Loading model") if number == 0 else None) as tiny:
        _, waited = prepare(backend(tiny.base_url))
    assert waited == ['backend "new" is loading its model']
    assert len(tiny.requests) == 2


def test_a_server_that_loads_for_ever() -> None:
    with tiny_server(fault=lambda number: error(503, "Loading model")) as tiny:
        text = refused(backend(tiny.base_url), limit_s=1.5)
    assert "within 1.5 s" in text


def test_a_server_that_never_answers() -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    started = time.monotonic()
    with serve({"POST /v1/chat/completions": hang}) as url:
        text = refused(backend(url + "/v1"), limit_s=0.5)
    assert time.monotonic() - started < 10
    assert "no completion from 127.0.0.1:" in text


@pytest.mark.parametrize(
    ("status", "advice"),
    [(500, "The server's own log"), (429, "try again later"), (403, "api_key_env"), (418, "OpenAI chat completions")],
)
def test_other_refusals(status: int, advice: str) -> None:
    with tiny_server(fault=lambda number: error(status, "no")) as tiny:
        text = refused(backend(tiny.base_url))
    assert f"HTTP {status}" in text
    assert advice in text


def test_a_server_that_is_no_model_server() -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>hello</html>", content_type="text/html")

    with serve({"POST /v1/chat/completions": page}) as url:
        refused(backend(url + "/v1"))


def test_a_port_that_speaks_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        async def run() -> str:
            loop = asyncio.get_running_loop()

            def answer() -> None:
                connection, _ = listening.accept()
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                connection.close()

            answering = loop.run_in_executor(None, answer)
            with pytest.raises(PreflightError) as caught:
                await make_ready(backend(f"http://127.0.0.1:{port}/v1"), lambda message: None, limit_s=10)
            await answering
            return str(caught.value)

        text = asyncio.run(run())
    assert "\n" not in text
    assert str(port) in text
