"""TLS that keeps its own times apart from the network's: stamps lie between the socket and the cipher."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from agentprof.clock import now_ns
from agentprof.wire.exchange import EXCHANGE

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class StampedSSLObject(ssl.SSLObject):
    """One connection's cipher. read_ns: when decryption began of the records read since it was last taken; written_ns:
    when the latest piece was encrypted."""

    read_ns: int | None = None
    written_ns: int | None = None

    def read(self, len: int = 1024, buffer: WriteableBuffer | None = None) -> Any:  # noqa: A002  as the standard library has it
        began_ns = now_ns()
        found = super().read(len) if buffer is None else super().read(len, buffer)  # raises where no record is whole
        if self.read_ns is None:
            self.read_ns = began_ns
        return found

    def write(self, data: Any) -> int:
        written = super().write(data)
        self.written_ns = now_ns()
        return written

    def take_read_ns(self) -> int | None:
        """When decryption began of what was read since the last call; None where nothing was."""
        began_ns, self.read_ns = self.read_ns, None
        return began_ns


class _StampingSSLContext(ssl.SSLContext):
    """Notes when the TLS handshake of the current task's connection begins."""

    sslobject_class = StampedSSLObject

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        exchange = EXCHANGE.get(None)
        if exchange is not None:
            exchange.tls_started_ns = now_ns()
        return super().wrap_bio(*args, **options)


def tls_context(cafile: str | None = None) -> ssl.SSLContext:
    """A verifying TLS context that stamps; `cafile` is trusted besides the system's roots."""
    context = _StampingSSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    context.load_default_certs()
    if cafile is not None:
        context.load_verify_locations(cafile)
    return context
