"""Sending events: at once, in blocks, or all at the end, each stamped at the write that carries its last byte."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from aiohttp import web

from agentprof.clock import now_ns
from agentprof.serve.sim.chunks import Frame
from agentprof.serve.sim.profile import Stream
from agentprof.serve.sim.truth import RequestTruth


class Outbox:
    """The way of one response's events to its socket.

    It frames HTTP chunks itself, past aiohttp's writer: three coroutines less per chunk. The response's headers must
    have been sent; the response ends the chunked body.
    """

    def __init__(self, request: web.Request, stream: Stream, truth: RequestTruth) -> None:
        self._request, self._truth = request, truth
        self._block_bytes = stream.burst_bytes
        self._burst_tokens = stream.burst_tokens
        self._holds = stream.buffered or bool(stream.burst_bytes or stream.burst_tokens)
        self._held: deque[Frame] = deque()
        self._bytes = bytearray()
        self._has_tls = request.secure
        self._sent_of_first = 0  # bytes of the first held frame that are out already
        self._held_tokens = 0
        self.last_write_ns = now_ns()

    def send(self, frames: Sequence[Frame]) -> None:
        """Send frames, or hold them back as the profile's buffering has it. Raises ConnectionResetError."""
        if not frames:
            return
        if not self._holds:
            data = frames[0].data if len(frames) == 1 else b"".join(frame.data for frame in frames)
            self._truth.add(self._write(data), frames)
            return
        for frame in frames:
            self._held.append(frame)
            self._bytes += frame.data
            self._held_tokens += frame.tokens
        if self._block_bytes is not None:
            while len(self._bytes) >= self._block_bytes:
                self._release(self._block_bytes)
        elif self._burst_tokens is not None and self._held_tokens >= self._burst_tokens:
            self.flush()

    def flush(self) -> None:
        """Send what is held."""
        if self._bytes:
            self._release(len(self._bytes))
        self._held_tokens = 0

    def _release(self, size: int) -> None:
        data, self._bytes = bytes(self._bytes[:size]), self._bytes[size:]
        at_ns = self._write(data)
        room = size + self._sent_of_first
        whole: list[Frame] = []
        while self._held and len(self._held[0].data) <= room:
            room -= len(self._held[0].data)
            whole.append(self._held.popleft())
        self._sent_of_first = room
        self._truth.add(at_ns, whole)

    def _write(self, data: bytes) -> int:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has left")
        framed = b"%x\r\n%b\r\n" % (len(data), data)
        at_ns = now_ns()
        transport.write(framed)
        if self._has_tls:
            at_ns = now_ns()  # before, it was still to be encrypted
        self.last_write_ns = at_ns
        return at_ns
