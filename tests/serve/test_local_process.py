"""The embedded engine as a process: it starts for real, ends with its parent, and fails in one line."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agentprof.errors import BackendError, InputError
from agentprof.serve.local import KV_TYPES, EngineOptions, LocalEngine, start_engine
from agentprof.serve.weights import find_weights

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine"), pytest.mark.usefixtures("_engine_installed")]

SMALL = EngineOptions(threads=1, context_tokens=512)
PARENT = """
import sys, time
from agentprof.serve.local import EngineOptions, start_engine
engine = start_engine(EngineOptions(threads=1, context_tokens=512))
print(engine.pid, engine.log, flush=True)
time.sleep(120)
"""
SERVE = "from agentprof.cli.serve import serve; serve()"


def is_running(pid: int) -> bool:
    """Whether the process lives; a zombie that nobody has reaped doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ends_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while is_running(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def port_of(engine: LocalEngine) -> int:
    port = urlsplit(engine.base_url).port
    assert port is not None
    return port


def exchange(engine: LocalEngine, method: str, path: str, body: bytes | None = None) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(engine), timeout=60)
    with closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        return response.read().decode()


def is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def test_starts_with_a_real_token_and_stops_without_a_trace() -> None:
    with start_engine(SMALL) as engine:
        metrics = exchange(engine, "GET", "/metrics")
        assert "llamacpp:tokens_predicted_total 1\n" in metrics
        assert "listening on http://127.0.0.1" in engine.log.read_text()
        assert is_open("127.0.0.1", port_of(engine))
        assert not is_open("127.0.0.2", port_of(engine))
        assert engine.wait(0) is None
        assert is_running(engine.pid)
    assert not is_running(engine.pid)
    assert not engine.log.exists()
    assert not is_open("127.0.0.1", port_of(engine))
    engine.stop()  # once more does nothing


def test_stop_doesn_t_wait_for_a_request_in_flight() -> None:
    engine = start_engine(SMALL)
    body = b'{"messages":[{"role":"user","content":"Count."}],"max_tokens":400,"ignore_eos":true,"stream":true}'
    with socket.create_connection(("127.0.0.1", port_of(engine)), timeout=20) as client:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        started = time.monotonic()
        engine.stop()
        assert time.monotonic() - started < 3
    assert not is_running(engine.pid)


def test_one_thread_means_one_busy_core(engine: LocalEngine) -> None:
    def cpu_s() -> float:
        fields = Path(f"/proc/{engine.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    body = b'{"messages":[{"role":"user","content":"Count."}],"max_tokens":64,"ignore_eos":true}'
    cpu_before_s, before_s = cpu_s(), time.monotonic()
    exchange(engine, "POST", "/v1/chat/completions", body)
    assert 0 < cpu_s() - cpu_before_s < 1.25 * (time.monotonic() - before_s)


def test_kill_9_of_the_parent_leaves_no_engine() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, log = parent.stdout.readline().split()
        assert is_running(int(pid))
        parent.kill()
    assert ends_within(int(pid), 3)
    assert not Path(log).exists()


BUSY = """
from agentprof.serve.local_process import _die_with_parent_while_loading as arm
arm(is_on=True)
print("armed", flush=True)
sum(range(10**12))
"""


def test_the_kernel_ends_a_process_that_is_busy_loading() -> None:
    # Like llama.cpp's loader, sum() over a range keeps the interpreter to itself: only the kernel can end it.
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as busy:
        assert busy.stdin is not None
        assert busy.stdout is not None
        assert busy.stdout.readline() == b"armed\n"
        assert busy.poll() is None
        busy.stdin.close()
        try:
            assert busy.wait(3) == -signal.SIGIO
        finally:
            busy.kill()


def test_a_parent_that_went_before_loading_began_is_noticed() -> None:
    command = [sys.executable, "-c", BUSY]
    stdin, parent_end = os.pipe()
    os.close(parent_end)
    with os.fdopen(stdin, "rb") as closed:
        ended = subprocess.run(command, stdin=closed, capture_output=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGIO
    assert ended.stdout == b""


@pytest.mark.parametrize("after_s", [0, 0.1, 0.3])
def test_kill_9_of_the_parent_while_the_engine_loads(after_s: float, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # killed while loading, its log stays
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        end = time.monotonic() + 20
        while not (found := children(parent.pid)) and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(after_s)
        parent.kill()
    assert len(found) == 1
    assert ends_within(found[0], 20)  # Python's own start included


def test_an_engine_that_dies_is_noticed() -> None:
    with start_engine(SMALL) as engine:
        os.kill(engine.pid, signal.SIGKILL)
        assert engine.wait(5) == -signal.SIGKILL
        assert "exit code -9" in engine.fault()


def test_a_broken_file_is_one_line_with_llama_cpp_s_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    with find_weights(None).open("rb") as whole:
        broken.write_bytes(whole.read(10_000_000))
    with pytest.raises(BackendError) as caught:
        start_engine(EngineOptions(model=broken, threads=1))
    assert "broken didn't start" in str(caught.value)
    assert "corrupted or incomplete" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"^port {port} on 127.0.0.1 is taken") as caught:
            start_engine(EngineOptions(threads=1, context_tokens=512, port=port))
    assert "\n" not in str(caught.value)


def test_the_kv_type_reaches_llama_cpp_for_keys_and_values() -> None:
    from agentprof.serve.local_process import _parameters

    for kv_type in KV_TYPES:
        order = asdict(EngineOptions(threads=1, kv_type=kv_type)) | {"weights": "w", "model": "m", "template": None}
        parameters = _parameters(order)
        assert parameters.cache_type_k.name == parameters.cache_type_v.name == f"GGML_TYPE_{kv_type.upper()}"


def test_too_slow_a_start_is_one_line_and_leaves_nothing() -> None:
    before = set(children(os.getpid()))
    with pytest.raises(BackendError, match=r"smollm2-135m isn't loaded after 0\.05 s"):
        start_engine(SMALL, deadline_s=0.05)
    assert set(children(os.getpid())) <= before


def test_ctrl_c_is_the_normal_end_of_serve_local() -> None:
    command = [sys.executable, "-c", SERVE, "local", "--threads", "1", "--context", "512"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        lines = [server.stdout.readline() for _ in range(5)]
        (pid,) = children(server.pid)
        server.send_signal(signal.SIGINT)
        assert server.wait(10) == 0
        assert server.stderr.read() == ""
    base_url = lines[0].split()[1]
    assert base_url.startswith("http://127.0.0.1:")
    assert lines[1].split() == ["model", "smollm2-135m"]
    assert "1 thread, 1 slot of 512 tokens, KV f16" in lines[2]
    assert f"agentprof replay scenarios/fix-failing-test.yaml --base-url {base_url} --model smollm2-135m" in lines[4]
    assert not is_running(pid)
