"""A forwarder that holds back the first bytes of a TLS server, so that the handshake takes longer."""

from __future__ import annotations

import asyncio
import ssl

from agentprof.clock import now_ns
from agentprof.errors import InputError
from agentprof.serve.sim.deadlines import Deadlines
from agentprof.serve.sim.profile import Profile, Tls


def server_context(tls: Tls) -> ssl.SSLContext:
    """The server's certificate. Raises InputError where it can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"tls: {tls.cert} and {tls.key} can't be used: {error}. Both must be PEM files.") from None
    return context


def check_certificate(profile: Profile) -> None:
    """Raises InputError where the profile names a certificate that can't be used."""
    if profile.tls is not None:
        server_context(profile.tls)


class HandshakeDelay:
    """Listens in front of a TLS server on this host and delays the first bytes that it sends on each connection."""

    def __init__(self, target_port: int, delay_ns: int, deadlines: Deadlines) -> None:
        self._target_port, self._delay_ns, self._deadlines = target_port, delay_ns, deadlines
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._accept, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening and drop the connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        for pump in (self._pump(reader, inner_writer, 0), self._pump(inner_reader, writer, self._delay_ns)):
            task = asyncio.create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_ns: int) -> None:
        try:
            data = await reader.read(65536)
            if delay_ns:
                await self._deadlines.until(now_ns() + delay_ns)
            while data:
                writer.write(data)
                await writer.drain()
                data = await reader.read(65536)
        except ConnectionError:
            pass  # one side left; the other is told by the close below
        finally:
            writer.close()
