"""Whole replays against a small real server: sessions, ledgers, caches, concurrency, and being interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from small_scenarios import TURNS, make_scenario
from tiny_server import TinyServer, error, tiny_server, tool_call_delta

from agentprof import semconv
from agentprof.analysis.explain import explain
from agentprof.errors import InputError, RunError
from agentprof.records.backend import Backend
from agentprof.records.progress import SessionStatus
from agentprof.records.scenario import Scenario
from agentprof.records.spans import Span
from agentprof.runs.plan import PlannedSession
from agentprof.runs.preflight import PreflightError
from agentprof.runs.recording import Observer
from agentprof.runs.replay import Replay, ReplayOptions, ReplaySummary
from agentprof.runs.store import RunData, read_arrivals, read_run


class Watching(Observer):
    """Keeps what it was told; `on_started` may act on it."""

    def __init__(self, on_started: Callable[[SessionStatus], None] = lambda status: None) -> None:
        self.on_started = on_started
        self.plan: Sequence[PlannedSession] = ()
        self.messages: list[str] = []
        self.outcomes: list[str | None] = []

    def waiting(self, message: str) -> None:
        self.messages.append(message)

    def planned(self, sessions: Sequence[PlannedSession]) -> None:
        self.plan = sessions

    def started(self, status: SessionStatus) -> None:
        self.on_started(status)

    def ended(self, status: SessionStatus) -> None:
        self.outcomes.append(status.outcome)


def backend(tiny: TinyServer, name: str = "new") -> Backend:
    return Backend(name=name, base_url=tiny.base_url, model="tiny")


def replay(
    folder: Path,
    scenario: Scenario | Sequence[Scenario],
    backends: Sequence[Backend],
    observer: Observer | None = None,
    **options: Any,
) -> tuple[ReplaySummary, RunData]:
    scenarios = [scenario] if isinstance(scenario, Scenario) else scenario
    made = ReplayOptions(**{"warmup": 0, "run_seed": "seed", **options})
    summary = asyncio.run(Replay(scenarios, backends, made, folder, observer or Observer()).run())
    return summary, read_run(folder)


def explained(data: RunData) -> list[dict[str, Any]]:
    sessions: list[dict[str, Any]] = explain({}, data.spans)["sessions"]
    return sessions


def roots(data: RunData) -> list[Span]:
    return [span for span in data.spans if span.name.startswith(semconv.INVOKE_AGENT)]


def assert_sums(session: dict[str, Any]) -> None:
    assert sum(ns or 0 for ns in session["ledger"].values()) == session["wall_ns"]


def test_a_run_folder_tells_everything_about_its_sessions(tmp_path: Path) -> None:
    watching = Watching()
    with tiny_server() as tiny:
        scenario = make_scenario(tmp_path, checks=["test -f notes.txt", "grep -q first notes.txt"])
        summary, data = replay(tmp_path / "r", scenario, [backend(tiny)], watching, warmup=1, repeat=2)
    assert data.problems == []
    assert summary.counts.spans_created == summary.counts.spans_written == len(data.spans)
    assert [outcome.name for _, outcome, _ in summary.outcomes] == ["completed"] * 3 == watching.outcomes
    assert [passed for _, _, passed in summary.outcomes] == [True] * 3
    assert [session.is_warmup for session in watching.plan] == [True, False, False]
    sessions = explained(data)
    assert [(session["repetition"], session["warmup"]) for session in sessions] == [(1, True), (1, False), (2, False)]
    for session in sessions:
        assert_sums(session)
        assert session["output_tokens"] == 16
        assert [call["finish"] for call in session["calls"]] == ["length", "length"]
        assert session["ledger"]["tool"] > 0
        assert session["ledger"]["unattributed"] < 0.05 * session["wall_ns"]
        assert session["client_lag_p99_ns"] is not None
    facts = data.facts
    assert facts["is_finished"] is True
    assert [item["is_warmup"] for item in facts["planned"]] == [True, False, False]
    assert facts["scenarios"]["tiny"]["digest"] == scenario.digest
    assert facts["backends"]["new"]["fingerprint"]["engine"] == "openai"
    assert facts["client"]["spans_created"] == facts["client"]["spans_written"] == len(data.spans)
    assert facts["client"]["lag_p99_ns"] > 0
    assert 0 < facts["client"]["cpu_share"] < 4
    assert len(list(read_arrivals(tmp_path / "r"))) == 6
    assert not (tmp_path / "r" / "content.jsonl").exists()


def test_the_tree_of_a_session_is_as_documented(tmp_path: Path) -> None:
    with tiny_server() as tiny:
        _, data = replay(tmp_path / "r", make_scenario(tmp_path, checks=["true"]), [backend(tiny)])
    names = {span.ref: span.name for span in data.spans}
    tree = {(span.name, names[span.parent] if span.parent else None) for span in data.spans}
    assert tree == {
        ("prepare_workspace", None),
        ("invoke_agent tiny", None),
        ("checks", None),
        ("check", "checks"),
        ("step 1", "invoke_agent tiny"),
        ("step 2", "invoke_agent tiny"),
        *{(name, f"step {n}") for n in (1, 2) for name in ("prepare", "chat tiny", "parse")},
        *{(name, "step 1") for name in ("dispatch", "execute_tool bash", "execute_tool read_file")},
        *{(name, "chat tiny") for name in ("connect", "send", "first_token_wait", "decode", "tail")},
    }
    kinds = {span.name: span.kind for span in data.spans}
    assert kinds["chat tiny"] == "client"
    assert kinds["execute_tool bash"] == "internal"
    by_name = {span.name: span for span in data.spans}
    assert by_name["prepare_workspace"].end_ns <= by_name["invoke_agent tiny"].start_ns
    assert by_name["invoke_agent tiny"].end_ns <= by_name["checks"].start_ns


def test_every_request_names_the_span_of_its_call(tmp_path: Path) -> None:
    with tiny_server() as tiny:
        _, data = replay(tmp_path / "r", make_scenario(tmp_path), [backend(tiny)])
        sent = [headers["traceparent"] for headers in tiny.headers[1:]]
    assert sent == [span.ref.traceparent for span in data.spans if span.name.startswith("chat")]


def test_both_backends_get_the_same_prompts_and_no_two_repetitions_do(tmp_path: Path) -> None:
    with tiny_server() as one, tiny_server() as two:
        replay(tmp_path / "r", make_scenario(tmp_path), [backend(one, "a"), backend(two, "b")], repeat=2, warmup=1)
        mine, theirs = one.agent_requests, two.agent_requests
    assert [body["messages"] for body in mine] == [body["messages"] for body in theirs]
    firsts = [body["messages"][1]["content"] for body in mine if len(body["messages"]) == 2]
    assert len(set(firsts)) == len(firsts) == 3
    assert len({len(text) for text in firsts}) == 1


def test_backends_behind_one_url_do_not_warm_each_others_cache(tmp_path: Path) -> None:
    with tiny_server() as tiny:
        other = Backend(name="b", base_url=tiny.base_url + "/", model="tiny")
        replay(tmp_path / "r", make_scenario(tmp_path), [backend(tiny, "a"), other])
        firsts = [body["messages"][1]["content"] for body in tiny.agent_requests if len(body["messages"]) == 2]
    assert len(set(firsts)) == 2


def test_six_sessions_at_once_lose_nothing(tmp_path: Path) -> None:
    with tiny_server(token_s=0.01) as tiny:
        summary, data = replay(tmp_path / "r", make_scenario(tmp_path), [backend(tiny)], concurrency=6, repeat=12)
        assert tiny.most_running == 6
    assert summary.counts.spans_created == summary.counts.spans_written == len(data.spans)
    assert data.problems == []
    sessions = explained(data)
    assert len(sessions) == 12
    for session in sessions:
        assert session["outcome"] == "completed"
        assert_sums(session)
        assert len(session["calls"]) == 2
        assert session["client_lag_p99_ns"] is not None
    shapes = {
        tuple(sorted(span.name for span in data.spans if span.ref.trace_id == root.ref.trace_id))
        for root in roots(data)
    }
    assert len(shapes) == 1


def test_a_retry_is_a_row_and_the_session_completes(tmp_path: Path) -> None:
    with tiny_server(fault=lambda number: error(503, "busy") if number == 2 else None) as tiny:
        _, data = replay(tmp_path / "r", make_scenario(tmp_path), [backend(tiny)])
    (session,) = explained(data)
    assert session["outcome"] == "completed"
    assert [call["attempts"] for call in session["calls"]] == [1, 2]
    assert session["ledger"]["retry"] >= 400_000_000
    assert_sums(session)


@pytest.mark.parametrize(
    ("status", "message", "outcome"),
    [
        (400, "This model's maximum context length is 4096 tokens.", "context_overflow"),
        (400, "no such parameter", "failed"),
        (401, "wrong key", "failed"),
    ],
)
def test_a_server_that_fails_in_the_middle_leaves_the_trajectory(
    tmp_path: Path, status: int, message: str, outcome: str
) -> None:
    with tiny_server(fault=lambda number: error(status, message) if number == 2 else None) as tiny:
        summary, data = replay(tmp_path / "r", make_scenario(tmp_path), [backend(tiny)], repeat=2)
    assert [ended.name for _, ended, _ in summary.outcomes] == [outcome, "completed"]
    assert message.rstrip(".") in (summary.outcomes[0][1].reason or "")
    first, second = explained(data)
    assert first["outcome"] == outcome
    assert [call["error"] is None for call in first["calls"]] == [True, False]
    assert first["ledger"]["tool"] > 0
    assert_sums(first)
    assert second["outcome"] == "completed"
    assert data.facts["is_finished"] is True


def test_a_server_that_dies_in_the_run_fails_sessions_not_the_run(tmp_path: Path) -> None:
    with tiny_server() as tiny:
        target = backend(tiny)
        watching = Watching(lambda status: setattr(tiny, "fault", die) if status.repetition == 2 else None)

        def die(number: int) -> web.Response | None:
            raise ConnectionResetError

        summary, data = replay(tmp_path / "r", make_scenario(tmp_path), [target], watching, repeat=2)
    assert [ended.name for _, ended, _ in summary.outcomes] == ["completed", "failed"]
    assert explained(data)[1]["calls"][0]["attempts"] == 3


def test_failed_checks_are_kept_with_what_they_printed(tmp_path: Path) -> None:
    scenario = make_scenario(tmp_path, checks=["true", "echo expected 3, got 4; exit 1"])
    with tiny_server() as tiny:
        summary, data = replay(tmp_path / "r", scenario, [backend(tiny)])
    assert summary.outcomes[0][1].name == "completed"
    assert summary.outcomes[0][2] is False
    (session,) = explained(data)
    assert session["checks_passed"] is False
    checks = [span for span in data.spans if span.name == "check"]
    assert [span.attributes[semconv.EXIT_CODE] for span in checks] == [0, 1]
    assert checks[1].error == "expected 3, got 4\n[exit code 1]"


def test_without_checks_nothing_is_said_of_them(tmp_path: Path) -> None:
    with tiny_server() as tiny:
        summary, data = replay(tmp_path / "r", make_scenario(tmp_path), [backend(tiny)])
    assert summary.outcomes[0][2] is None
    assert explained(data)[0]["checks_passed"] is None


def test_content_is_captured_where_asked_for(tmp_path: Path) -> None:
    with tiny_server() as tiny:
        replay(tmp_path / "r", make_scenario(tmp_path), [backend(tiny)], has_content=True)
    lines = [json.loads(line) for line in (tmp_path / "r" / "content.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["request", "reply", "tool_output", "tool_output", "request", "reply"]
    assert lines[0]["content"]["messages"][0]["content"].startswith("You are a careful")
    assert lines[1]["content"]["content"].startswith("w0 w1")


def test_each_session_works_in_a_fresh_copy(tmp_path: Path) -> None:
    turns = [
        {
            "user": "Go.",
            "steps": [
                {"calls": [{"bash": {"command": "cat notes.txt; echo more >> notes.txt"}}], "output_tokens": 2},
                {"answer": "Done.", "output_tokens": 2},
            ],
        }
    ]
    with tiny_server() as tiny:
        scenario = make_scenario(tmp_path, turns=turns, checks=['test "$(wc -l < notes.txt)" = 2'])
        summary, _ = replay(tmp_path / "r", scenario, [backend(tiny)], repeat=3)
    assert [passed for _, _, passed in summary.outcomes] == [True] * 3
    assert (scenario.workspace / "notes.txt").read_text() == "first\n"


def test_live_sessions_run_what_the_model_asks_for(tmp_path: Path) -> None:
    deltas: dict[int, list[dict[str, Any]]] = {
        1: [tool_call_delta("bash", '{"command": "echo made > made.txt"}')],
        2: [{"content": "All "}, {"content": "done."}],
    }
    with tiny_server(reply=deltas.get) as tiny:
        scenario = make_scenario(tmp_path, mode="live", turns=[{"user": "Go."}], checks=["test -f made.txt"])
        summary, data = replay(tmp_path / "r", scenario, [backend(tiny)])
    assert summary.outcomes[0][1].name == "completed"
    assert summary.outcomes[0][2] is True
    (session,) = explained(data)
    assert session["calls"][0]["tool_calls"] == [{"name": "bash", "arguments": {"command": "echo made > made.txt"}}]
    (root,) = roots(data)
    assert (root.attributes[semconv.MODE], root.attributes[semconv.LENGTH]) == ("live", "free")


def interrupt(
    folder: Path, scenario: Scenario, tiny: TinyServer, when: Callable[[SessionStatus], bool], **options: Any
) -> tuple[ReplaySummary, Watching]:
    """Cancel a replay as Ctrl-C does, once a session's status is as wanted."""
    running: list[SessionStatus] = []
    watching = Watching(running.append)

    async def run() -> ReplaySummary:
        made = ReplayOptions(warmup=0, run_seed="seed", **options)
        task = asyncio.create_task(Replay([scenario], [backend(tiny)], made, folder, watching).run())
        deadline = time.monotonic() + 20
        while not any(when(status) for status in running):
            assert time.monotonic() < deadline
            assert not task.done()
            await asyncio.sleep(0.002)
        task.cancel()
        return await task

    return asyncio.run(run()), watching


def test_an_interrupt_in_a_call_keeps_finished_sessions_and_records_the_running_one(tmp_path: Path) -> None:
    with tiny_server() as tiny:
        tiny.reply = lambda number: [{"content": "x"}] * 5000 if number == 4 else None
        summary, _ = interrupt(
            tmp_path / "r",
            make_scenario(tmp_path),
            tiny,
            lambda status: status.repetition == 2 and status.step == 2 and status.tokens > 2,
            repeat=4,
        )
    data = read_run(tmp_path / "r")
    assert summary.counts.is_interrupted
    assert summary.planned == 4
    assert [outcome.name for _, outcome, _ in summary.outcomes] == ["completed", "cancelled"]
    assert summary.counts.spans_created == summary.counts.spans_written == len(data.spans)
    assert [root.attributes[semconv.OUTCOME] for root in roots(data)] == ["completed", "cancelled"]
    second = explained(data)[1]
    assert_sums(second)
    assert second["calls"][1]["error"]["kind"] == "cancelled"
    assert data.problems == [f"{tmp_path / 'r'}: 2 of 4 sessions are missing: tiny on new: repetition 3, repetition 4."]
    assert data.facts["is_finished"] is False
    assert data.facts["client"]["spans_written"] == len(data.spans)


def test_an_interrupt_kills_running_tools_and_leaves_no_workspace(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    turns = [
        {
            "user": "Go.",
            "steps": [
                {
                    "calls": [{"bash": {"command": f"pwd > {tmp_path}/where; echo $$ > {pid_file}; sleep 60; true"}}],
                    "output_tokens": 2,
                },
                {"answer": "Done.", "output_tokens": 2},
            ],
        }
    ]
    with tiny_server() as tiny:
        scenario = make_scenario(tmp_path, turns=turns, checks=["true"])
        summary, _ = interrupt(
            tmp_path / "r", scenario, tiny, lambda status: pid_file.exists() and bool(pid_file.read_text())
        )
    assert [outcome.name for _, outcome, _ in summary.outcomes] == ["cancelled"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    assert not Path((tmp_path / "where").read_text().strip()).exists()
    (tool,) = (span for span in read_run(tmp_path / "r").spans if span.name == "execute_tool bash")
    assert tool.error == "cancelled"


def test_an_interrupt_in_the_checks_keeps_the_completed_session(tmp_path: Path) -> None:
    with tiny_server() as tiny:
        scenario = make_scenario(tmp_path, checks=["true", "sleep 60"])
        summary, watching = interrupt(tmp_path / "r", scenario, tiny, lambda status: status.phase == "checks")
    assert [(outcome.name, passed) for _, outcome, passed in summary.outcomes] == [("completed", None)]
    assert watching.outcomes == ["completed"]
    data = read_run(tmp_path / "r")
    by_ref = {span.ref for span in data.spans}
    assert all(span.parent is None or span.parent in by_ref for span in data.spans)
    assert [span.error for span in data.spans if span.name == "checks"] == ["cancelled"]
    assert explained(data)[0]["checks_passed"] is None


def test_an_interrupt_before_a_session_began_leaves_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with tiny_server() as tiny:
        scenario = make_scenario(tmp_path)
        for number in range(3000):
            (scenario.workspace / f"{number}.txt").write_text("x")
        summary, watching = interrupt(
            tmp_path / "r", scenario, tiny, lambda status: status.phase == "workspace", concurrency=2, repeat=2
        )
        assert tiny.agent_requests == []
    assert summary.outcomes == ()
    assert watching.outcomes == ["not begun"] * 2
    data = read_run(tmp_path / "r")
    assert (data.sessions, list(data.spans)) == (0, [])
    assert "2 of 2 sessions are missing" in data.problems[0]
    assert list(scratch.iterdir()) == []


def test_an_interrupt_while_all_six_run_keeps_six_cancelled_sessions(tmp_path: Path) -> None:
    with tiny_server(token_s=0.05) as tiny:
        summary, _ = interrupt(
            tmp_path / "r",
            make_scenario(tmp_path),
            tiny,
            lambda status: tiny.running == 6,
            concurrency=6,
            repeat=6,
        )
    data = read_run(tmp_path / "r")
    assert [root.attributes[semconv.OUTCOME] for root in roots(data)] == ["cancelled"] * 6
    assert summary.counts.spans_created == summary.counts.spans_written == len(data.spans)


def test_nothing_is_written_for_a_backend_that_can_not_be_used(tmp_path: Path) -> None:
    with tiny_server(fault=lambda number: error(401, "no")) as tiny, pytest.raises(PreflightError):
        replay(tmp_path / "r", make_scenario(tmp_path), [backend(tiny)])
    assert not (tmp_path / "r").exists()


def test_an_existing_folder_is_found_before_any_server_is_asked(tmp_path: Path) -> None:
    with tiny_server() as tiny:
        with pytest.raises(InputError, match="already exists"):
            replay(tmp_path, make_scenario(tmp_path), [backend(tiny)])
        assert tiny.requests == []


def test_a_workspace_that_vanished_is_one_line_and_keeps_what_ran(tmp_path: Path) -> None:
    scenario = make_scenario(tmp_path)

    def move_away(status: SessionStatus) -> None:
        if status.repetition == 2:
            scenario.workspace.rename(tmp_path / "gone")

    with tiny_server() as tiny, pytest.raises(RunError, match=r"is not a folder.*The sessions before it are kept\."):
        replay(tmp_path / "r", scenario, [backend(tiny)], Watching(move_away), repeat=2)
    assert len(roots(read_run(tmp_path / "r"))) == 1


def test_secrets_in_extra_body_are_not_kept(tmp_path: Path) -> None:
    with tiny_server() as tiny:
        extra = {"top_k": 5, "provider": {"api_key": "sk-other-987654321", "order": ["a"]}}
        target = Backend(name="new", base_url=tiny.base_url, model="tiny", extra_body=extra)
        _, data = replay(tmp_path / "r", make_scenario(tmp_path), [target])
        assert tiny.agent_requests[0]["provider"]["api_key"] == "sk-other-987654321"
    assert data.facts["backends"]["new"]["extra_body"] == {
        "top_k": 5,
        "provider": {"api_key": "(not kept)", "order": ["a"]},
    }


def test_two_scenarios_run_one_after_the_other(tmp_path: Path) -> None:
    scenarios = [make_scenario(tmp_path), make_scenario(tmp_path, "other", turns=[*TURNS, *TURNS])]
    with tiny_server() as tiny:
        _, data = replay(tmp_path / "r", scenarios, [backend(tiny)])
    assert [(session["scenario"], len(session["calls"])) for session in explained(data)] == [("tiny", 2), ("other", 4)]
