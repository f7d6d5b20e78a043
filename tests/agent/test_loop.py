"""The loop against a scripted model and real tools: its spans, its limits, and every way to leave it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scripted_model import Said, ScriptedModel, tool_call
from small_scenarios import make_scenario

from agentprof import semconv
from agentprof.agent.conversation import Conversation
from agentprof.agent.loop import Outcome, Session
from agentprof.agent.workspace import copy_workspace, remove_workspace
from agentprof.clock import now_ns
from agentprof.errors import CallError
from agentprof.records.progress import SessionStatus
from agentprof.records.spans import ListRecorder, Span


@dataclass
class Played:
    outcome: Outcome
    recorder: ListRecorder
    model: ScriptedModel
    messages: list[dict[str, Any]]
    status: SessionStatus
    seconds: float
    start_ns: int
    end_ns: int

    def spans(self, name: str) -> list[Span]:
        """Spans by the first word of their name, in the order in which the loop made them."""
        found = [span for span in self.recorder.spans if span.name.split()[0] == name]
        return sorted(found, key=lambda span: span.ref.span_id)


def make_session(folder: Path, model: ScriptedModel, **changes: Any) -> Session:
    scenario = make_scenario(folder, **changes)
    recorder = ListRecorder()
    status = SessionStatus(scenario.name, "scripted", 1, False, 0)
    conversation = Conversation(scenario, "0" * 12, scenario.cache, has_cache_salt=False)
    workspace = copy_workspace(scenario.workspace)
    return Session(scenario, model, conversation, workspace, None, recorder, recorder.reserve(), status)


def play(folder: Path, answers: Sequence[Said] = (), **changes: Any) -> Played:
    """Play a small scenario to its end; the model says `ok` where it isn't told what to say."""
    model = ScriptedModel(answers or [Said("ok")])
    session = make_session(folder, model, **changes)
    try:
        started_ns = now_ns()
        outcome = asyncio.run(session.run())
        ended_ns = now_ns()
    finally:
        remove_workspace(session.workspace)
    assert isinstance(session.recorder, ListRecorder)
    seconds = (ended_ns - started_ns) / 1e9
    return Played(
        outcome, session.recorder, model, session.conversation.messages, session.status, seconds, started_ns, ended_ns
    )


def steps(*commands: Sequence[str], tokens: int = 4) -> list[dict[str, Any]]:
    """One turn whose steps call bash with these commands, in parallel within a step, and an answer."""
    made: list[dict[str, Any]] = [
        {"calls": [{"bash": {"command": command}} for command in step], "output_tokens": tokens} for step in commands
    ]
    return [{"user": "Go.", "steps": [*made, {"answer": "Done.", "output_tokens": tokens}]}]


def test_a_scripted_session_plays_every_step_with_its_spans(tmp_path: Path) -> None:
    played = play(tmp_path)
    assert played.outcome == Outcome("completed")
    assert " ".join(message["role"] for message in played.messages) == "system user assistant tool tool assistant"
    assert played.messages[3]["content"] == "first\n[exit code 0]"
    assert "    return 1" in played.messages[4]["content"]
    assert [span.name for span in played.spans("step")] == ["step 1", "step 2"]
    assert [span.attributes[semconv.STEP_NUMBER] for span in played.spans("step")] == [1, 2]
    assert {len(played.spans(name)) for name in ("chat", "prepare", "parse", "dispatch", "execute_tool")} == {2}
    assert played.status.step == 2
    assert played.status.session_tokens == 10
    assert played.status.tokens == 3  # stream events of the last step
    assert not played.status.is_calling


def test_every_span_lies_in_its_parent_and_leaves_cover_the_session(tmp_path: Path) -> None:
    played = play(tmp_path, [Said("ok", seconds=0.5)])
    by_ref = {span.ref: span for span in played.recorder.spans}
    for span in played.recorder.spans:
        assert span.end_ns >= span.start_ns
        if span.parent in by_ref:
            parent = by_ref[span.parent]
            assert parent.start_ns <= span.start_ns <= span.end_ns <= parent.end_ns, span
    parents = {span.parent for span in played.recorder.spans}
    leaves = sorted((span.start_ns, span.end_ns) for span in played.recorder.spans if span.ref not in parents)
    covered_ns, until_ns = 0, played.start_ns
    for start_ns, end_ns in leaves:
        covered_ns += max(0, end_ns - max(start_ns, until_ns))
        until_ns = max(until_ns, end_ns)
    assert covered_ns >= 0.9 * (played.end_ns - played.start_ns)


def test_what_the_loop_does_between_steps_and_pauses_belongs_to_the_step_after(tmp_path: Path) -> None:
    turns = [*steps(["echo a"]), {"user": "Go on.", "think": "10ms", "steps": [{"answer": "Yes.", "output_tokens": 4}]}]
    played = play(tmp_path, turns=turns)
    first, second, third = played.spans("step")
    (pause,) = played.spans("think")
    assert second.start_ns == first.end_ns
    assert second.end_ns <= pause.start_ns
    assert third.start_ns == pause.end_ns
    assert [span.start_ns for span in played.spans("prepare")] == [step.start_ns for step in (first, second, third)]


def test_what_follows_a_failed_call_has_a_span(tmp_path: Path) -> None:
    class Failing:
        ended_ns = 0

        async def call(self, _request: Any, **_options: Any) -> Any:
            self.ended_ns = now_ns()
            raise CallError("refused", "nobody there", self.ended_ns)

    model = Failing()
    session = make_session(tmp_path, model)  # type: ignore[arg-type]
    try:
        outcome = asyncio.run(session.run())
    finally:
        remove_workspace(session.workspace)
    assert outcome == Outcome("failed", "nobody there")
    assert isinstance(session.recorder, ListRecorder)
    (parse,) = [span for span in session.recorder.spans if span.name == semconv.PARSE]
    assert parse.start_ns == model.ended_ns


def test_a_limit_that_is_reached_before_the_first_step(tmp_path: Path) -> None:
    turn = {"user": "Go.", "think": "10s", "steps": [{"answer": "Done.", "output_tokens": 4}]}
    played = play(tmp_path, turns=[turn], limits={"session": "100ms"})
    assert played.outcome == Outcome("timed_out", "the session's limit of 0.1 s was reached before the first step")


def test_think_really_sleeps_in_a_span_of_its_own(tmp_path: Path) -> None:
    turn = {"user": "Go.", "think": "200ms", "steps": [{"answer": "Done.", "output_tokens": 4}]}
    played = play(tmp_path, turns=[turn, turn])
    thoughts = played.spans("think")
    assert [span.attributes[semconv.TURN_NUMBER] for span in thoughts] == [1, 2]
    assert all(199_000_000 < span.duration_ns < 5_000_000_000 for span in thoughts)
    assert played.seconds > 0.398


def test_parallel_tools_overlap_and_are_answered_in_the_order_of_the_calls(tmp_path: Path) -> None:
    played = play(tmp_path, turns=steps(["sleep 0.6; echo slow", "sleep 0.3; echo quick"]))
    slow, quick = played.spans("execute_tool")
    assert min(slow.end_ns, quick.end_ns) - max(slow.start_ns, quick.start_ns) > 150_000_000
    assert slow.end_ns > quick.end_ns
    assert [message["content"].split()[0] for message in played.messages if message["role"] == "tool"] == [
        "slow",
        "quick",
    ]
    before, after = played.spans("dispatch")
    assert before.end_ns == max(slow.start_ns, quick.start_ns)
    assert after.start_ns == slow.end_ns


def test_the_forced_length_is_asked_for_and_the_models_own_calls_are_ignored(tmp_path: Path) -> None:
    invented = tool_call("bash", '{"command": "touch invented"}', {"command": "touch invented"})
    played = play(tmp_path, [Said("mumble", [invented])], turns=steps(["ls"], tokens=7))
    assert [request.forced_tokens for request in played.model.requests] == [7, 7]
    assert "invented" not in played.messages[3]["content"]
    assert "mumble" not in str(played.messages)


def test_a_free_length_is_left_to_the_model(tmp_path: Path) -> None:
    played = play(tmp_path, length="free")
    assert {request.forced_tokens for request in played.model.requests} == {None}


def test_paths_and_durations_are_masked_in_scripted_replay(tmp_path: Path) -> None:
    played = play(tmp_path, turns=steps(["pwd; echo took 0.123s"]))
    assert played.messages[3]["content"].splitlines()[:2] == ["/workspace", "took 0.00s"]


def test_the_session_limit_ends_a_call_and_keeps_what_ran(tmp_path: Path) -> None:
    limits = {"session": "300ms", "tool": "10s", "output_tokens": 16}
    played = play(tmp_path, [Said("ok"), Said("late", seconds=30)], limits=limits)
    assert played.outcome.name == "timed_out"
    assert played.outcome.reason == "the session's limit of 0.3 s was reached in step 2"
    assert [span.error for span in played.spans("chat")] == [None, "cancelled"]
    assert len(played.spans("step")) == 2
    assert played.seconds < 5


def test_the_session_limit_kills_running_tools(tmp_path: Path) -> None:
    limits = {"session": "400ms", "tool": "10s", "output_tokens": 16}
    marker = tmp_path / "late"
    played = play(tmp_path, limits=limits, turns=steps([f"sleep 1.2; touch {marker}", "sleep 30"]))
    assert played.outcome.name == "timed_out"
    assert [span.error for span in played.spans("execute_tool")] == ["cancelled", "cancelled"]
    assert played.seconds < 5
    asyncio.run(asyncio.sleep(1.2))
    assert not marker.exists()


def test_the_session_limit_ends_a_pause(tmp_path: Path) -> None:
    limits = {"session": "200ms", "tool": "10s", "output_tokens": 16}
    turn = {"user": "Go.", "think": "1h", "steps": [{"answer": "Done.", "output_tokens": 4}]}
    played = play(tmp_path, limits=limits, turns=[turn])
    assert played.outcome.name == "timed_out"
    assert len(played.spans("think")) == 1
    assert not played.spans("step")


def test_the_tool_limit_is_a_result_and_the_session_goes_on(tmp_path: Path) -> None:
    limits = {"session": "60s", "tool": "300ms", "output_tokens": 16}
    played = play(tmp_path, limits=limits, turns=steps(["echo before; sleep 30"]))
    assert played.outcome.name == "completed"
    (tool,) = played.spans("execute_tool")
    assert tool.attributes[semconv.TIMED_OUT] is True
    assert tool.error is not None
    assert "limit" in tool.error
    assert played.messages[3]["content"] == "before\n[stopped at the time limit of 0.3 s]"


def test_a_failed_call_ends_the_session_and_keeps_the_trajectory(tmp_path: Path) -> None:
    error = CallError("http_500", 'backend "x": HTTP 500 from 127.0.0.1:1: boom')
    played = play(tmp_path, [Said("ok"), Said(error=error)])
    assert played.outcome == Outcome("failed", error.message)
    assert len(played.spans("execute_tool")) == 2
    assert [span.name for span in played.spans("step")] == ["step 1", "step 2"]
    assert not played.status.is_calling


def test_a_context_overflow_has_an_outcome_of_its_own(tmp_path: Path) -> None:
    played = play(tmp_path, [Said(error=CallError("context_overflow", "the prompt does not fit"))])
    assert played.outcome == Outcome("context_overflow", "the prompt does not fit")


def test_another_timeout_is_no_timed_out_session(tmp_path: Path) -> None:
    class Broken(ScriptedModel):
        async def call(self, *args: Any, **more: Any) -> Any:
            raise TimeoutError("not the session's")

    session = make_session(tmp_path, Broken())
    try:
        with pytest.raises(TimeoutError, match="not the session's"):
            asyncio.run(session.run())
    finally:
        remove_workspace(session.workspace)


def test_a_cancelled_session_records_its_open_spans_once(tmp_path: Path) -> None:
    late = Said("late", seconds=30)
    session = make_session(tmp_path, ScriptedModel([Said("ok"), late]))

    async def cancel_in_second_call() -> None:
        late.is_asked = asyncio.Event()
        running = asyncio.create_task(session.run())
        await late.is_asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    try:
        asyncio.run(cancel_in_second_call())
    finally:
        remove_workspace(session.workspace)
    recorder = session.recorder
    assert isinstance(recorder, ListRecorder)
    assert len({span.ref for span in recorder.spans}) == len(recorder.spans)
    assert [span.name for span in recorder.spans if span.name.startswith("step")] == ["step 1", "step 2"]
    assert not session.status.is_calling


LIVE = {"mode": "live", "turns": [{"user": "Fix it."}]}


def bash(command: str, call_id: str = "c1") -> Said:
    return Said("", [tool_call("bash", f'{{"command": "{command}"}}', {"command": command}, call_id)])


def test_live_runs_the_models_calls_until_it_answers(tmp_path: Path) -> None:
    played = play(tmp_path, [bash("echo one", "a"), bash("echo two", "b"), Said("Finished.")], **LIVE)
    assert played.outcome.name == "completed"
    assert [span.attributes[semconv.TOOL_CALL_ID] for span in played.spans("execute_tool")] == ["a", "b"]
    assert [message.get("tool_call_id") for message in played.messages if message["role"] == "tool"] == ["a", "b"]
    assert played.messages[-1] == {"role": "assistant", "content": "Finished."}
    assert {request.forced_tokens for request in played.model.requests} == {None}


def test_live_gives_the_model_its_mistakes_back(tmp_path: Path) -> None:
    unknown = Said("", [tool_call("rm_rf", "{}", {}, "u")])
    played = play(tmp_path, [unknown, Said("Sorry.")], **LIVE)
    assert played.outcome.name == "completed"
    (tool,) = played.spans("execute_tool")
    assert tool.error is not None
    assert '"rm_rf" is not a tool' in tool.error
    assert '"rm_rf" is not a tool' in played.messages[3]["content"]


def test_live_ends_at_the_step_limit(tmp_path: Path) -> None:
    limits = {"session": "60s", "tool": "10s", "output_tokens": 16, "steps": 3}
    played = play(tmp_path, [bash("true")], limits=limits, **LIVE)
    assert played.outcome == Outcome("failed", "the limit of 3 steps was reached")
    assert len(played.model.requests) == 3


@pytest.mark.parametrize(
    "said",
    [
        Said("", [tool_call("bash", '{"command": "ec', None)], finish="length"),
        Said("", [tool_call("bash", "not JSON", None)]),
    ],
)
def test_live_ends_at_a_tool_call_that_is_cut_off(tmp_path: Path, said: Said) -> None:
    played = play(tmp_path, [said], **LIVE)
    assert played.outcome.name == "truncated_tool_call"
    assert played.outcome.reason is not None
    assert "step 1" in played.outcome.reason
    assert not played.spans("execute_tool")
    assert len(played.spans("parse")) == 1


def test_what_a_live_model_reads_is_not_masked(tmp_path: Path) -> None:
    played = play(tmp_path, [bash("pwd; echo took 0.123s"), Said("Done.")], **LIVE)
    (said,) = [message["content"] for message in played.messages if message["role"] == "tool"]
    assert "took 0.123s" in said
    assert "/workspace\n" not in said


def test_a_tools_span_says_how_its_command_ended(tmp_path: Path) -> None:
    (tool,) = play(tmp_path, turns=steps(["exit 3"])).spans("execute_tool")
    assert tool.attributes[semconv.EXIT_CODE] == 3
    assert tool.attributes[semconv.OPERATION] == "execute_tool"


def test_dispatch_ends_where_the_tools_begin_though_a_limit_ends_them(tmp_path: Path) -> None:
    limits = {"session": "400ms", "tool": "10s", "output_tokens": 16}
    played = play(tmp_path, limits=limits, turns=steps(["sleep 30", "sleep 30"]))
    (dispatch,) = played.spans("dispatch")
    assert dispatch.end_ns == min(span.start_ns for span in played.spans("execute_tool"))


def test_no_step_begins_before_its_session(tmp_path: Path) -> None:
    played = play(tmp_path)
    assert played.spans("step")[0].start_ns >= played.start_ns
