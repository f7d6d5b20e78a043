"""Requests that are written at once, and closing responses whose last bytes must not get lost."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Awaitable
from typing import Any

import httpx2
import pytest
from live_calls import LOOPS, REPLY, run
from scripted_server import LAST_CHUNK, Do, ScriptedServer, chunk, head
from timeline import DONE

from agentprof.wire.eager_request import _begun
from agentprof.wire.exchange import EXCHANGE, Exchange
from agentprof.wire.transport import StampingTransport

both_loops = pytest.mark.parametrize("loop", LOOPS)
CLOSING = head("200 OK", "Transfer-Encoding: chunked", "Connection: close")


async def post(transport: StampingTransport, url: str, content: bytes) -> tuple[Exchange, bytes]:
    exchange = Exchange()
    EXCHANGE.set(exchange)
    response = await transport.handle_async_request(httpx2.Request("POST", url, content=content))
    body = b"".join([piece async for piece in response.stream])
    await response.aclose()
    return exchange, body


@both_loops
@pytest.mark.parametrize("has_pause", [True, False], ids=["the end alone", "the end with the last token"])
def test_a_server_that_closes_after_the_stream_loses_nothing(loop: str, has_pause: bool) -> None:
    first, *rest = (chunk(piece) for piece in REPLY)
    last = [*rest, 0.05, chunk(DONE) + LAST_CHUNK] if has_pause else [b"".join(rest) + chunk(DONE) + LAST_CHUNK]
    with ScriptedServer([[CLOSING, 0.05, first, 0.05, *last, Do.CLOSE]]) as server:

        async def main() -> list[tuple[Exchange, bytes]]:
            transport = StampingTransport()
            try:
                return [await post(transport, server.url + "/x", b"{}") for _ in range(3)]
            finally:
                await transport.aclose()

        answers = run(main(), loop)
    for exchange, body in answers:
        assert body == b"".join(REPLY) + DONE
        assert exchange.has_clean_eof


@both_loops
def test_a_request_is_on_its_way_before_others_get_their_turn(loop: str) -> None:
    with ScriptedServer([[CLOSING + chunk(DONE) + LAST_CHUNK, Do.CLOSE]]) as server:

        async def main() -> list[Exchange]:
            transport = StampingTransport()
            await post(transport, server.url + "/x", b"{}")
            is_over = False

            async def hog() -> None:
                while not is_over:
                    threading.Event().wait(0.4)  # holds the event loop, as building a large request does
                    await asyncio.sleep(0)

            hogging = asyncio.create_task(hog())
            exchanges = [(await post(transport, server.url + "/x", b"{}"))[0] for _ in range(2)]
            is_over = True
            await hogging
            await transport.aclose()
            return exchanges

        exchanges = run(main(), loop)
    for exchange in exchanges:
        assert exchange.connected_ns is not None
        assert exchange.sent_ns is not None
        assert exchange.sent_ns - exchange.connected_ns < 400_000_000  # less than one turn of the hog


@both_loops
def test_a_request_is_sent_before_the_server_has_it(loop: str) -> None:
    with ScriptedServer([[CLOSING + chunk(DONE) + LAST_CHUNK, Do.CLOSE]]) as server:

        async def main() -> list[Exchange]:
            transport = StampingTransport()
            try:
                return [(await post(transport, server.url + "/x", b"{}" * 500))[0] for _ in range(20)]
            finally:
                await transport.aclose()

        exchanges = run(main(), loop)
        arrived = [received.arrived_ns for received in server.requests]
    for exchange, arrived_ns in zip(exchanges, arrived, strict=True):
        assert exchange.sent_ns is not None
        assert exchange.connected_ns is not None
        assert exchange.connected_ns <= exchange.sent_ns <= arrived_ns


@both_loops
def test_a_large_body_that_the_server_takes_slowly_arrives_whole(loop: str) -> None:
    content = bytes(range(256)) * 40_000
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    taken = bytearray()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            while len(taken) < len(content) or not taken.endswith(content[-1000:]):
                taken.extend(connection.recv(65_536))
                threading.Event().wait(0.001)
            connection.sendall(CLOSING + chunk(DONE) + LAST_CHUNK)

    thread = threading.Thread(target=serve)
    thread.start()

    async def main() -> tuple[Exchange, bytes]:
        transport = StampingTransport()
        try:
            return await post(transport, f"http://127.0.0.1:{listener.getsockname()[1]}/x", content)
        finally:
            await transport.aclose()

    exchange, body = run(main(), loop)
    thread.join()
    listener.close()
    assert taken.partition(b"\r\n\r\n")[2] == content
    assert body == DONE
    assert exchange.sent_ns is not None
    assert exchange.connected_ns is not None
    assert exchange.sent_ns - exchange.connected_ns > 10_000_000


def finish(work: Awaitable[None]) -> None:
    async def awaited() -> None:
        await work

    asyncio.run(awaited())


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="aiohttp starts its writer eagerly by itself")
class TestBegun:
    def test_runs_until_it_first_waits(self) -> None:
        said: list[str] = []

        async def work() -> None:
            said.append("begun")
            await asyncio.sleep(0.01)
            await asyncio.sleep(0)
            said.append("ended")

        async def main() -> None:
            rest = _begun(work())
            assert said == ["begun"]
            await rest

        asyncio.run(main())
        assert said == ["begun", "ended"]

    def test_what_never_waits_is_over_at_once(self) -> None:
        said: list[str] = []

        async def work() -> None:
            said.append("all")

        rest = _begun(work())
        assert said == ["all"]
        finish(rest)

    def test_errors_come_out_now_or_later(self) -> None:
        async def at_once() -> None:
            raise ValueError("now")

        async def later() -> None:
            await asyncio.sleep(0.001)
            raise ValueError("later")

        async def main() -> None:
            with pytest.raises(ValueError, match="now"):
                _begun(at_once())
            rest = _begun(later())
            with pytest.raises(ValueError, match="later"):
                await rest

        asyncio.run(main())

    def test_cancellation_and_results_reach_it(self) -> None:
        said: list[Any] = []

        async def work(future: asyncio.Future[str]) -> None:
            said.append(await future)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                said.append("cancelled")
                raise

        async def main() -> None:
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(_begun(work(future)))
            await asyncio.sleep(0)
            future.set_result("came")
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert said == ["came", "cancelled"]
