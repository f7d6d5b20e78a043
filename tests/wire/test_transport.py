"""The transport against sockets that do what servers do: framings, endings, breaks, stale and shared connections."""

from __future__ import annotations

import asyncio
import errno
import gzip
import socket
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import httpx2
import pytest
from live_calls import LOOPS, REPLY, run, stream, until_closed
from scripted_server import (
    CHUNKED,
    LAST_CHUNK,
    Do,
    ScriptedServer,
    Step,
    answer,
    chunk,
    head,
)
from timeline import DONE, text

from agentprof.wire import transport as transport_module
from agentprof.wire.exchange import EXCHANGE, Exchange
from agentprof.wire.tls import tls_context
from agentprof.wire.transport import HandshakeError, NotHttpError, StampingTransport, UnknownHostError

BODY = b"".join(REPLY) + DONE
SHORT_BODY = text("some text")
both_loops = pytest.mark.parametrize("loop", LOOPS)


async def post(transport: StampingTransport, url: str, content: bytes = b"{}") -> tuple[Exchange, bytes]:
    """One request in a context of its own, its body read to the end."""
    exchange = Exchange()

    async def send() -> bytes:
        EXCHANGE.set(exchange)
        response = await transport.handle_async_request(httpx2.Request("POST", url, content=content))
        body = b"".join([piece async for piece in response.stream])
        await response.aclose()
        return body

    return exchange, await asyncio.create_task(send())


def play(server: ScriptedServer, main: Any, loop: str = "asyncio", **options: Any) -> Any:
    """Run `main(transport)` against the server, and close the transport."""

    async def whole() -> Any:
        transport = StampingTransport(**options)
        try:
            return await main(transport)
        finally:
            await transport.aclose()

    def start() -> Coroutine[Any, Any, Any]:
        return whole()

    with server:
        return run(start(), loop)


def fetch(
    *scripts: Sequence[Step], loop: str = "asyncio", times: int = 1, pause: float = 0.02
) -> tuple[ScriptedServer, list[Any]]:
    """Post so many times, one after another, with a moment between."""
    server = ScriptedServer(scripts)

    async def main(transport: StampingTransport) -> list[Any]:
        fetched = []
        for _ in range(times):
            fetched.append(await post(transport, server.url))
            await server.settle(pause)
        return fetched

    return server, play(server, main, loop)


def bytewise(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


FRAMINGS = {
    "chunked": [CHUNKED, *(chunk(event) for event in REPLY), chunk(DONE), LAST_CHUNK],
    "chunks that cut events": [CHUNKED + chunk(BODY[:7]), chunk(BODY[7:90]), chunk(BODY[90:]) + LAST_CHUNK],
    "chunk extensions and a trailer": [CHUNKED, b"%x;note=1\r\n%s\r\n" % (len(BODY), BODY), b"0\r\nX-End: 1\r\n\r\n"],
    "one packet": [CHUNKED + chunk(BODY) + LAST_CHUNK],
    "content-length": [head("200 OK", f"Content-Length: {len(BODY)}"), BODY[:50], 0.01, BODY[50:]],
    "until the connection closes": [until_closed(), BODY[:50], 0.01, BODY[50:], Do.CLOSE],
    "HTTP/1.0": [b"HTTP/1.0 200 OK\r\n\r\n" + BODY, Do.CLOSE],
    "byte by byte": bytewise(CHUNKED + chunk(BODY) + LAST_CHUNK),
    "headers in two packets": [CHUNKED[:20], 0.03, CHUNKED[20:], 0.03, chunk(BODY), LAST_CHUNK],
    "gzip": [
        head("200 OK", f"Content-Length: {len(gzip.compress(BODY))}", "Content-Encoding: gzip"),
        gzip.compress(BODY),
    ],
    "gzip in chunks": [
        head("200 OK", "Transfer-Encoding: chunked", "Content-Encoding: gzip"),
        *(chunk(piece) for piece in bytewise(gzip.compress(BODY))),
        LAST_CHUNK,
    ],
    "interim responses first": [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        0.03,
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
        0.03,
        CHUNKED + chunk(BODY) + LAST_CHUNK,
    ],
    "interim response in the same packet": [b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + chunk(BODY) + LAST_CHUNK],
}


class TestFraming:
    @both_loops
    @pytest.mark.parametrize("framing", FRAMINGS)
    def test_the_body_is_whole_and_stamped_the_second_time_too(self, framing, loop):
        server, fetched = fetch(FRAMINGS[framing], loop=loop, times=2)
        for (exchange, body), request, sent in zip(fetched, server.requests, server.sent, strict=True):
            assert body.rstrip() == BODY.rstrip()  # `[DONE]` ends it, whatever line ends come after
            assert exchange.has_clean_eof
            assert exchange.reads[-1].end == len(BODY)
            stamps = [read.at_ns for read in exchange.reads]
            assert stamps == sorted(stamps)
            assert request.arrived_ns < sent[0] < exchange.answered_ns <= stamps[0]
            assert exchange.entered_ns < exchange.connected_ns <= exchange.sent_ns
            assert stamps[-1] >= exchange.done_ns > sent[0]
            assert exchange.eof_ns >= exchange.done_ns == exchange.ended_ns
        is_kept = framing not in {"until the connection closes", "HTTP/1.0"}
        assert [exchange.is_reused for exchange, _ in fetched] == [False, is_kept]

    @both_loops
    def test_each_read_has_the_stamp_of_its_own_arrival(self, loop):
        server, [(exchange, _)] = fetch(stream(gap=0.05, last=0.05), loop=loop, pause=0.1)
        _, *sent, _ = server.sent[0]
        assert [read.end for read in exchange.reads] == [len(b"".join(REPLY[:i])) for i in (1, 2, 3)] + [len(BODY)]
        for read, before, after in zip(exchange.reads, sent, [*sent[1:], exchange.eof_ns], strict=True):
            assert before < read.at_ns < after
        assert exchange.done_ns == exchange.reads[-1].at_ns
        assert exchange.eof_ns - exchange.done_ns > 40_000_000

    @pytest.mark.parametrize("status", ["200 OK", "204 No Content", "304 Not Modified"])
    def test_no_body(self, status):
        length = ["Content-Length: 0"] if status.startswith("200") else []
        server, fetched = fetch([head(status, *length)], times=2)
        for exchange, body in fetched:
            assert (body, exchange.reads, exchange.has_clean_eof) == (b"", [], True)
            assert exchange.status == int(status[:3])
        assert server.connections == 1

    @both_loops
    def test_a_large_body_in_few_writes(self, loop):
        body = b"".join(text("x" * 4000) for _ in range(100)) + DONE
        _, fetched = fetch([CHUNKED, chunk(body), LAST_CHUNK], loop=loop, times=2)
        for exchange, received in fetched:
            assert received == body
            assert exchange.reads[-1].end == len(body)
            assert exchange.done_ns is not None

    def test_a_gzip_body_that_unpacks_to_far_more_than_one_buffer(self):
        body = b"".join(text(f"{i:05d}" * 40) for i in range(20_000)) + DONE
        packed = gzip.compress(body)
        _, [(exchange, received)] = fetch(
            [head("200 OK", f"Content-Length: {len(packed)}", "Content-Encoding: gzip"), packed]
        )
        assert received == body
        assert exchange.has_clean_eof

    def test_a_body_without_end_is_cut_off(self, monkeypatch):
        monkeypatch.setattr("agentprof.wire.exchange.MAX_BODY_BYTES", 1_000_000)
        _, [(exchange, body)] = fetch([CHUNKED, *[chunk(b"x" * 100_000)] * 1000, Do.HANG])
        assert exchange.is_too_large
        assert not exchange.has_clean_eof
        assert 1_000_000 < len(body) < 2_000_000

    def test_headers_of_any_bytes(self):
        _, [(exchange, _)] = fetch(
            [head("200 OK", "Server-Timing: a;dur=1", "X-Name: caf\xe9", "server-timing: b;dur=2", "Content-Length: 0")]
        )
        assert exchange.headers["server-timing"] == "a;dur=1, b;dur=2"
        assert exchange.headers["x-name"] == "caf\ufffd"

    def test_redirects_are_handed_on(self):
        server, [(exchange, _)] = fetch([answer("307 Temporary Redirect", b"", "Location: http://127.0.0.1:1/")])
        assert exchange.status == 307
        assert len(server.requests) == 1


BREAKS = {
    "close in a chunk": [CHUNKED, chunk(SHORT_BODY), b"40\r\ndata: {", Do.CLOSE],
    "close between chunks": [CHUNKED, chunk(SHORT_BODY), Do.CLOSE],
    "close before the length": [head("200 OK", "Content-Length: 5000"), SHORT_BODY, Do.CLOSE],
    "reset": [CHUNKED, chunk(SHORT_BODY), 0.03, Do.RESET],
    "reset of a body without length": [until_closed(), SHORT_BODY, 0.03, Do.RESET],
    "a chunk that is none": [CHUNKED, chunk(SHORT_BODY), 0.03, b"zz\r\nnonsense", 5.0],
    "gzip that is none": [
        head("200 OK", "Transfer-Encoding: chunked", "Content-Encoding: gzip"),
        chunk(gzip.compress(SHORT_BODY)),
        0.03,
        chunk(b"nonsense"),
        5.0,
    ],
}


class TestBreaks:
    @both_loops
    @pytest.mark.parametrize("kind", BREAKS)
    def test_what_came_is_kept_and_the_end_is_not_clean(self, kind, loop):
        started = time.monotonic()
        _, [(exchange, body)] = fetch(BREAKS[kind], loop=loop)
        assert body.startswith(SHORT_BODY)
        assert not exchange.has_clean_eof
        assert exchange.done_ns is None
        assert exchange.ended_ns >= exchange.reads[0].at_ns
        assert time.monotonic() - started < 3

    @pytest.mark.parametrize("ending", [Do.CLOSE, Do.RESET])
    def test_a_break_after_done_is_no_break(self, ending):
        _, [(exchange, body)] = fetch([CHUNKED, chunk(BODY), 0.03, ending])
        assert body == BODY
        assert exchange.done_ns == exchange.ended_ns

    @both_loops
    @pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 20", CHUNKED[:-2]])
    @pytest.mark.parametrize("ending", [Do.CLOSE, Do.RESET])
    def test_without_whole_headers_it_is_an_error(self, sent, ending, loop):
        with pytest.raises(httpx2.RemoteProtocolError):
            fetch([sent, 0.03, ending], loop=loop)

    @both_loops
    @pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.9\r\n", b"\x15\x03\x03\x00\x02\x02\x16"])
    def test_what_is_not_http(self, greeting, loop):
        server = ScriptedServer([[Do.HANG]], greeting=greeting)
        with pytest.raises(NotHttpError):
            play(server, lambda transport: post(transport, server.url), loop)

    def test_closing_the_transport_ends_a_body_that_is_waited_for(self):
        server = ScriptedServer([[CHUNKED, chunk(SHORT_BODY), Do.HANG]])

        async def main(transport: StampingTransport) -> tuple[Exchange, bytes]:
            task = asyncio.create_task(post(transport, server.url))
            await asyncio.to_thread(server.wait_busy)
            await asyncio.sleep(0.1)
            await transport.aclose()
            return await asyncio.wait_for(task, 2)

        exchange, body = play(server, main)
        assert body == SHORT_BODY
        assert not exchange.has_clean_eof


class TestDone:
    @both_loops
    def test_it_ends_the_call_and_the_end_of_the_body_frees_the_connection(self, loop):
        server, fetched = fetch([CHUNKED, chunk(BODY), 0.01, LAST_CHUNK], loop=loop, times=3)
        assert server.connections == 1
        for exchange, body in fetched:
            assert body == BODY
            assert exchange.ended_ns == exchange.done_ns < exchange.eof_ns

    @both_loops
    def test_without_an_end_of_the_body_the_connection_is_given_up(self, loop):
        server = ScriptedServer([[CHUNKED, chunk(BODY), Do.HANG]])

        async def main(transport: StampingTransport) -> None:
            exchange, body = await post(transport, server.url)
            assert (body, exchange.eof_ns) == (BODY, None)
            assert not await asyncio.to_thread(server.wait_left, 1, 0.3)
            assert await asyncio.to_thread(server.wait_left, 1, 5)

        play(server, main, loop)

    @pytest.mark.parametrize(
        "pieces",
        [
            bytewise(b"\n" + DONE),
            [b"data: [DO", b"NE]\n\n"],
            [b"data:[DONE]"],
            [b"data: [DONE]\r\n", b"\r\n"],
            [b"\r", b"data: [DONE] \r\r"],
        ],
    )
    def test_it_is_found_however_it_is_cut(self, pieces):
        _, [(exchange, _)] = fetch([CHUNKED, chunk(SHORT_BODY), *(chunk(piece) for piece in pieces), 0.02, LAST_CHUNK])
        assert exchange.done_ns is not None
        assert exchange.eof_ns - exchange.done_ns > 15_000_000

    @pytest.mark.parametrize(
        "content", ["data: [DONE]", "[DONE]", "x\ndata: [DONE]\n\ny", "\r\ndata: [DONE]", '"[DONE]"']
    )
    @pytest.mark.parametrize("is_bytewise", [False, True])
    def test_in_a_text_it_ends_nothing(self, content, is_bytewise):
        event = text(content)
        pieces = bytewise(event) if is_bytewise else [event, event[:20], event[20:]]
        body = b"".join(pieces) + text("the end")
        _, [(exchange, received)] = fetch([CHUNKED, *map(chunk, pieces), 0.02, chunk(text("the end")), LAST_CHUNK])
        assert received == body
        assert exchange.done_ns is None
        assert exchange.ended_ns == exchange.eof_ns

    def test_a_chunk_boundary_in_a_text_makes_no_line(self):
        event = text("look: data: [DONE] that was it")
        cut = event.index(b"data: [DONE]", 10)
        pieces = [event[:cut], event[cut : cut + 12], event[cut + 12 :], text("the end")]
        _, [(exchange, received)] = fetch([CHUNKED + b"".join(map(chunk, pieces)), 0.02, LAST_CHUNK])
        assert received == b"".join(pieces)
        assert exchange.done_ns is None


class TestSending:
    @both_loops
    @pytest.mark.parametrize("has_tls", [False, True])
    def test_a_large_request_is_sent_when_the_kernel_has_taken_it(self, has_tls, loop, certificate):
        context, cafile = certificate
        server = ScriptedServer([[answer("200 OK", b"x")]], read_delay=0.3, tls=context if has_tls else None)

        async def main(transport: StampingTransport) -> None:
            exchange, _ = await post(transport, server.url, b"x" * 16_000_000)
            assert exchange.sent_ns - exchange.connected_ns > 250_000_000
            assert exchange.connected_ns < exchange.sent_ns < exchange.answered_ns
            assert len(server.requests[0].body) == 16_000_000

        play(server, main, loop, tls=tls_context(cafile))

    @both_loops
    def test_an_answer_that_comes_while_the_request_is_sent(self, loop):
        refusal = answer("413 Payload Too Large", b"too large")

        def serve(listener: socket.socket) -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(refusal)
                time.sleep(0.2)

        async def main(transport: StampingTransport, port: int) -> None:
            exchange, body = await post(transport, f"http://127.0.0.1:{port}/v1", b"x" * 16_000_000)
            assert (exchange.status, body, exchange.sent_ns) == (413, b"too large", None)
            await transport.aclose()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=serve, args=(listener,))
            thread.start()

            async def whole() -> None:
                await main(StampingTransport(), listener.getsockname()[1])

            run(whole(), loop)
            thread.join()

    def test_encodings_are_not_asked_for(self):
        server, _ = fetch([answer("200 OK", b"x")])
        assert server.requests[0].all("accept-encoding") == ["identity"]
        assert server.requests[0].all("content-length") == ["2"]

    def test_no_proxy_is_taken_from_the_environment(self, monkeypatch):
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        _, [(exchange, _)] = fetch([answer("200 OK", b"x")])
        assert exchange.status == 200


class TestConnecting:
    @both_loops
    def test_round_trip_of_the_socket(self, loop):
        _, fetched = fetch([answer("200 OK", b"x")], loop=loop, times=2)
        for exchange, _ in fetched:
            assert 0 < exchange.rtt_ns < 1_000_000_000
            assert exchange.retransmits == 0

    @both_loops
    def test_tls_handshake_is_its_own_phase_and_only_once(self, loop, certificate):
        context, cafile = certificate
        server = ScriptedServer([[answer("200 OK", b"x")]], tls=context, handshake_delay=0.2)

        async def main(transport: StampingTransport) -> None:
            first, _ = await post(transport, server.url)
            second, _ = await post(transport, server.url)
            assert first.tls_ns > 195_000_000
            assert first.tcp_ns < first.tls_ns
            assert first.tcp_ns + first.tls_ns <= first.connected_ns - first.entered_ns
            assert first.rtt_ns > 0
            assert (second.is_reused, second.tls_ns, second.tcp_ns) == (True, None, None)
            assert second.connected_ns - second.entered_ns < first.tls_ns

        play(server, main, loop, tls=tls_context(cafile))

    @both_loops
    def test_a_certificate_that_is_not_trusted(self, loop, certificate):
        server = ScriptedServer([[]], tls=certificate[0])
        with pytest.raises(HandshakeError, match="certificate verify failed"):
            play(server, lambda transport: post(transport, server.url), loop)

    @both_loops
    def test_tls_to_a_server_without(self, loop):
        server = ScriptedServer([[answer("400 Bad Request", b"x")]], greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(HandshakeError):
            play(server, lambda transport: post(transport, server.url.replace("http:", "https:")), loop)

    @both_loops
    def test_a_server_that_hangs_up_in_the_handshake(self, loop):
        listener = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()

        async def main() -> None:
            transport = StampingTransport()
            with pytest.raises(HandshakeError):
                await post(transport, f"https://127.0.0.1:{listener.getsockname()[1]}/v1")
            await transport.aclose()

        run(main(), loop)
        thread.join()
        listener.close()

    @both_loops
    def test_plain_http_to_a_tls_server(self, loop, certificate):
        server = ScriptedServer([[]], tls=certificate[0])
        with pytest.raises(httpx2.RemoteProtocolError):
            play(server, lambda transport: post(transport, server.url.replace("https:", "http:")), loop)

    @both_loops
    def test_connecting_takes_no_longer_than_allowed(self, loop, certificate):
        server = ScriptedServer([[]], tls=certificate[0], handshake_delay=5)
        started = time.monotonic()
        with pytest.raises(httpx2.ConnectTimeout):
            play(server, lambda transport: post(transport, server.url), loop, connect_timeout_s=0.3)
        assert 0.29 < time.monotonic() - started < 3

    @pytest.mark.parametrize("host", ["nosuch.invalid", "a" * 70, "127.1"])
    def test_hosts_that_are_none(self, host):
        server = ScriptedServer([[]])
        with pytest.raises(UnknownHostError):
            play(server, lambda transport: post(transport, f"http://{host}:8000/v1"))

    def test_a_name_is_looked_up_in_the_connect_phase(self):
        server = ScriptedServer([[answer("200 OK", b"x")]])
        exchange, _ = play(server, lambda transport: post(transport, server.url.replace("127.0.0.1", "localhost")))
        assert 0 < exchange.dns_ns <= exchange.connected_ns - exchange.connect_started_ns
        assert exchange.tcp_ns > 0

    @both_loops
    def test_waiting_for_the_pool_is_kept_apart(self, loop):
        server = ScriptedServer([stream(first=0.5)])

        async def main(transport: StampingTransport) -> list[Exchange]:
            calls = [post(transport, server.url) for _ in range(5)]
            return [exchange for exchange, _ in await asyncio.gather(*calls)]

        exchanges = play(server, main, loop, pool=2)
        waits = sorted(exchange.pool_wait_ns for exchange in exchanges)
        assert waits[:2] == [0, 0]
        assert all(400_000_000 < wait < 5_000_000_000 for wait in waits[2:4])
        assert waits[4] > waits[2] + 400_000_000
        assert server.connections == 2
        for exchange in exchanges:
            assert exchange.connected_ns - exchange.entered_ns >= exchange.pool_wait_ns
            assert 450_000_000 < exchange.reads[0].at_ns - exchange.sent_ns < 5_000_000_000


class TestReuse:
    @both_loops
    @pytest.mark.parametrize("ending", [Do.CLOSE, Do.RESET])
    def test_a_connection_that_the_server_had_closed_is_replaced(self, ending, loop):
        server, fetched = fetch(stream(), [ending], stream(), loop=loop, times=3)
        assert [body for _, body in fetched] == [BODY] * 3
        assert [exchange.reconnects for exchange, _ in fetched] == [0, 1, 0]
        assert [exchange.is_reused for exchange, _ in fetched] == [False, False, True]
        second = fetched[1][0]
        assert second.tcp_ns > 0
        assert second.entered_ns < second.connect_started_ns < second.connected_ns
        assert server.connections == 2
        assert [request.connection for request in server.requests] == [0, 0, 1, 1]

    @both_loops
    def test_one_that_closed_while_idle_is_not_used(self, loop):
        server, fetched = fetch([*stream(), Do.CLOSE], loop=loop, times=2)
        assert [(exchange.reconnects, exchange.is_reused) for exchange, _ in fetched] == [(0, False)] * 2
        assert server.connections == 2

    def test_several_stale_ones_in_a_row(self):
        server = ScriptedServer(
            [stream(first=0.1), stream(first=0.1), stream(first=0.1), [Do.CLOSE], [Do.CLOSE], [Do.CLOSE], stream()]
        )

        async def main(transport: StampingTransport) -> Exchange:
            await asyncio.gather(*(post(transport, server.url) for _ in range(3)))
            await server.settle()
            exchange, body = await post(transport, server.url)
            assert body == BODY
            return exchange

        assert play(server, main).reconnects == 3

    @pytest.mark.parametrize("first_bytes", [b"HTTP/1.1 2", b"HTTP/1.1 100 Continue\r\n\r\n"])
    def test_a_request_that_was_answered_at_all_is_not_sent_again(self, first_bytes):
        server = ScriptedServer([stream(), [first_bytes, 0.02, Do.CLOSE]])

        async def main(transport: StampingTransport) -> None:
            await post(transport, server.url)
            await server.settle()
            with pytest.raises(httpx2.RemoteProtocolError):
                await post(transport, server.url)

        play(server, main)
        assert len(server.requests) == 2

    def test_a_server_that_dies_at_work_had_not_closed_the_connection_before(self):
        server = ScriptedServer([stream(), [1.1, Do.CLOSE]])

        async def main(transport: StampingTransport) -> None:
            await post(transport, server.url)
            await server.settle()
            with pytest.raises(httpx2.RemoteProtocolError):
                await post(transport, server.url)

        play(server, main)
        assert len(server.requests) == 2

    def test_a_new_connection_that_fails_is_not_tried_again(self):
        server = ScriptedServer([[Do.CLOSE]])
        with pytest.raises(httpx2.RemoteProtocolError):
            play(server, lambda transport: post(transport, server.url))
        assert len(server.requests) == 1

    @both_loops
    def test_bytes_that_nobody_asked_for_answer_no_later_request(self, loop):
        late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nlate"
        server, fetched = fetch([*stream(), 0.01, late], stream(), loop=loop, times=2)
        assert [exchange.status for exchange, _ in fetched] == [200, 200]
        assert [body for _, body in fetched] == [BODY, BODY]
        assert fetched[0][0].reads[-1].end == len(BODY)
        assert server.connections == 2

    def test_line_ends_after_a_body_are_passed_over(self):
        server, fetched = fetch([*stream(), 0.01, b"\r\n"], stream(), times=2)
        assert [body for _, body in fetched] == [BODY, BODY]
        assert server.connections == 1

    def test_an_exchange_is_left_alone_once_it_has_ended(self):
        _, fetched = fetch(stream(), stream(gap=0.02), times=2)
        first, second = (exchange for exchange, _ in fetched)
        assert second.is_reused
        assert first.reads[-1].end == second.reads[-1].end == len(BODY)
        assert first.eof_ns < second.entered_ns

    def test_a_stale_connection_closing_late_does_not_end_the_request_on_its_successor(self):
        # The stale one is closed by us, and that it is lost is told later, while the new one is in use.
        _, fetched = fetch(stream(), [Do.CLOSE], stream(first=0.1, gap=0.05), times=2)
        exchange, body = fetched[1]
        assert body == BODY
        assert exchange.done_ns - exchange.reads[0].at_ns > 100_000_000

    def test_early_close_gives_the_connection_up(self):
        server = ScriptedServer([[CHUNKED, chunk(SHORT_BODY), Do.HANG], stream()])

        async def main(transport: StampingTransport) -> None:
            EXCHANGE.set(Exchange())
            response = await transport.handle_async_request(httpx2.Request("POST", server.url, content=b"{}"))
            await response.aclose()
            assert await asyncio.to_thread(server.wait_left)
            exchange, body = await post(transport, server.url)
            assert (body, exchange.is_reused) == (BODY, False)

        play(server, main)

    def test_without_an_exchange_each_request_gets_its_own(self):
        server = ScriptedServer([stream()])

        async def main(transport: StampingTransport) -> None:
            seen = []
            for _ in range(2):
                response = await transport.handle_async_request(httpx2.Request("POST", server.url, content=b"{}"))
                assert b"".join([piece async for piece in response.stream]) == BODY
                await response.aclose()
                seen.append(EXCHANGE.get())
            assert seen[0] is not seen[1]

        play(server, main)


def test_a_family_that_this_host_lacks_is_left_to_aiohttp(monkeypatch):
    def lacks(*_):
        raise OSError(errno.EAFNOSUPPORT, "no such family")

    monkeypatch.setattr(transport_module.socket, "socket", lacks)
    address = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 80, 0, 0))
    assert transport_module._connect_at_once([address]) is None
