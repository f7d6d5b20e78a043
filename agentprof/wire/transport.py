"""The sockets under the openai client: an httpx2 transport on aiohttp that stamps bytes at the read."""

from __future__ import annotations

import asyncio
import errno
import io
import select
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from ipaddress import ip_address
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import httpx2

from agentprof.clock import now_ns
from agentprof.wire.eager_request import EagerRequest
from agentprof.wire.exchange import EXCHANGE, MAX_BODY_BYTES, Exchange
from agentprof.wire.stamped_handler import StampedHandler
from agentprof.wire.tls import tls_context

if TYPE_CHECKING:
    from aiohappyeyeballs import AddrInfoType
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

_EOF_AFTER_DONE_S = 1.0
_STALE_WITHIN_NS = 1_000_000_000  # a closed peer answers a send with a reset within a round trip


class UnknownHostError(httpx2.ConnectError):
    """The host name could not be looked up."""


class HandshakeError(httpx2.ConnectError):
    """The TLS handshake failed: not TLS on the other side, or a certificate that isn't trusted."""


class NotHttpError(httpx2.RemoteProtocolError):
    """What came back isn't HTTP."""


class UnreadableError(httpx2.RemoteProtocolError):
    """The body is packed in a way that can't be undone: an encoding that nobody asked for, or broken chunks."""


class _StampingConnector(aiohttp.TCPConnector):
    """A connection pool whose connections report to the exchange of the task that uses them."""

    def __init__(self, connect_timeout_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._connect_timeout_s = connect_timeout_s
        self._factory = cast("partial[ResponseHandler]", partial(StampedHandler, loop=self._loop))

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  as aiohttp calls it
    ) -> Connection:
        exchange = EXCHANGE.get()
        if not exchange.reconnects:
            exchange.entered_ns = now_ns()  # what the transport did before is building the request
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        if isinstance(protocol, StampedHandler):
            exchange.connected_ns = now_ns()
            protocol.begin(exchange)
        return connection

    async def _create_connection(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  as aiohttp calls it
    ) -> ResponseHandler:
        # aiohttp's own limits leave the lookup out, or take the wait for the pool in.
        async with asyncio.timeout(self._connect_timeout_s):
            return await super()._create_connection(req, traces, timeout)

    async def _wrap_create_connection(
        self, *args: Any, addr_infos: list[AddrInfoType], **options: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        # On this host the kernel connects at once; the way over the event loop took up to 1 ms more, which was told as
        # the network's.
        sock = _connect_at_once(addr_infos)
        if sock is None:
            return await super()._wrap_create_connection(*args, addr_infos=addr_infos, **options)
        return await self._wrap_existing_connection(*args, sock=sock, **options)


def _connect_at_once(addresses: Iterable[AddrInfoType]) -> socket.socket | None:
    """A socket connected to the first of these addresses that answers at once; None where one isn't on this host."""
    for family, kind, protocol, _, address in addresses:
        if not ip_address(address[0]).is_loopback:
            return None
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError:
            return None  # such as no IPv6 here: aiohttp tries the addresses in turn, and tells what fails
        sock.setblocking(False)
        waiting = select.poll()
        waiting.register(sock, select.POLLOUT)
        if sock.connect_ex(address) in (0, errno.EINPROGRESS) and [e for _, e in waiting.poll(0)] == [select.POLLOUT]:
            return sock
        sock.close()
    return None


def _trace_config() -> aiohttp.TraceConfig:
    """aiohttp's own events that the exchange takes its connect phases from."""
    config = aiohttp.TraceConfig()

    async def mark(_session: object, context: SimpleNamespace, _event: object) -> None:
        context.mark_ns = now_ns()

    async def queued(_session: object, context: SimpleNamespace, _event: object) -> None:
        EXCHANGE.get().pool_wait_ns += now_ns() - context.mark_ns

    async def creating(_session: object, _context: SimpleNamespace, _event: object) -> None:
        EXCHANGE.get().connect_started_ns = now_ns()

    async def resolved(_session: object, context: SimpleNamespace, _event: object) -> None:
        EXCHANGE.get().dns_ns = now_ns() - context.mark_ns

    async def writing(_session: object, _context: SimpleNamespace, _piece: object) -> None:
        EXCHANGE.get().writing_ns = now_ns()  # aiohttp calls it `sent`, but calls it just before the write

    async def reused(_session: object, _context: SimpleNamespace, _event: object) -> None:
        EXCHANGE.get().is_reused = True

    config.on_connection_queued_start.append(mark)
    config.on_connection_queued_end.append(queued)
    config.on_connection_create_start.append(creating)
    config.on_dns_resolvehost_start.append(mark)
    config.on_dns_resolvehost_end.append(resolved)
    config.on_connection_reuseconn.append(reused)
    config.on_request_headers_sent.append(writing)
    config.on_request_chunk_sent.append(writing)
    return config


class _Body(httpx2.AsyncByteStream):
    """The response body: handed on in one piece when it has ended, since arrival times are already known."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        exchange: Exchange,
        linger: Callable[[aiohttp.ClientResponse], None],
    ) -> None:
        self._response = response
        self._exchange = exchange
        self._linger = linger

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if body := await self._exchange.wait_ended():
            yield body

    async def aclose(self) -> None:
        if self._exchange.has_clean_eof:
            self._response.release()  # not `close`: aiohttp may not have got to give the connection back yet
        elif self._exchange.done_ns is not None and self._exchange.eof_ns is None:
            self._linger(self._response)
        else:
            self._response.close()


class StampingTransport(httpx2.AsyncBaseTransport):
    """An httpx2 transport over aiohttp. Fills the `Exchange` found in `EXCHANGE`.

    pool: connections at most; a request beyond it waits, which the exchange keeps as pool wait. connect_timeout_s
    bounds address lookup, TCP and TLS together; nothing bounds the response: sessions have their own limit. Proxies
    from the environment aren't used: a hop that nobody asked for would be measured.

    A body that breaks off raises nothing: the exchange has no clean end then. Before that, raises httpx2.ConnectError
    (UnknownHostError, HandshakeError), ConnectTimeout or RemoteProtocolError (NotHttpError, UnreadableError), which the
    openai client wraps.
    """

    def __init__(self, *, pool: int = 100, connect_timeout_s: float = 10.0, tls: ssl.SSLContext | None = None) -> None:
        self._pool = pool
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._lingering: dict[aiohttp.ClientResponse, asyncio.TimerHandle] = {}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=_StampingConnector(
                    self._connect_timeout_s,
                    limit=self._pool,
                    ssl=self._tls or tls_context(),
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                trace_configs=[_trace_config()],
                read_bufsize=MAX_BODY_BYTES,  # bodies are taken at each read: aiohttp never has cause to pause
                cookie_jar=aiohttp.DummyCookieJar(),
                request_class=EagerRequest,
            )
        return self._session

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; returns when the response's headers are here."""
        session = self._open()
        if self._tls is None and request.url.scheme == "https":
            self._tls = tls_context()  # loads certificates: before the exchange begins, as this isn't connecting
        exchange = EXCHANGE.get(None)
        if exchange is None or exchange.entered_ns is not None:
            exchange = Exchange()
            EXCHANGE.set(exchange)
        exchange.entered_ns = now_ns()
        response = await self._send(session, request, await request.aread(), exchange)
        exchange.status = response.status
        for raw_name, raw_value in response.raw_headers:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("utf-8", "replace")
            exchange.headers[name] = f"{exchange.headers[name]}, {value}" if name in exchange.headers else value
        dropped = {b"content-encoding", b"content-length", b"transfer-encoding"}
        return httpx2.Response(
            response.status,
            headers=[(name, value) for name, value in response.raw_headers if name.lower() not in dropped],
            stream=_Body(response, exchange, self._linger),
            extensions={"reason_phrase": (response.reason or "").encode("latin-1", "replace")},
        )

    async def _send(
        self, session: aiohttp.ClientSession, request: httpx2.Request, body: bytes, exchange: Exchange
    ) -> aiohttp.ClientResponse:
        replaced = {"content-length", "accept-encoding"}
        headers = {name: value for name, value in request.headers.items() if name not in replaced}
        headers["accept-encoding"] = "identity"
        while True:
            try:
                return await session.request(
                    request.method,
                    str(request.url),
                    data=io.BytesIO(body) if body else None,  # written piece by piece where it is large
                    headers=headers,
                    ssl=self._tls or True,
                    allow_redirects=False,
                )
            except (aiohttp.ClientError, OSError, UnicodeError) as error:
                if not _is_stale(exchange, error):
                    raise _translate(error, request, exchange) from error
                exchange.restart()

    def _linger(self, response: aiohttp.ClientResponse) -> None:
        """After `[DONE]`, give the end of the body a moment, so that the connection can be used again."""
        loop = asyncio.get_running_loop()
        self._lingering[response] = loop.call_later(_EOF_AFTER_DONE_S, self._stop_lingering, response)

    def _stop_lingering(self, response: aiohttp.ClientResponse) -> None:
        self._lingering.pop(response).cancel()
        response.close()  # nothing happens where the body has ended since: aiohttp released the connection then

    async def aclose(self) -> None:
        """Close all connections; bodies that are still waited for end there."""
        for response in list(self._lingering):
            self._stop_lingering(response)
        if self._session is not None:
            await self._session.close()
            self._session = None


def _is_stale(exchange: Exchange, error: Exception) -> bool:
    """Whether the server had closed a kept connection before it saw the request: safe, and right, to send it again.

    A server that took the request and died later without a word is another matter: that attempt failed.
    """
    if not exchange.is_reused or exchange.answered_ns is not None or isinstance(error, aiohttp.ClientConnectorError):
        return False
    return exchange.connected_ns is not None and now_ns() - exchange.connected_ns < _STALE_WITHIN_NS


def _translate(error: Exception, request: httpx2.Request, exchange: Exchange) -> httpx2.TransportError:
    """aiohttp's exception as httpx2's; the wording is the system's own, without aiohttp's, which may quote headers."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    detail = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    if isinstance(cause, aiohttp.ServerDisconnectedError):
        detail = "Server disconnected"
    elif isinstance(cause, aiohttp.ClientResponseError):
        detail = "no response that can be read"
    detail = detail or type(error).__name__
    match error:
        case aiohttp.ConnectionTimeoutError():
            return httpx2.ConnectTimeout(detail, request=request)
        case aiohttp.ClientConnectorDNSError() | UnicodeError():
            return UnknownHostError(detail, request=request)
        case aiohttp.ClientConnectorCertificateError():
            return HandshakeError(str(error.certificate_error), request=request)
        case aiohttp.ClientSSLError():
            return HandshakeError(detail, request=request)
        case aiohttp.ClientConnectorError() if exchange.tls_started_ns is not None:
            return HandshakeError(detail, request=request)
        case aiohttp.ClientConnectorError():
            return httpx2.ConnectError(detail, request=request)
        case aiohttp.InvalidURL():
            return UnknownHostError(detail, request=request)
        case _ if not exchange.is_readable:
            return UnreadableError(detail, request=request)
        case _ if not exchange.is_http:
            return NotHttpError(detail, request=request)
        case _:
            return httpx2.RemoteProtocolError(detail, request=request)
