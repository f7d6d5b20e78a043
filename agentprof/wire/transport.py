"""The sockets under the openai client: an httpx2 transport on aiohttp that stamps bytes at the read.

The stamp is taken in the protocol's `data_received`, before HTTP parsing and before any task wakes up, so what other
sessions do on the same event loop doesn't move it. The body is collected without waking a task per chunk.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import httpx2
from aiohttp.client_proto import ResponseHandler

from agentprof.clock import now_ns
from agentprof.wire.assemble import Read

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

_MAX_BUFFERED_BYTES = 64 * 2**20
_DRAIN_EVERY_S = 0.5
_EOF_AFTER_DONE_S = 1.0
_DONE_LINE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\][ \t]*(?:[\r\n]|$)")
_TCP_INFO_RTT, _TCP_INFO_RETRANSMITS = 15, 23


@dataclass(slots=True)
class Exchange:
    """One HTTP request and its response, as it happened. Times are monotonic nanoseconds; None = didn't happen.

    entered: the request reached the transport. pool_wait_ns: waited for a free connection. connected: ready to send
    (a new connection, or a reused one). sent: the last byte of the request was handed to the kernel. reads: arrival
    stamps over the decoded body. ended: `[DONE]` or the end of the body. rtt_ns: TCP_INFO smoothed round trip of the
    first hop at the first body read. reconnects: reused connections that the server had already closed.
    """

    entered_ns: int | None = None
    pool_wait_ns: int = 0
    connect_started_ns: int | None = None
    dns_ns: int | None = None
    tls_started_ns: int | None = None
    connected_ns: int | None = None
    is_reused: bool = False
    sent_ns: int | None = None
    reads: list[Read] = field(default_factory=list)
    done_ns: int | None = None
    eof_ns: int | None = None
    has_clean_eof: bool = False
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    rtt_ns: int | None = None
    retransmits: int | None = None
    reconnects: int = 0
    salvaged: bytes = b""
    on_events: Callable[[int], None] | None = None
    mark_ns: int = 0
    _finished: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ended_ns(self) -> int | None:
        """When the response was complete: `[DONE]`, or the end of the body."""
        return self.done_ns if self.done_ns is not None else self.eof_ns

    @property
    def tcp_ns(self) -> int | None:
        """TCP handshake of a new connection (address lookup apart); None on a reused one."""
        if self.connect_started_ns is None or self.connected_ns is None:
            return None
        end = self.tls_started_ns if self.tls_started_ns is not None else self.connected_ns
        return end - self.connect_started_ns - (self.dns_ns or 0)

    @property
    def tls_ns(self) -> int | None:
        """TLS handshake of a new connection; None without TLS."""
        if self.tls_started_ns is None or self.connected_ns is None:
            return None
        return self.connected_ns - self.tls_started_ns

    def take_read(self, at_ns: int, data: bytes, body_bytes: int, *, is_eof: bool, transport: Any) -> None:
        """One socket read: `body_bytes` of the body have arrived by now."""
        if not self.reads:
            self._read_tcp_info(transport)
        self.reads.append(Read(at_ns, body_bytes))
        if self.on_events is not None:
            self.on_events(data.count(b"data:"))
        if self.done_ns is None and b"[DONE]" in data and _DONE_LINE.search(data):
            self.done_ns = at_ns
            self._finished.set()
        if is_eof:
            self.eof_ns = at_ns
            self.has_clean_eof = True
            self._finished.set()
            self._closed.set()

    def lose_connection(self, at_ns: int, rest: bytes, *, is_clean: bool) -> None:
        """The connection closed: the end of a body without a length, or a break."""
        self.salvaged += rest
        if self.eof_ns is None:
            self.eof_ns = at_ns
            self.has_clean_eof = is_clean
        self._finished.set()
        self._closed.set()

    async def wait_finished(self, timeout_s: float) -> None:
        """Wait for `[DONE]` or the end of the body, at most so long."""
        await _wait(self._finished, timeout_s)

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait for the end of the body, at most so long."""
        await _wait(self._closed, timeout_s)

    def restart(self) -> None:
        """Forget a send on a stale connection, keeping when the request came in."""
        self.reconnects += 1
        self.connected_ns = self.sent_ns = self.connect_started_ns = self.tls_started_ns = self.dns_ns = None
        self.is_reused = False
        self.eof_ns = None
        self.has_clean_eof = False
        self._finished.clear()
        self._closed.clear()

    def _read_tcp_info(self, transport: Any) -> None:
        sock = transport.get_extra_info("socket") if transport is not None else None
        if sock is None:
            return
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            return
        fields = struct.unpack_from("<24I", info, 8)
        self.rtt_ns = fields[_TCP_INFO_RTT] * 1000
        self.retransmits = fields[_TCP_INFO_RETRANSMITS]


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return


EXCHANGE: ContextVar[Exchange] = ContextVar("agentprof_exchange")
"""The exchange that the current task's next request fills; a fresh one is made where none is set."""


class _StampedHandler(ResponseHandler):
    """aiohttp's protocol, with the clock read before anything else."""

    exchange: Exchange | None = None

    def data_received(self, data: bytes) -> None:
        at_ns = now_ns()
        super().data_received(data)
        payload = self._payload
        if self.exchange is not None and payload is not None and data:
            self.exchange.take_read(at_ns, data, payload.total_bytes, is_eof=payload.is_eof(), transport=self.transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        at_ns = now_ns()
        exchange, payload = self.exchange, self._payload
        self.exchange = None
        rest = b""
        if exchange is not None and payload is not None and payload.exception() is None:
            rest = payload.read_nowait(-1)
        super().connection_lost(exc)
        if exchange is not None:
            is_clean = exc is None and (payload is None or payload.exception() is None)
            exchange.lose_connection(at_ns, rest, is_clean=is_clean)


class _StampingConnector(aiohttp.TCPConnector):
    """A connection pool whose connections report to the exchange of the task that uses them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(_StampedHandler, loop=self._loop))

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  as aiohttp calls it
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        if isinstance(protocol, _StampedHandler):
            exchange = EXCHANGE.get()
            exchange.connected_ns = now_ns()
            protocol.exchange = exchange
        return connection


class _StampingSSLContext(ssl.SSLContext):
    """Notes when the TLS handshake of the current task's connection begins."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        exchange = EXCHANGE.get(None)
        if exchange is not None:
            exchange.tls_started_ns = now_ns()
        return super().wrap_bio(*args, **options)


def tls_context(cafile: str | None = None) -> ssl.SSLContext:
    """A verifying TLS context that notes when handshakes begin; `cafile` is trusted besides the system's roots."""
    context = _StampingSSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    if cafile is not None:
        context.load_verify_locations(cafile)
    return context


def _trace_config() -> aiohttp.TraceConfig:
    """aiohttp's own events that the exchange takes its connect phases from."""
    config = aiohttp.TraceConfig()

    async def mark(_session: object, _context: SimpleNamespace, _event: object) -> None:
        EXCHANGE.get().mark_ns = now_ns()

    async def queued(_session: object, _context: SimpleNamespace, _event: object) -> None:
        exchange = EXCHANGE.get()
        exchange.pool_wait_ns += now_ns() - exchange.mark_ns

    async def creating(_session: object, _context: SimpleNamespace, _event: object) -> None:
        EXCHANGE.get().connect_started_ns = now_ns()

    async def resolved(_session: object, _context: SimpleNamespace, _event: object) -> None:
        exchange = EXCHANGE.get()
        exchange.dns_ns = now_ns() - exchange.mark_ns

    async def reused(_session: object, _context: SimpleNamespace, _event: object) -> None:
        EXCHANGE.get().is_reused = True

    async def sent(_session: object, _context: SimpleNamespace, _event: object) -> None:
        EXCHANGE.get().sent_ns = now_ns()

    config.on_connection_queued_start.append(mark)
    config.on_connection_queued_end.append(queued)
    config.on_connection_create_start.append(creating)
    config.on_dns_resolvehost_start.append(mark)
    config.on_dns_resolvehost_end.append(resolved)
    config.on_connection_reuseconn.append(reused)
    config.on_request_headers_sent.append(sent)
    config.on_request_chunk_sent.append(sent)
    return config


class _Body(httpx2.AsyncByteStream):
    """The response body: handed on in large pieces, since arrival times are already known."""

    def __init__(
        self, response: aiohttp.ClientResponse, exchange: Exchange, background: set[asyncio.Task[None]]
    ) -> None:
        self._response = response
        self._exchange = exchange
        self._background = background

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content, exchange = self._response.content, self._exchange
        while True:
            is_last = content.is_eof() or exchange.ended_ns is not None
            if not is_last:
                await exchange.wait_finished(_DRAIN_EVERY_S)
            if exchange.salvaged:
                piece, exchange.salvaged = exchange.salvaged, b""
                yield piece
            if content.exception() is None:
                while piece := content.read_nowait(-1):
                    yield piece
            if is_last:
                return

    async def aclose(self) -> None:
        if self._exchange.done_ns is None or self._exchange.eof_ns is not None:
            self._response.close()  # returns the connection to the pool where the body had ended
            return
        task = asyncio.create_task(self._close_later())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _close_later(self) -> None:
        """After `[DONE]`, give the end of the body a moment, so that the connection can be used again."""
        try:
            await self._exchange.wait_closed(_EOF_AFTER_DONE_S)
        finally:
            self._response.close()


class StampingTransport(httpx2.AsyncBaseTransport):
    """An httpx2 transport over aiohttp. Fills the `Exchange` found in `EXCHANGE`.

    pool: connections at most; a request beyond it waits, which the exchange keeps as pool wait. connect_timeout_s
    bounds address lookup, TCP and TLS together; nothing bounds the response: sessions have their own limit.

    Raises httpx2.ConnectError, ConnectTimeout or RemoteProtocolError, which the openai client wraps.
    """

    def __init__(self, *, pool: int = 100, connect_timeout_s: float = 10.0, tls: ssl.SSLContext | None = None) -> None:
        self._pool = pool
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._background: set[asyncio.Task[None]] = set()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=_StampingConnector(limit=self._pool, ssl=self._tls or tls_context()),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                trace_configs=[_trace_config()],
                read_bufsize=_MAX_BUFFERED_BYTES,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; returns when the response's headers are here."""
        exchange = EXCHANGE.get(None)
        if exchange is None:
            exchange = Exchange()
            EXCHANGE.set(exchange)
        exchange.entered_ns = now_ns()
        body = await request.aread()
        response = await self._send(request, body, exchange)
        exchange.status = response.status
        exchange.headers = {name.lower(): value for name, value in response.headers.items()}
        dropped = {"content-encoding", "content-length", "transfer-encoding"}
        return httpx2.Response(
            response.status,
            headers=[(name, value) for name, value in response.headers.items() if name.lower() not in dropped],
            stream=_Body(response, exchange, self._background),
        )

    async def _send(self, request: httpx2.Request, body: bytes, exchange: Exchange) -> aiohttp.ClientResponse:
        session = self._open()
        headers = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
        headers["Accept-Encoding"] = "identity"
        while True:
            try:
                return await session.request(
                    request.method, str(request.url), data=body or None, headers=headers, allow_redirects=False
                )
            except aiohttp.ConnectionTimeoutError as error:
                raise httpx2.ConnectTimeout(str(error), request=request) from error
            except aiohttp.ClientConnectorError as error:
                raise httpx2.ConnectError(str(error), request=request) from error
            except (aiohttp.ClientError, OSError) as error:
                if exchange.is_reused and not exchange.reads:
                    exchange.restart()
                    continue
                raise httpx2.RemoteProtocolError(str(error) or type(error).__name__, request=request) from error

    async def aclose(self) -> None:
        """Close all connections."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None
