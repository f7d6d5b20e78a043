"""Replays on a real model: what llama.cpp says of itself agrees with the ledger, and caches hold what they should."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from command import run, start
from small_scenarios import make_scenario, write_scenario

from agentprof.analysis.explain import explain
from agentprof.records.backend import Backend
from agentprof.runs.recording import Observer
from agentprof.runs.replay import Replay, ReplayOptions
from agentprof.runs.store import RunData, read_run
from agentprof.serve.local import EngineOptions, LocalEngine, start_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

Json = dict[str, Any]


def ask(engine: LocalEngine, path: str, body: Json) -> Json:
    """POST to one of llama.cpp's own endpoints."""
    address = urlsplit(engine.base_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer: Json = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def tokens_of(engine: LocalEngine, request: Json) -> list[int]:
    """The tokens of a captured request's prompt."""
    prompt = ask(engine, "/apply-template", {"messages": request["messages"], "tools": request["tools"]})["prompt"]
    found: list[int] = ask(engine, "/tokenize", {"content": prompt, "parse_special": True})["tokens"]
    return found


def common_prefix(one: list[int], two: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def replay(engine: LocalEngine, folder: Path, seed: str, **changes: Any) -> tuple[RunData, list[Json], list[Json]]:
    """Two repetitions: the run, its explained sessions, and the captured requests in order."""
    options = ReplayOptions(repeat=2, warmup=0, has_content=True, run_seed=seed)
    backend = Backend(name="engine", base_url=engine.base_url, model=engine.model)
    scenario = make_scenario(folder, **changes)
    asyncio.run(Replay([scenario], [backend], options, folder / "out", Observer()).run())
    data = read_run(folder / "out")
    lines = [json.loads(line) for line in (folder / "out" / "content.jsonl").read_text().splitlines()]
    requests = [line["content"] for line in lines if line["kind"] == "request"]
    return data, explain({}, data.spans)["sessions"], requests


def test_production_shares_system_prompt_and_tools_and_the_ledger_agrees_with_the_engine(
    engine: LocalEngine, tmp_path: Path
) -> None:
    data, sessions, requests = replay(engine, tmp_path, "production")
    assert data.facts["backends"]["engine"]["fingerprint"]["engine"] == "llama.cpp"
    prompts = [tokens_of(engine, request) for request in requests]
    calls = [call for session in sessions for call in session["calls"]]
    assert [call["prompt_tokens"] for call in calls] == [len(prompt) for prompt in prompts]

    shared = common_prefix(prompts[0], prompts[2])
    nonce_at = len(
        ask(engine, "/tokenize", {"content": prompt_before_nonce(engine, requests[2]), "parse_special": True})["tokens"]
    )
    assert nonce_at <= shared <= nonce_at + 12  # the first digits of two nonces may be equal
    assert calls[2]["cached_tokens"] == shared  # all of what is equal, and nothing else
    assert shared >= 0.7 * len(prompts[2])
    for call, before in ((calls[1], prompts[0]), (calls[3], prompts[2])):  # inside a session: all that was sent before
        assert call["cached_tokens"] >= len(before) - 1

    for session in sessions:
        reported = [call["server"] for call in session["calls"]]
        assert sum(ns or 0 for ns in session["ledger"].values()) == session["wall_ns"]
        assert_near(session["ledger"]["prefill"], sum(server["prefill_ns"] for server in reported))
        assert_near(session["ledger"]["decode"], sum(server["decode_ns"] for server in reported))
        assert session["ledger"]["unattributed"] < 0.01 * session["wall_ns"]
        assert session["output_tokens"] == 16
        assert {call["server"]["source"] for call in session["calls"]} == {"llama.cpp timings"}


def prompt_before_nonce(engine: LocalEngine, request: Json) -> str:
    prompt: str = ask(engine, "/apply-template", {"messages": request["messages"], "tools": request["tools"]})["prompt"]
    head, found, _ = prompt.partition("[session ")
    assert found
    return head + found


def assert_near(found_ns: int, told_ns: int) -> None:
    """Within 10 % and 15 ms: the engine's clock stops before the bytes are sent, and the machine may be busy."""
    assert abs(found_ns - told_ns) <= 0.1 * told_ns + 15_000_000, (found_ns, told_ns)


def test_isolated_shares_nothing_between_sessions_and_all_inside(engine: LocalEngine, tmp_path: Path) -> None:
    _, sessions, requests = replay(engine, tmp_path, "isolated", cache="isolated")
    prompts = [tokens_of(engine, request) for request in requests]
    assert len(prompts[0]) == len(prompts[2])
    first, second = sessions
    for session in (first, second):
        assert session["calls"][0]["cached_tokens"] <= 24  # the template's head, up to the nonce's first digits
        assert session["calls"][1]["cached_tokens"] >= session["calls"][0]["prompt_tokens"] - 1
        assert not any("isolated" in caution for caution in session["cautions"])
    assert common_prefix(prompts[0], prompts[2]) <= 24


def test_six_sessions_at_once_lose_nothing(tmp_path: Path) -> None:
    turn = {"user": "Go.", "steps": [{"answer": "Done.", "output_tokens": 4}]}
    scenario = make_scenario(tmp_path, tools=[], turns=[turn, turn])
    with start_engine(EngineOptions(threads=1, slots=6, context_tokens=1024)) as engine:
        backend = Backend(name="engine", base_url=engine.base_url, model=engine.model)
        options = ReplayOptions(repeat=6, concurrency=6, warmup=0, run_seed="six")
        summary = asyncio.run(Replay([scenario], [backend], options, tmp_path / "out", Observer()).run())
    data = read_run(tmp_path / "out")
    assert data.problems == []
    assert summary.counts.spans_created == summary.counts.spans_written == len(data.spans)
    sessions = explain({}, data.spans)["sessions"]
    assert [session["outcome"] for session in sessions] == ["completed"] * 6
    for session in sessions:
        assert sum(ns or 0 for ns in session["ledger"].values()) == session["wall_ns"]
        assert session["client_lag_p99_ns"] is not None
        assert session["ledger"]["unattributed"] < 0.01 * session["wall_ns"]


SHORT = [
    {
        "user": "Go.",
        "steps": [
            {"calls": [{"bash": {"command": "echo one"}}], "output_tokens": 4},
            {"answer": "Done.", "output_tokens": 4},
        ],
    }
]


def test_the_embedded_engine_runs_as_long_as_the_command(tmp_path: Path) -> None:
    write_scenario(tmp_path, tools=["bash"], turns=SHORT, checks=["true"])
    running = start("replay", "tiny.yaml", "-b", "local", "--warmup", "0", "--out", "out", cwd=tmp_path)
    ended = running.end(120)
    assert (ended.code, ended.complaints) == (0, [])
    assert ended.err.splitlines()[0] == "starting the embedded engine"
    assert "tiny on local" in ended.out
    assert "prefill" in ended.out
    assert running.survivors() == []
    explained = run("explain", "out", cwd=tmp_path)
    assert explained.out.rstrip() == ended.out.partition("\nRun folder")[0].rstrip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_while_the_engine_starts_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    write_scenario(tmp_path)
    running = start("replay", "tiny.yaml", "-b", "local", cwd=tmp_path)
    running.wait_for(lambda: len(running.survivors()) == 2)  # the command and its engine
    ended = running.signal(number)
    assert ended.code == (-number if number is signal.SIGKILL else 130)
    assert "Traceback" not in ended.err
    if number is signal.SIGINT:
        assert ended.complaints == ["agentprof: interrupted"]
    wait_until_gone(running.survivors)
    assert not (tmp_path / "runs").exists()


def wait_until_gone(survivors: Callable[[], list[int]], deadline_s: float = 20) -> None:
    until = time.monotonic() + deadline_s
    while survivors():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_signal_in_a_session_ends_the_engine_too(tmp_path: Path) -> None:
    write_scenario(tmp_path)
    running = start("replay", "tiny.yaml", "-b", "local", "--warmup", "0", "--out", "out", cwd=tmp_path)
    running.wait_for((tmp_path / "out" / "run.json").exists, 60)
    time.sleep(0.3)  # the first prompt takes longer than that
    ended = running.signal(signal.SIGINT)
    assert ended.code == 130
    assert ended.complaints == ["agentprof: interrupted: 0 of 1 sessions finished, 1 cut short; what ran is kept."]
    assert running.survivors() == []
    told = json.loads(run("explain", "out", "--json", cwd=tmp_path).out)
    assert [session["outcome"] for session in told["sessions"]] == ["cancelled"]


def test_live_runs_in_the_sandbox_until_its_limits_and_says_what_happened(engine: LocalEngine, tmp_path: Path) -> None:
    limits = {"session": "30s", "steps": 3, "tool": "5s", "output_tokens": 24}
    turn = {"user": "List the files with the bash tool."}
    write_scenario(tmp_path, tools=["bash"], mode="live", turns=[turn], limits=limits)
    url = ["--base-url", engine.base_url, "--model", engine.model]
    ended = run("replay", "tiny.yaml", *url, "--warmup", "0", "--out", "out", cwd=tmp_path)
    told = json.loads(run("explain", "out", "--json", cwd=tmp_path).out)
    (session,) = told["sessions"]
    assert session["outcome"] in {"completed", "failed", "truncated_tool_call"}
    assert ended.code == (0 if session["outcome"] == "completed" else 4)
    assert len(ended.complaints) == (session["outcome"] != "completed")
    assert 1 <= len(session["calls"]) <= 3
    assert sum(ns or 0 for ns in session["ledger"].values()) == session["wall_ns"]
    assert told["run"]["options"]["sandboxed"] is True
