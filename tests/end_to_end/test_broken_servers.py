"""Servers, gateways and collectors at their worst, through the real command: one clear line, and what ran is kept."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from command import Ended, run, start
from otlp_sink import otlp_sink
from small_scenarios import write_scenario
from tiny_server import TinyServer, error, serve, tiny_server, tool_call_delta

from agentprof.analysis.explain import explain
from agentprof.cli.main import run as command
from agentprof.runs.store import read_run

KEY = "sk-tests-0123456789abcdef"
LIMITS = {"session": "1500ms", "tool": "10s", "output_tokens": 16}


def options(base_url: str) -> list[str]:
    return ["replay", "tiny.yaml", "--base-url", base_url, "--model", "tiny", "--warmup", "0", "--out", "out"]


def explained(folder: Path) -> list[dict[str, Any]]:
    sessions: list[dict[str, Any]] = explain({}, read_run(folder / "out").spans)["sessions"]
    for session in sessions:
        assert sum(ns or 0 for ns in session["ledger"].values()) == session["wall_ns"]
    return sessions


@contextmanager
def hanging(after: int, events: int) -> Iterator[TinyServer]:
    """A tiny server that, after so many requests, sends so many tokens and no more; with -1, not even headers."""
    tiny = TinyServer()

    async def chat(request: web.Request) -> web.StreamResponse:
        if len(tiny.requests) < after:
            return await tiny.chat(request)
        tiny.requests.append(await request.json())
        if events < 0:
            await asyncio.sleep(300)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(events):
            await response.write(b'data: {"choices": [{"index": 0, "delta": {"content": "w "}}]}\n\n')
        await asyncio.sleep(300)
        return response

    with serve({"POST /v1/chat/completions": chat, "GET /v1/models": tiny.models}) as url:
        tiny.base_url = url + "/v1"
        yield tiny


@pytest.mark.parametrize("events", [-1, 0, 5])
def test_a_server_that_falls_silent_ends_at_the_sessions_limit(tmp_path: Path, events: int) -> None:
    write_scenario(tmp_path, limits=LIMITS)
    with hanging(2, events) as tiny:  # after the ping and the first step
        ended = run(*options(tiny.base_url), cwd=tmp_path)
    assert ended.code == 4
    assert ended.complaints == [
        "agentprof: tiny on default, repetition 1: timed_out: the session's limit of 1.5 s was reached in step 2"
    ]
    (session,) = explained(tmp_path)
    assert session["outcome"] == "timed_out"
    assert 1.49e9 < session["wall_ns"] < 20e9  # the event loop's timers count whole milliseconds
    first, second = session["calls"]
    assert (first["error"], second["error"]["kind"]) == (None, "cancelled")
    assert session["output_tokens"] == 8
    assert session["ledger"]["tool"] > 0
    assert any("timed_out" in caution for caution in session["cautions"])


def test_sessions_at_once_each_end_at_their_limit(tmp_path: Path) -> None:
    write_scenario(tmp_path, limits=LIMITS)
    with hanging(3, 1) as tiny:
        ended = run(*options(tiny.base_url), "--concurrency", "4", cwd=tmp_path)
    assert ended.code == 4
    assert len(ended.complaints) == 4
    assert [session["outcome"] for session in explained(tmp_path)] == ["timed_out"] * 4


def test_a_wait_beyond_the_cap_is_one_line(tmp_path: Path) -> None:
    write_scenario(tmp_path)

    def fault(number: int) -> web.Response | None:
        return error(429, "quota used up", **{"Retry-After": "3600"}) if number == 2 else None

    with tiny_server(fault=fault) as tiny:
        ended = run(*options(tiny.base_url), "--repeat", "2", cwd=tmp_path)
    assert ended.code == 4
    assert len(ended.complaints) == 1
    assert "quota used up (error) (it asks to wait 3,600 s; no more than 60 s are waited)" in ended.complaints[0]
    assert [session["outcome"] for session in explained(tmp_path)] == ["failed", "completed"]


def test_a_server_that_is_gone_in_mid_run(tmp_path: Path) -> None:
    steps = [{"calls": [{"bash": {"command": f"touch {tmp_path}/here; sleep 0.5"}}]}, {"answer": "Done."}]
    write_scenario(tmp_path, length="free", turns=[{"user": "Go.", "steps": steps}])
    with tiny_server() as tiny:
        running = start(*options(tiny.base_url), "--repeat", "2", cwd=tmp_path)
        running.wait_for((tmp_path / "here").exists)
    ended = running.end()
    assert ended.code == 4
    assert len(ended.complaints) == 2
    assert all("connection refused at 127.0.0.1:" in line for line in ended.complaints)
    assert all(line.endswith("(after 3 attempts)") for line in ended.complaints)
    assert [len(session["calls"]) for session in explained(tmp_path)] == [2, 1]


@pytest.mark.parametrize("sink", [{"status": 500}, {"status": 503}, {"status": 404}, {"answer_s": 1.0}])
def test_an_otlp_endpoint_that_fails_or_is_slow_changes_no_result(tmp_path: Path, sink: dict[str, Any]) -> None:
    write_scenario(tmp_path, checks=["true"])
    with tiny_server() as tiny, otlp_sink(**sink) as collector:
        ended = run(*options(tiny.base_url), "--repeat", "2", "--otlp-endpoint", collector.url, cwd=tmp_path)
    assert ended.code == 0
    assert ended.seconds < 120
    client = json.loads((tmp_path / "out" / "run.json").read_text())["client"]
    if "status" in sink:
        lost = f"agentprof: {client['spans_created']} of {client['spans_created']} spans did not reach {collector.url}"
        assert ended.complaints == [f"{lost}/v1/traces; the run folder has them all."]
    else:
        assert (ended.complaints, client["spans_exported"]) == ([], client["spans_created"])
    assert [session["outcome"] for session in explained(tmp_path)] == ["completed"] * 2


def test_ctrl_c_does_not_wait_for_a_collector_that_hangs(tmp_path: Path) -> None:
    steps = [{"calls": [{"bash": {"command": f"touch {tmp_path}/here; sleep 60"}}]}, {"answer": "Done."}]
    write_scenario(tmp_path, length="free", turns=[{"user": "Go.", "steps": steps}])
    with tiny_server() as tiny, otlp_sink(answer_s=300) as collector:
        running = start(*options(tiny.base_url), "--otlp-endpoint", collector.url, cwd=tmp_path)
        running.wait_for((tmp_path / "here").exists)
        ended = running.signal(signal.SIGINT)
    assert ended.code == 130
    assert ended.seconds < 120
    assert [session["outcome"] for session in explained(tmp_path)] == ["cancelled"]


def check_no_key(folder: Path, ended: Ended, collected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert KEY not in ended.out + ended.err
    for path in (folder / "out").iterdir():
        text = path.read_text()
        assert KEY not in text, path
        assert "Bearer" not in text, path
    assert KEY not in collected
    for more in ([], ["--json"]):
        command(["explain", str(folder / "out"), *more])
        told = capsys.readouterr()
        assert KEY not in told.out + told.err


@pytest.mark.parametrize("where", ["an error", "the stream", "a tool call", "headers"])
def test_a_key_that_the_server_sends_back_goes_nowhere(
    tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scenario(tmp_path, mode="live", turns=[{"user": "Go."}])
    headers = {"Server-Timing": f'queue;dur=3;desc="{KEY}"', "X-LiteLLM-Overhead-Duration-Ms": KEY}

    def fault(number: int) -> web.Response | None:
        if number == 0 or where not in ("an error", "headers"):
            return None
        return error(400, f"Incorrect key {KEY}" if where == "an error" else "no", **headers)

    def reply(number: int) -> list[dict[str, Any]] | None:
        if where == "a tool call" and number == 1:
            return [tool_call_delta("bash", json.dumps({"command": f"echo {KEY}"}), call_id=f"call-{KEY}")]
        return [{"content": f"Your key is {KEY}", "reasoning": KEY}] if where == "the stream" else [{"content": "ok"}]

    with tiny_server(fault=fault, reply=reply) as tiny, otlp_sink() as collector:
        asked = ["--capture-content", "--allow-unsandboxed", "--api-key-env", "TINY_KEY"]
        ended = run(
            *options(tiny.base_url), *asked, "--otlp-endpoint", collector.url, cwd=tmp_path, TINY_KEY=f" {KEY}\n"
        )
        assert tiny.headers[-1]["Authorization"] == f"Bearer {KEY}"
    assert ended.code == (4 if where in ("an error", "headers") else 0)
    assert collector.spans
    check_no_key(tmp_path, ended, str(collector.spans) + str(collector.resources), capsys)


def test_a_key_is_in_no_line_about_a_server_that_is_not_there(tmp_path: Path) -> None:
    write_scenario(tmp_path)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        ended = run(*options(url), "--api-key-env", "TINY_KEY", cwd=tmp_path, TINY_KEY=KEY)
    assert (ended.code, len(ended.complaints)) == (2, 1)
    assert KEY not in ended.out + ended.err
