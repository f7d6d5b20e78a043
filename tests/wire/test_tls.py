"""What happens between the socket and the cipher, on a handshake held in memory."""

from __future__ import annotations

import ssl
import time

import pytest
from scripted_server import make_certificate

from agentprof.wire.tls import StampedSSLObject, tls_context


class Line:
    """A client's and a server's cipher over two buffers, after their handshake."""

    def __init__(self, server_context: ssl.SSLContext, trusted: str) -> None:
        self.to_client, self.to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = tls_context(trusted).wrap_bio(self.to_client, self.to_server, server_hostname="127.0.0.1")
        assert isinstance(client, StampedSSLObject)
        self.client = client
        self.server = server_context.wrap_bio(self.to_server, self.to_client, server_side=True)
        for side in (client, self.server, client, self.server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue

    def client_reads(self, most: int = 2**18) -> bytes:
        """As an event loop reads: until there is no whole record any more."""
        found = b""
        while True:
            try:
                found += self.client.read(most)
            except ssl.SSLWantReadError:
                return found


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def line(certificate: tuple[ssl.SSLContext, str]) -> Line:
    return Line(*certificate)


def test_what_is_read_is_stamped_before_it_is_decrypted(line: Line) -> None:
    line.server.write(b"a" * 16_000)
    line.server.write(b"b" * 16_000)
    before_ns = time.perf_counter_ns()
    first = line.client.read(16_000)
    between_ns = time.perf_counter_ns()
    rest = line.client_reads()
    assert (first, rest) == (b"a" * 16_000, b"b" * 16_000)
    stamp_ns = line.client.take_read_ns()
    assert stamp_ns is not None
    assert before_ns <= stamp_ns <= between_ns  # the first read's, not the last one's


def test_a_stamp_is_taken_once(line: Line) -> None:
    line.server.write(b"a")
    line.client_reads()
    assert line.client.take_read_ns() is not None
    assert line.client.take_read_ns() is None


def test_half_a_record_is_no_arrival(line: Line) -> None:
    line.client_reads()  # session tickets
    line.server.write(b"a" * 1000)
    whole = line.to_client.read()
    line.to_client.write(whole[:500])
    assert line.client_reads() == b""
    assert line.client.take_read_ns() is None
    half_ns = time.perf_counter_ns()
    line.to_client.write(whole[500:])
    assert line.client_reads() == b"a" * 1000
    stamp_ns = line.client.take_read_ns()
    assert stamp_ns is not None
    assert stamp_ns >= half_ns


def test_what_is_written_is_stamped_when_it_is_encrypted(line: Line) -> None:
    assert line.client.written_ns is None
    before_ns = time.perf_counter_ns()
    assert line.client.write(b"a" * 1000) == 1000
    after_ns = time.perf_counter_ns()
    first_ns = line.client.written_ns
    assert first_ns is not None
    assert before_ns < first_ns <= after_ns
    line.client.write(b"b")
    assert line.client.written_ns > first_ns
    assert line.server.read(1000) == b"a" * 1000


def test_into_a_buffer_too(line: Line) -> None:
    line.server.write(b"abc")
    room = bytearray(8)
    assert line.client.read(8, room) == 3
    assert bytes(room[:3]) == b"abc"
    assert line.client.take_read_ns() is not None
