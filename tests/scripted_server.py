"""A server that plays scripted bytes at scripted times, on threads of its own, so that no event loop delays it."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Do(Enum):
    """What a script can do besides sending bytes and waiting."""

    CLOSE = auto()
    RESET = auto()
    HANG = auto()  # say nothing more, until the server stops or the client leaves


Step = bytes | float | Do
Script = Sequence[Step]


@dataclass(frozen=True, slots=True)
class Received:
    """One request. arrived_ns: its last byte was read. connection: from 0."""

    connection: int
    line: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    arrived_ns: int

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class ScriptedServer:
    """Answers the n-th request (over all connections) with the n-th script, and each later one with the last.

    A script's bytes are sent one by one, a number is a pause in seconds. Afterwards the connection waits for another
    request. `greeting` is sent when a connection is accepted. `sent` holds, for each request answered so far, the
    stamps taken just before each send, on the clock that the product uses too.
    """

    scripts: Sequence[Script]
    tls: ssl.SSLContext | None = None
    handshake_delay: float = 0.0
    read_delay: float = 0.0
    greeting: bytes = b""
    host: str = "127.0.0.1"
    requests: list[Received] = field(default_factory=list)
    sent: list[list[int]] = field(default_factory=list)
    connections: int = 0
    played: list[int] = field(default_factory=list)  # requests whose scripts are through
    left: list[int] = field(default_factory=list)  # connections that the client closed or that broke
    port: int = 0
    _switch_interval: float = 0.005
    _listener: socket.socket | None = None
    _sockets: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}/v1"

    def __enter__(self) -> Self:
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0002)  # its threads share the interpreter with the client: neither waits long for it
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._listener = socket.create_server((self.host, 0), family=family, backlog=64)
        self.port = self._listener.getsockname()[1]
        self._start(self._accept, self._listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        sys.setswitchinterval(self._switch_interval)
        with self._lock:
            for sock in [self._listener, *self._sockets]:
                with suppress(OSError):  # its peer was faster
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()
        self._listener.close()

    def wait_left(self, count: int = 1, seconds: float = 2.0) -> bool:
        """Whether so many connections were closed by the client, within so many seconds."""
        return self._wait(self.left, count, seconds)

    async def settle(self, pause: float = 0.02) -> None:
        """Let the last script end and the client see it: it takes a moment more on a busy machine."""
        await asyncio.to_thread(self._wait, self.played, len(self.requests), 2.0)
        await asyncio.sleep(pause)

    def wait_busy(self, count: int = 1, is_connecting: bool = False, seconds: float = 10.0) -> bool:
        """Whether so many requests (or connections) came in, within so many seconds."""
        return self._wait(self._sockets if is_connecting else self.requests, count, seconds)

    def _wait(self, what: Sequence[object], count: int, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while len(what) < count and time.monotonic() < end:
            time.sleep(0.003)
        return len(what) >= count

    def _start(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopped.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                number = self.connections
                self.connections += 1
                self._sockets.append(sock)
            self._start(self._serve, sock, number)

    def _serve(self, raw: socket.socket, number: int) -> None:
        sock = raw
        try:
            if self.tls is not None:
                self._stopped.wait(self.handshake_delay)
                sock = self.tls.wrap_socket(raw, server_side=True)
                with self._lock:
                    self._sockets[self._sockets.index(raw)] = sock
            if self.greeting:
                sock.sendall(self.greeting)
            while (request := self._read(sock, number)) is not None:
                with self._lock:
                    index = len(self.requests)
                    self.requests.append(request)
                    self.sent.append([])
                goes_on = self._play(sock, index)
                self.played.append(index)
                if not goes_on:
                    return
            self.left.append(number)
        except OSError:
            self.left.append(number)
        finally:
            sock.close()

    def _read(self, sock: socket.socket, number: int) -> Received | None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = sock.recv(65536)
            if not piece:
                return None
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        line, *rest = head.decode("latin-1").split("\r\n")
        headers = [(name, value.strip()) for name, _, value in (one.partition(":") for one in rest)]
        size = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        self._stopped.wait(self.read_delay)
        pieces, missing = [body], size - len(body)
        while missing > 0:
            piece = sock.recv(1 << 20)
            if not piece:
                return None
            pieces.append(piece)
            missing -= len(piece)
        return Received(number, line, headers, b"".join(pieces), time.perf_counter_ns())

    def _play(self, sock: socket.socket, index: int) -> bool:
        """Whether the connection goes on."""
        for step in self.scripts[min(index, len(self.scripts) - 1)]:
            match step:
                case bytes():
                    self.sent[index].append(time.perf_counter_ns())
                    sock.sendall(step)
                case Do.CLOSE:
                    return False
                case Do.RESET:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return False
                case Do.HANG:
                    self.played.append(index)
                    if sock.recv(1) == b"":
                        self.left.append(-1)
                    return False
                case _:
                    self._stopped.wait(step)
        return True


def head(status: str = "200 OK", *headers: str, content_type: str = "text/event-stream") -> bytes:
    """A status line and headers, each `Name: value`."""
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {content_type}", *headers, "", ""]).encode("latin-1")


CHUNKED = head("200 OK", "Transfer-Encoding: chunked")
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def answer(status: str, body: Any, *headers: str, content_type: str = "application/json") -> bytes:
    """A whole response with a length; a body that isn't bytes is written as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(status, f"Content-Length: {len(data)}", *headers, content_type=content_type) + data


def make_certificate(folder: Path) -> tuple[ssl.SSLContext, str]:
    """A server's TLS context with a certificate for 127.0.0.1 and localhost made just now, and the file to trust."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, str(cert)
