"""When a request came, and on which connection: what the log says of it."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from sim_wire import MS, ask, chat, serving

BODY = b'{"model":"simulated","messages":[{"role":"user","content":"Hi"}],"stream":true,"max_tokens":3}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)


def read_reply(sock: socket.socket) -> None:
    seen = b""
    while b"0\r\n\r\n" not in seen:
        data = sock.recv(65536)
        assert data
        seen += data


def test_a_request_arrives_before_it_is_read(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        answer = ask(server, chat())
        [truth] = server.truth(1)
    assert answer.sent_ns <= truth.arrived_ns <= truth.body_ns <= truth.first_token_ns
    assert truth.arrived_ns <= truth.received_ns


def test_a_body_that_comes_late_arrives_late(tmp_path: Path) -> None:
    with serving(tmp_path) as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(HEAD + BODY[:20])
        time.sleep(0.15)
        before_ns = time.perf_counter_ns()
        sock.sendall(BODY[20:])
        read_reply(sock)
        [truth] = server.truth(1)
    assert truth.received_ns < before_ns <= truth.arrived_ns <= truth.body_ns
    assert truth.arrived_ns - truth.received_ns >= 100 * MS


def test_requests_on_one_connection_share_its_port(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            port = sock.getsockname()[1]
            for _ in range(2):
                sock.sendall(HEAD + BODY)
                read_reply(sock)
        ask(server, chat())
        first, second, other = server.truth(3)
    assert first.client_port == second.client_port == port
    assert other.client_port not in (0, port)
    assert first.finish_ns <= second.arrived_ns
