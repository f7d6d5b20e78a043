"""One HTTP exchange as it happened on the socket: phases, arrival stamps, the body's bytes. No HTTP library in here."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agentprof.wire.assemble import Read

MAX_BODY_BYTES = 256 * 2**20
"""A response beyond it is no streamed completion: the connection is closed and `is_too_large` set."""

_DONE_LINE = re.compile(rb"[\r\n]data:[ \t]*\[DONE\][ \t]*(?:[\r\n]|\Z)")
_DONE_TAIL_BYTES = 24  # of the body so far, kept to find a `[DONE]` that two reads share
_TCP_INFO_BYTES, _TCP_INFO_RTT, _TCP_INFO_RETRANSMITS = 104, 15, 23
_MIN_RTT_BYTE, _NO_MIN_RTT = 148, 0xFFFFFFFF


@dataclass(slots=True)
class Exchange:
    """One HTTP request and its response, as it happened. Times are monotonic nanoseconds; None = didn't happen.

    entered: the request asked for a connection. pool_wait_ns: waited for a free connection. connected: ready to send (a
    new connection, or a reused one). writing: the request's latest piece is about to be written; None once the kernel
    didn't take a piece whole. sent: the last byte of the request was handed to the kernel (under TLS: to the socket's
    last 64 KiB of buffer); stamped just before the write where the kernel takes it all at once. answered: the first
    byte that came back, an interim response's too. reads: arrival stamps over the decoded body. ended: `[DONE]` or the
    end of the body. rtt_ns: TCP_INFO's least round trip of the first hop over the last minutes when the first byte came
    back (the smoothed one holds what the server waits before it acknowledges; it is taken where the kernel knows no
    least one). retransmits: since the connection was made. reconnects: reused connections that the server had already
    closed. is_http, is_readable: False where a response's head, or the packing of its body, couldn't be read. headers:
    of the response, names in lower case, repeated ones joined by commas.
    """

    entered_ns: int | None = None
    pool_wait_ns: int = 0
    connect_started_ns: int | None = None
    dns_ns: int | None = None
    tls_started_ns: int | None = None
    connected_ns: int | None = None
    is_reused: bool = False
    writing_ns: int | None = None
    sent_ns: int | None = None
    answered_ns: int | None = None
    reads: list[Read] = field(default_factory=list)
    done_ns: int | None = None
    eof_ns: int | None = None
    has_clean_eof: bool = False
    is_http: bool = True
    is_readable: bool = True
    is_too_large: bool = False
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    rtt_ns: int | None = None
    retransmits: int | None = None
    reconnects: int = 0
    on_events: Callable[[int], None] | None = None
    _pieces: list[bytes] = field(default_factory=list)
    _body_bytes: int = 0
    _tail: bytes = b"\n"  # the body begins at the beginning of a line
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

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

    def take_answer(self, at_ns: int, transport: Any) -> None:
        """Bytes came back, of whatever kind; `transport` is asked for its socket's round trip the first time."""
        if self.answered_ns is None:
            self.answered_ns = at_ns
            self._read_tcp_info(transport)

    def take_body(self, at_ns: int, piece: bytes) -> None:
        """Decoded bytes of the body that one socket read brought."""
        if not piece:
            return
        self._pieces.append(piece)
        self._body_bytes += len(piece)
        self.reads.append(Read(at_ns, self._body_bytes))
        self.is_too_large = self._body_bytes > MAX_BODY_BYTES
        if self.done_ns is None:
            seen = self._tail + piece
            if b"[DONE]" in seen and _DONE_LINE.search(seen):
                self.done_ns = at_ns
                self._ended.set()
            self._tail = seen[-_DONE_TAIL_BYTES:]
        if self.on_events is not None:
            self.on_events(piece.count(b"data:"))

    def end(self, at_ns: int, *, is_clean: bool) -> None:
        """The body ended as HTTP says it should, or (not clean) the connection broke or was closed by us."""
        if self.eof_ns is None:
            self.eof_ns = at_ns
            self.has_clean_eof = is_clean
        self._ended.set()

    @property
    def body(self) -> bytes:
        """The decoded body so far."""
        return b"".join(self._pieces)

    async def wait_ended(self) -> bytes:
        """Wait for `[DONE]` or the end of the body; the body so far."""
        await self._ended.wait()
        return self.body

    def restart(self) -> None:
        """Forget a send on a stale connection, keeping when the request came in."""
        self.reconnects += 1
        self.connect_started_ns = self.dns_ns = self.tls_started_ns = self.connected_ns = None
        self.writing_ns = self.sent_ns = self.eof_ns = None
        self.is_reused = self.has_clean_eof = False
        self._ended.clear()

    def _read_tcp_info(self, transport: Any) -> None:
        sock = transport.get_extra_info("socket") if transport is not None else None
        if sock is None:
            return
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            return
        if len(info) >= _TCP_INFO_BYTES:
            fields = struct.unpack_from("<24I", info, 8)
            self.rtt_ns = (_least_rtt_us(info) or fields[_TCP_INFO_RTT]) * 1000 or None  # 0: no sample yet
            self.retransmits = fields[_TCP_INFO_RETRANSMITS]


def _least_rtt_us(info: bytes) -> int | None:
    """The least round trip in µs; None where the kernel is too old to tell, or has no sample."""
    if len(info) < _MIN_RTT_BYTE + 4:
        return None
    (least_us,) = struct.unpack_from("<I", info, _MIN_RTT_BYTE)
    return None if least_us == _NO_MIN_RTT else int(least_us)


EXCHANGE: ContextVar[Exchange] = ContextVar("agentprof_exchange")
"""The exchange that the current task's next request fills; a fresh one is made where none is set."""
