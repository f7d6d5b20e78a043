"""A real OpenTelemetry collector between agentprof and a sink: what it takes in, it passes on."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command import run
from otlp_sink import Sink, attributes_of, otlp_sink
from small_scenarios import write_scenario
from tiny_server import tiny_server


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@contextmanager
def collector(sink: Sink, folder: Path) -> Iterator[str]:
    """The rotel agent, receiving on a free port and exporting to the sink; gives its base URL."""
    spec = importlib.util.find_spec("rotel")
    if spec is None or spec.origin is None:
        pytest.fail("rotel, a development dependency, is not installed: pip install 'agentprof[dev]'")
    receiving = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            Path(spec.origin).with_name("rotel-agent"),
            "start",
            *("--otlp-http-endpoint", receiving, "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}"),
            *("--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", sink.url),
            *("--batch-timeout", "50ms", "--pid-file", folder / "rotel.pid", "--log-file", folder / "rotel.log"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        host, port = receiving.split(":")
        until = time.monotonic() + 15
        while True:
            assert process.poll() is None
            try:
                socket.create_connection((host, int(port)), 1).close()
                break
            except ConnectionRefusedError:
                assert time.monotonic() < until
                time.sleep(0.05)
        yield f"http://{receiving}"
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_a_collector_gets_agent_llm_and_tool_spans_with_their_parents(tmp_path: Path) -> None:
    write_scenario(tmp_path, checks=["true"])
    with tiny_server() as tiny, otlp_sink() as sink, collector(sink, tmp_path) as endpoint:
        ended = run(
            "replay",
            "tiny.yaml",
            *("--base-url", tiny.base_url, "--model", "tiny", "--warmup", "0", "--repeat", "2", "--out", "out"),
            *("--otlp-endpoint", endpoint),
            cwd=tmp_path,
        )
        assert (ended.code, ended.complaints) == (0, [])
        created = json.loads((tmp_path / "out" / "run.json").read_text())["client"]["spans_created"]
        until = time.monotonic() + 10
        while len(sink.spans) < created and time.monotonic() < until:
            time.sleep(0.05)
    assert len(sink.spans) == created
    by_id = {span.span_id: span for span in sink.spans}
    by_kind: dict[str, list[Any]] = {}
    for span in sink.spans:
        by_kind.setdefault(attributes_of(span).get("openinference.span.kind", ""), []).append(span)
    agents, calls, tools = by_kind["AGENT"], by_kind["LLM"], by_kind["TOOL"]
    assert [span.name for span in agents] == ["invoke_agent tiny"] * 2
    assert len({span.trace_id for span in sink.spans}) == 2
    assert all(span.parent_span_id == b"" for span in agents)
    assert [span.name for span in calls] == ["chat tiny"] * 4
    assert {span.kind for span in calls} == {3}  # CLIENT
    assert sorted(span.name for span in tools) == ["execute_tool bash"] * 2 + ["execute_tool read_file"] * 2
    for span in (*calls, *tools):
        step = by_id[span.parent_span_id]
        assert step.name.startswith("step ")
        assert by_id[step.parent_span_id].name == "invoke_agent tiny"
        assert step.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    call = attributes_of(calls[0])
    assert call["gen_ai.operation.name"] == "chat"
    assert call["gen_ai.usage.output_tokens"] == 8
    assert attributes_of(tools[0])["gen_ai.operation.name"] == "execute_tool"
    assert sink.resources[0]["service.name"] == "agentprof"
