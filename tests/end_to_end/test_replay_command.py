"""`agentprof replay` as a user runs it, against a small server: results, exit codes, exports, keys."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from command import Ended, run
from otlp_sink import attributes_of, otlp_sink
from small_scenarios import write_scenario
from tiny_server import TinyServer, error, tiny_server

KEY = "sk-tests-0123456789abcdef"


def replay(folder: Path, tiny: TinyServer, *options: str, **environment: str) -> Ended:
    """Replay the scenario in a folder, without warm-up, into its `out`."""
    if not (folder / "tiny.yaml").exists():
        write_scenario(folder)
    url = ["--base-url", tiny.base_url, "--model", "tiny", "--warmup", "0", "--out", "out"]
    return run("replay", "tiny.yaml", *url, *options, cwd=folder, **environment)


def test_explain_tells_from_the_folder_alone_what_replay_told(tmp_path: Path) -> None:
    write_scenario(tmp_path, checks=["test -f notes.txt"])
    with tiny_server() as tiny:
        ended = replay(tmp_path, tiny, "--warmup", "1", "--repeat", "2")
    assert ended.code == 0
    assert ended.complaints == []
    told, _, rest = ended.out.partition("\nRun folder: ")
    assert rest == "out  (agentprof explain out)\n"
    assert "unattributed" in told
    again = run("explain", "out", cwd=tmp_path)
    assert (again.code, again.err) == (0, "")
    assert again.out.rstrip("\n") == told.rstrip("\n")
    assert ended.err.splitlines()[:2] == ['waiting for backend "default"', "running 3 sessions, 1 of them to warm up"]
    as_json = json.loads(run("explain", "out", "--json", cwd=tmp_path).out)
    assert as_json["format"] == 1
    assert [session["warmup"] for session in as_json["sessions"]] == [True, False, False]
    for session in as_json["sessions"]:
        assert sum(ns or 0 for ns in session["ledger"].values()) == session["wall_ns"]
        assert session["checks_passed"] is True
    moved = tmp_path / "moved"
    (tmp_path / "out").rename(moved)
    assert run("explain", str(moved), cwd=tmp_path).out == again.out


def test_failed_checks_are_exit_code_1(tmp_path: Path) -> None:
    write_scenario(tmp_path, checks=["false"])
    with tiny_server() as tiny:
        ended = replay(tmp_path, tiny)
    assert ended.code == 1
    assert ended.complaints == ["agentprof: tiny on default, repetition 1: its checks failed"]


def test_a_dead_server_is_exit_code_2_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        tiny = TinyServer(base_url=f"http://127.0.0.1:{bound.getsockname()[1]}/v1")
        ended = replay(tmp_path, tiny)
    assert ended.code == 2
    assert len(ended.complaints) == 1
    assert "connection refused" in ended.complaints[0]
    assert not (tmp_path / "out").exists()
    assert ended.out == ""


def test_a_session_that_fails_is_exit_code_4_with_its_reason(tmp_path: Path) -> None:
    with tiny_server(fault=lambda number: error(400, "no such thing") if number == 2 else None) as tiny:
        ended = replay(tmp_path, tiny)
    assert ended.code == 4
    assert len(ended.complaints) == 1
    assert ended.complaints[0].startswith("agentprof: tiny on default, repetition 1: failed: ")
    assert "no such thing" in ended.complaints[0]
    assert "It ended as failed." in " ".join(ended.out.split())


def test_a_key_is_nowhere_even_where_the_server_sends_it_back(tmp_path: Path) -> None:
    def fault(number: int) -> Any:
        return (
            error(400, f"Incorrect API key {KEY}", **{"X-Key": KEY, "Server-Timing": f'x;desc="{KEY}"'})
            if number == 2
            else None
        )

    with tiny_server(fault=fault) as tiny:
        tiny.reply = lambda number: [{"content": f"Your key is {KEY}."}] if number == 1 else None
        ended = replay(tmp_path, tiny, "--capture-content", "--api-key-env", "TINY_KEY", TINY_KEY=KEY)
        assert tiny.headers[1]["Authorization"] == f"Bearer {KEY}"
    assert ended.code == 4
    assert KEY not in ended.out + ended.err
    told = run("explain", "out", "--json", cwd=tmp_path).out + run("explain", "out", cwd=tmp_path).out
    assert KEY not in told
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["chunks.jsonl", "content.jsonl", "run.json", "spans.jsonl"]
    for name in files:
        text = (tmp_path / "out" / name).read_text()
        assert KEY not in text
        assert "Bearer" not in text


def test_tools_and_checks_do_not_see_the_key(tmp_path: Path) -> None:
    command = 'if [ -z "$TINY_KEY" ] && ! cat /proc/self/environ | grep -q sk-tests; then echo unseen; fi'
    steps = [{"calls": [{"bash": {"command": command}}], "output_tokens": 2}, {"answer": "Done.", "output_tokens": 2}]
    write_scenario(tmp_path, turns=[{"user": "Go.", "steps": steps}], checks=['test -z "$TINY_KEY"'])
    with tiny_server() as tiny:
        ended = replay(tmp_path, tiny, "--api-key-env", "TINY_KEY", TINY_KEY=KEY)
        assert tiny.requests[-1]["messages"][-1]["content"].startswith("unseen")
    assert ended.code == 0


def test_an_otlp_endpoint_gets_every_span_while_the_run_goes_on(tmp_path: Path) -> None:
    with tiny_server() as tiny, otlp_sink() as sink:
        ended = replay(tmp_path, tiny, OTEL_EXPORTER_OTLP_ENDPOINT=sink.url, OTEL_SERVICE_NAME="nightly")
    assert (ended.code, ended.complaints) == (0, [])
    assert {resource["service.name"] for resource in sink.resources} == {"nightly"}
    lines = (tmp_path / "out" / "spans.jsonl").read_text().splitlines()
    kept = [span for line in lines for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    assert sorted(span.span_id.hex() for span in sink.spans) == sorted(span["spanId"] for span in kept)
    kinds = {attributes_of(span).get("openinference.span.kind"): span for span in sink.spans}
    assert {"AGENT", "LLM", "TOOL"} <= kinds.keys()
    client = json.loads((tmp_path / "out" / "run.json").read_text())["client"]
    assert client["spans_exported"] == client["spans_created"] == len(kept)


def test_a_dead_otlp_endpoint_costs_a_line_and_seconds(tmp_path: Path) -> None:
    with socket.socket() as bound, tiny_server() as tiny:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        ended = replay(tmp_path, tiny, "--otlp-endpoint", url)
    assert ended.code == 0
    assert len(ended.complaints) == 1
    assert f" spans did not reach {url}/v1/traces; the run folder has them all." in ended.complaints[0]
    assert ended.seconds < 40
    assert run("explain", "out", cwd=tmp_path).code == 0


def test_a_slow_otlp_endpoint_costs_a_line_and_seconds(tmp_path: Path) -> None:
    with tiny_server() as tiny, otlp_sink(answer_s=60) as sink:
        ended = replay(tmp_path, tiny, "--otlp-endpoint", sink.url)
        assert ended.seconds < 40
    assert ended.code == 0
    assert len(ended.complaints) == 1
    assert "did not reach" in ended.complaints[0]


def test_six_sessions_at_once_through_the_command(tmp_path: Path) -> None:
    with tiny_server(token_s=0.01) as tiny:
        ended = replay(tmp_path, tiny, "--concurrency", "6")
        assert tiny.most_running == 6
    assert ended.code == 0
    told = json.loads(run("explain", "out", "--json", cwd=tmp_path).out)
    assert len(told["sessions"]) == 6
    assert told["run"]["client"]["spans_created"] == told["run"]["client"]["spans_written"]
    assert told["run"]["client"]["lag_p99_ns"] is not None
    assert told["run"]["aggregate"][0]["tok_s"] > 0
    for session in told["sessions"]:
        assert sum(ns or 0 for ns in session["ledger"].values()) == session["wall_ns"]
