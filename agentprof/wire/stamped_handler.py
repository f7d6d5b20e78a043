"""The protocol of one connection, which stamps bytes at the read.

The stamp is taken in `data_received`, before HTTP parsing and before any task wakes up, so what other sessions do on
the same event loop doesn't move it. The body is collected there too: no task wakes up per chunk.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import _EXC_SENTINEL as _NO_CAUSE
from aiohttp.http_exceptions import HttpProcessingError, PayloadEncodingError

from agentprof.clock import now_ns
from agentprof.wire.exchange import Exchange

if TYPE_CHECKING:
    from aiohttp.http_parser import RawResponseMessage
    from aiohttp.streams import StreamReader

    from agentprof.wire.tls import StampedSSLObject


class StampedHandler(ResponseHandler):
    """aiohttp's protocol, with the clock read before anything else. Reports to one exchange after another."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._exchange: Exchange | None = None
        self._has_served = False
        self._has_response = False  # a final response's headers came; before, the payload may be an earlier one's
        self._is_written = False
        self._tls: StampedSSLObject | None = None
        self._is_parsing = self._is_closed = False
        self._ended_payload: StreamReader | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.transport is not None:  # to be told when the kernel has taken the last byte, not the last but 64 KiB
            self.transport.set_write_buffer_limits(high=1, low=0)
            self._tls = self.transport.get_extra_info("ssl_object")

    def begin(self, exchange: Exchange) -> None:
        """From now on the connection serves this exchange."""
        self._exchange = exchange
        self._has_served = True
        self._has_response = self._is_written = False

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._exchange is not None:
            self._exchange.writing_ns = None  # the kernel doesn't take it all at once: its last byte counts

    def start_timeout(self) -> None:
        """Called by aiohttp once it has written the whole request."""
        super().start_timeout()
        self._is_written = True
        if not self.writing_paused and self._exchange is not None:
            # A server on this machine wakes up at the write and may take this process's core: the stamp is older.
            self._note_sent(self._tls.written_ns if self._tls is not None else self._exchange.writing_ns)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._is_written:
            self._note_sent()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Called by aiohttp whenever the body's bytes are taken, though nothing was paused; it would parse again."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def _note_sent(self, at_ns: int | None = None) -> None:
        if self._exchange is not None and self._exchange.sent_ns is None:
            self._exchange.sent_ns = now_ns() if at_ns is None else at_ns

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Called by aiohttp with each response whose headers are complete."""
        code = data[0].code
        self._has_response = code >= 200 or code == 101
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, exc_cause: BaseException = _NO_CAUSE) -> None:
        """Called by aiohttp with what went wrong, and again with what went wrong because of it."""
        if self._exchange is not None and isinstance(exc_cause, PayloadEncodingError):
            self._exchange.is_readable = False
        elif self._exchange is not None and isinstance(exc, HttpProcessingError):
            self._exchange.is_http = False
        super().set_exception(exc, exc_cause)

    def data_received(self, data: bytes) -> None:
        at_ns = (self._tls.take_read_ns() if self._tls is not None else None) or now_ns()
        exchange = self._exchange
        if exchange is None:
            if self._has_served and data.strip(b"\r\n"):
                self.close()  # unasked bytes (a 408 to an idle client) would answer the next request
            elif not self._has_served:
                super().data_received(data)
            return
        self._is_parsing, self._ended_payload = True, None
        super().data_received(data)
        self._is_parsing = False
        if data:
            exchange.take_answer(at_ns, self.transport)
        payload = self._ended_payload or self._payload
        if payload is None or not self._has_response:
            if self._is_closed:
                self._drop_exchange()
            return
        is_broken = payload.exception() is not None
        if not is_broken:
            exchange.take_body(at_ns, payload.read_nowait(-1))
        if is_broken or payload.is_eof():
            self._exchange = None  # what comes later on this connection isn't this exchange's
            exchange.end(at_ns, is_clean=not is_broken)
        elif self._is_closed:
            self._drop_exchange()
        elif exchange.is_too_large:
            self.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        at_ns = now_ns()
        exchange, payload = self._exchange, self._payload if self._has_response else None
        self._exchange = None
        super().connection_lost(exc)  # which ends a body that has no length
        if exchange is None:
            return
        if payload is not None and payload.exception() is None:
            exchange.take_body(at_ns, payload.read_nowait(-1))
        exchange.end(at_ns, is_clean=exc is None and payload is not None and payload.is_eof())

    def close(self) -> None:
        self._is_closed = True
        if self._is_parsing:  # as aiohttp does at the end of a body with `Connection: close`, before it is taken
            self._ended_payload = self._payload
        else:
            self._drop_exchange()
        if self.writing_paused or self._tls is not None:
            super().abort()  # doesn't send what is left of the request, doesn't wait for the other side's farewell
        else:
            super().close()

    def abort(self) -> None:
        self._is_closed = True
        if not self._is_parsing:
            self._drop_exchange()
        super().abort()

    def _drop_exchange(self) -> None:
        """We close: whoever waits for the body must wake up, and the loss that follows concerns nobody."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end(now_ns(), is_clean=False)
