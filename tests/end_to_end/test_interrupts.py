"""Ctrl-C, SIGTERM and kill -9 at any moment: what was finished is kept, and nothing is left running."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest
from aiohttp import web
from command import Ended, is_alive, run, start
from small_scenarios import write_scenario
from tiny_server import TinyServer, serve, tiny_server

from agentprof import semconv
from agentprof.records.spans import Span
from agentprof.runs.store import read_run


def write_slow_scenario(folder: Path) -> Path:
    """A scenario whose tool notes its process and then takes long; gives the file that holds the process's number."""
    pids = folder / "pids"
    # In the second session: its workspace is the second that adds a line.
    command = f"echo $$ >> {pids}; pwd >> {folder}/places; if [ $(wc -l < {pids}) -ge 2 ]; then sleep 300; fi; true"
    steps = [{"calls": [{"bash": {"command": command}}], "output_tokens": 2}, {"answer": "Done.", "output_tokens": 2}]
    limits = {"session": "10m", "tool": "10m", "output_tokens": 16}
    write_scenario(folder, turns=[{"user": "Go.", "steps": steps}], limits=limits, checks=["true"])
    return pids


def options(tiny: TinyServer) -> list[str]:
    return ["replay", "tiny.yaml", "--base-url", tiny.base_url, "--model", "tiny", "--warmup", "0", "--out", "out"]


def roots(folder: Path) -> list[Span]:
    spans = read_run(folder / "out").spans
    return [span for span in spans if span.name.startswith(semconv.INVOKE_AGENT)]


def interrupt_second_session(folder: Path, number: signal.Signals, *, again: bool = False) -> Ended:
    """Send a signal while the second of four sessions runs a tool; asserts that nothing is left running."""
    pids = write_slow_scenario(folder)
    with tiny_server() as tiny:
        running = start(*options(tiny), "--repeat", "4", cwd=folder)
        running.wait_for(lambda: pids.exists() and len(pids.read_text().splitlines()) == 2)
        ended = running.signal(number, again=again)
    assert "Traceback" not in ended.err
    assert running.survivors() == []
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())
    assert not any(Path(place).exists() for place in (folder / "places").read_text().split())
    return ended


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_session_keeps_and_explains_what_ran(tmp_path: Path, number: signal.Signals) -> None:
    ended = interrupt_second_session(tmp_path, number)
    assert ended.code == 130
    assert (
        ended.complaints == ["agentprof: interrupted: 1 of 4 sessions ended before, 1 were cut short; all are kept."]
        or "interrupted" in ended.complaints[0]
    )
    assert "Run folder: out" in ended.out
    assert "unattributed" in ended.out
    assert [root.attributes[semconv.OUTCOME] for root in roots(tmp_path)] == ["completed", "cancelled"]
    told = run("explain", "out", "--json", cwd=tmp_path)
    assert told.code == 4
    assert "2 of 4 sessions are missing: tiny on default: repetition 3, repetition 4." in told.complaints[0]
    for session in json.loads(told.out)["sessions"]:
        assert sum(ns or 0 for ns in session["ledger"].values()) == session["wall_ns"]


def test_an_impatient_second_signal_leaves_nothing_running_either(tmp_path: Path) -> None:
    ended = interrupt_second_session(tmp_path, signal.SIGINT, again=True)
    assert ended.code == 130
    assert roots(tmp_path)[0].attributes[semconv.OUTCOME] == "completed"


def test_a_signal_before_the_first_session_is_one_line(tmp_path: Path) -> None:
    async def hang(request: web.Request) -> web.Response:
        asked.append(1)
        await asyncio.sleep(300)
        return web.Response()

    asked: list[int] = []
    write_scenario(tmp_path)
    with serve({"POST /v1/chat/completions": hang}) as url:
        for number in (signal.SIGINT, signal.SIGTERM):
            asked.clear()
            running = start(*options(TinyServer(base_url=url + "/v1")), cwd=tmp_path)
            running.wait_for(lambda: bool(asked))
            ended = running.signal(number)
            assert ended.code == 130
            assert ended.complaints == ["agentprof: interrupted"]
            assert "Traceback" not in ended.err
    assert not (tmp_path / "out").exists()


def test_kill_9_keeps_finished_sessions_and_names_the_others(tmp_path: Path) -> None:
    pids = write_slow_scenario(tmp_path)
    with tiny_server() as tiny:
        running = start(*options(tiny), "--repeat", "4", cwd=tmp_path)
        running.wait_for(lambda: pids.exists() and len(pids.read_text().splitlines()) == 2)
        assert running.signal(signal.SIGKILL).code == -signal.SIGKILL
        until = time.monotonic() + 15
        while running.survivors() and time.monotonic() < until:
            time.sleep(0.05)
    assert running.survivors() == []
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())
    assert not any(Path(place).exists() for place in (tmp_path / "places").read_text().split())
    told = run("explain", "out", "--json", cwd=tmp_path)
    assert told.code == 4
    (session,) = json.loads(told.out)["sessions"]
    assert (session["repetition"], session["outcome"], session["checks_passed"]) == (1, "completed", True)
    assert told.complaints == [
        "agentprof: out: 3 of 4 sessions are missing: tiny on default: repetition 2, repetition 3, repetition 4."
    ]
