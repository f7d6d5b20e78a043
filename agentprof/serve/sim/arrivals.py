"""When a request's bytes came out of the socket: before HTTP is parsed and before any handler has its turn."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from agentprof.clock import now_ns


class Arrivals:
    """The stamp of each open connection's last read, by the client's port."""

    def __init__(self) -> None:
        self._last_read_ns: dict[int, int] = {}

    def last_read_ns(self, client_port: int) -> int:
        """0 where nothing is known of that connection."""
        return self._last_read_ns.get(client_port, 0)

    def note(self, client_port: int) -> None:
        """Bytes have come."""
        self._last_read_ns[client_port] = now_ns()

    def forget(self, client_port: int) -> None:
        """The connection is closed."""
        self._last_read_ns.pop(client_port, None)


class StampingRunner(web.AppRunner):
    """aiohttp's runner; what it serves notes arrivals."""

    def __init__(self, app: web.Application, arrivals: Arrivals, **options: Any) -> None:
        super().__init__(app, **options)
        self._arrivals = arrivals

    @property
    def server(self) -> Any:
        """What makes a protocol for each connection; None before `setup`."""
        make = super().server
        return None if make is None else lambda: _Noting(make(), self._arrivals)


def client_port(transport: asyncio.BaseTransport | None) -> int:
    """The port of the other side; 0 where there is none."""
    peer = transport.get_extra_info("peername") if transport is not None else None
    return int(peer[1]) if peer else 0


class _Noting(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol."""

    def __init__(self, inner: asyncio.Protocol, arrivals: Arrivals) -> None:
        self._inner, self._arrivals, self._port = inner, arrivals, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._port = client_port(transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._arrivals.note(self._port)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrivals.forget(self._port)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
