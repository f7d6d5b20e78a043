"""The simulated server as a process: start, stop, death with its parent, TLS, the command."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from sim_wire import FAST, MS, Server, ask, chat, connect, send, serving

from agentprof.errors import InputError
from agentprof.serve.sim import Profile, read_truth, start_sim

REPOSITORY = Path(__file__).parents[2]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_alive(pid)


def test_a_server_starts_answers_logs_and_stops(tmp_path: Path) -> None:
    with start_sim(Profile.model_validate(FAST), log=tmp_path / "t.jsonl") as sim:
        assert sim.base_url.startswith("http://127.0.0.1:")
        assert sim.base_url == f"{sim.root_url}/v1"
        server = Server(int(sim.root_url.rsplit(":", 1)[1]), sim.log)
        before = time.perf_counter_ns()
        ask(server, chat())
        [truth] = sim.truth(1)
        assert before < truth.received_ns < truth.finish_ns < time.perf_counter_ns()  # one clock for both processes
        assert is_alive(sim.pid)
    assert not is_alive(sim.pid)
    assert len(read_truth(tmp_path / "t.jsonl")) == 1


def test_a_log_that_nobody_asked_for_goes_with_the_server() -> None:
    with start_sim(Profile.model_validate(FAST)) as sim:
        assert sim.log.is_file()
    assert not sim.log.parent.exists()


def test_stopping_cuts_open_requests_and_logs_them(tmp_path: Path) -> None:
    with start_sim(Profile.model_validate(FAST | {"decode": {"step": "50ms"}}), log=tmp_path / "t.jsonl") as sim:
        port = int(sim.root_url.rsplit(":", 1)[1])
        server = Server(port, sim.log)
        with connect(server) as open_socket:
            send(open_socket, "POST", "/v1/chat/completions", chat(max_tokens=4000))
            assert open_socket.recv(1000)
            start = time.monotonic()
            sim.stop()
            assert time.monotonic() - start < 4
    [truth] = read_truth(tmp_path / "t.jsonl")
    assert 0 < truth.output_tokens < 4000


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_dies_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from agentprof.serve.sim import Profile, start_sim\n"
        "sim = start_sim(Profile(), log=Path(sys.argv[1]))\n"
        "print(sim.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "t.jsonl")], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.send_signal(how)
    parent.wait(10)
    parent.stdout.close()
    assert wait_for_end(pid)


def test_what_can_not_be_served_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be written"):
        start_sim(Profile(), log=tmp_path / "no" / "folder" / "t.jsonl")
    missing = {"tls": {"cert": str(tmp_path / "c.pem"), "key": str(tmp_path / "k.pem")}}
    with pytest.raises(InputError, match="PEM"):
        start_sim(Profile.model_validate(missing), log=tmp_path / "t.jsonl")
    for scale in (0, -3, float("inf")):
        with pytest.raises(InputError, match="time scale"):
            start_sim(Profile(), log=tmp_path / "t.jsonl", time_scale=scale)


def test_a_log_of_something_else_is_an_input_error(tmp_path: Path) -> None:
    log = tmp_path / "x.jsonl"
    log.write_text('{"a": 1}\n')
    with pytest.raises(InputError, match="not a log"):
        read_truth(log)
    log.write_text('{"number": 1, "cut')
    assert read_truth(log) == []
    with pytest.raises(InputError, match="can't be read"):
        read_truth(tmp_path / "none.jsonl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    options = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    return cert, key


@pytest.mark.parametrize("delay_ms", [0, 600])
def test_the_handshake_takes_its_delay_and_nothing_else_does(
    tmp_path: Path, certificate: tuple[Path, Path], delay_ms: int
) -> None:
    cert, key = certificate
    tls = {"cert": str(cert), "key": str(key), "handshake_delay": f"{delay_ms}ms"}
    context = ssl.create_default_context(cafile=str(cert))
    with serving(tmp_path, tls=tls) as server:
        start = time.perf_counter_ns()
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        connected = time.perf_counter_ns()
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            shaken = time.perf_counter_ns()
            body = b'{"model":"simulated","messages":[{"role":"user","content":"Hi"}],"stream":true,"max_tokens":5}'
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            secure.sendall(head % len(body) + body)
            data = b""
            while part := secure.recv(65536):
                data += part
            ended = time.perf_counter_ns()
        [truth] = server.truth(1)
    assert data.endswith(b"0\r\n\r\n")
    assert truth.output_tokens == 5
    assert connected - start < 500 * MS
    assert shaken - connected >= delay_ms * MS
    assert shaken - connected < (delay_ms + 500) * MS
    assert ended - shaken < 500 * MS


def test_the_command_serves_until_interrupted(tmp_path: Path) -> None:
    program = "from agentprof.cli.serve_sim import sim; sim()"
    profile = str(REPOSITORY / "scenarios" / "backends" / "one-gpu-speculative.yaml")
    arguments = [profile, "--log", str(tmp_path / "t.jsonl"), "--time-scale", "20", "--seed", "3"]
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    base_url = next(word for word in line.split() if word.startswith("http"))
    with urllib.request.urlopen(f"{base_url}/models", timeout=10) as response:  # noqa: S310  our own server
        assert b"qwen3.8-27b" in response.read()
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(10) == 0
    process.stdout.close()


def test_a_log_on_a_full_disk_costs_no_answer_and_is_told_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("decode: {step: 1ms}\nprefill: {base: 1ms}\n")
    command = [sys.executable, "-m", "agentprof", "serve", "sim", str(tmp_path / "p.yaml"), "--log", "/dev/full"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    base_url = next(word for word in process.stdout.readline().split() if word.startswith("http"))
    server = Server(int(base_url.split(":")[2].split("/")[0]), tmp_path)
    for _ in range(2):
        assert ask(server, chat()).status == 200
    os.kill(process.pid, signal.SIGTERM)
    _, told = process.communicate(timeout=10)
    assert process.returncode == 4
    assert told == "agentprof: /dev/full: 2 requests are missing in the log: No space left on device\n"


def test_the_command_explains_itself() -> None:
    program = "from agentprof.cli.serve_sim import sim; sim()"
    told = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True).stdout
    for option in ("--host", "--port", "--log", "--seed", "--time-scale", "docs/simulator.md"):
        assert option in told
