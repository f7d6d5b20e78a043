"""Whole sessions of the product's loop, tools and client against a scripted server, and what they leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from live_calls import check_clean, client, run
from scripted_server import Received, ScriptedServer
from small_scenarios import make_scenario

from agentprof import semconv
from agentprof.agent.conversation import Conversation
from agentprof.agent.loop import Outcome, Session
from agentprof.agent.workspace import copy_workspace, remove_workspace
from agentprof.analysis.explain import explain
from agentprof.clock import now_ns
from agentprof.records.progress import SessionStatus
from agentprof.records.spans import ListRecorder, Span
from agentprof.wire.client import ChatClient

SLACK_S = 1.0
"""What a busy machine may add to a time: generous, and less than what the scripts make it differ by."""


@dataclass
class Played:
    """One session: how it ended, its spans, its ledger, what the server was asked and what was remembered."""

    outcome: Outcome
    recorder: ListRecorder
    requests: Sequence[Received]
    messages: Sequence[dict[str, Any]]

    @property
    def spans(self) -> Sequence[Span]:
        return self.recorder.spans

    @property
    def explained(self) -> dict[str, Any]:
        (session,) = explain({}, self.spans)["sessions"]
        assert sum(ns or 0 for ns in session["ledger"].values()) == session["wall_ns"]
        return session

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.explained["calls"]

    @property
    def ledger(self) -> dict[str, Any]:
        return self.explained["ledger"]

    @property
    def outputs(self) -> list[str]:
        """Tool outputs as the model was given them."""
        return [message["content"] for message in self.messages if message["role"] == "tool"]

    def named(self, first_word: str) -> list[Span]:
        """Spans by the first word of their name, in order of start."""
        found = [span for span in self.spans if span.name.split()[0] == first_word]
        return sorted(found, key=lambda span: span.start_ns)

    def sent(self, index: int) -> list[dict[str, Any]]:
        """The messages of a request."""
        messages: list[dict[str, Any]] = self.requests[index].json()["messages"]
        return messages


def make_session(folder: Path, chat_client: ChatClient, **changes: Any) -> Session:
    """A session in a workspace of its own. Lengths are free, and live mode isn't sandboxed."""
    scenario = make_scenario(folder, **{"length": "free", **changes})
    recorder = ListRecorder()
    status = SessionStatus(scenario.name, "test", 1, False, 0)
    conversation = Conversation(scenario, "0" * 12, scenario.cache, has_cache_salt=False)
    workspace = copy_workspace(scenario.workspace)
    return Session(scenario, chat_client, conversation, workspace, None, recorder, recorder.reserve(), status)


async def play_session(
    folder: Path,
    chat_client: ChatClient,
    server: ScriptedServer,
    *,
    cancel_when: Callable[[], bool] | None = None,
    **changes: Any,
) -> Played:
    """Play one session to its end, or cancel it once something is so."""
    session = make_session(folder, chat_client, **changes)
    asked, started_ns, outcome = len(server.requests), now_ns(), Outcome("cancelled", "interrupted")
    try:
        task = asyncio.create_task(session.run())
        while cancel_when is not None and not task.done():
            if cancel_when():
                task.cancel()
                break
            await asyncio.sleep(0.005)
        try:
            outcome = await task
        except asyncio.CancelledError:
            assert cancel_when is not None
        ended_ns = now_ns()
    finally:
        remove_workspace(session.workspace)
    attributes = {
        semconv.SCENARIO: session.scenario.name,
        semconv.BACKEND: "test",
        semconv.REPETITION: 1,
        semconv.WARMUP: False,
        semconv.LENGTH: "free" if session.scenario.mode == "live" else session.scenario.length,
        semconv.OUTCOME: outcome.name,
    }
    recorder = session.recorder
    assert isinstance(recorder, ListRecorder)
    recorder.add(Span(session.root, None, f"{semconv.INVOKE_AGENT} x", started_ns, ended_ns, "internal", attributes))
    return Played(outcome, recorder, server.requests[asked:], session.conversation.messages)


def play(server: ScriptedServer, folder: Path, *, loop: str = "uvloop", **changes: Any) -> Played:
    """One session on a server that is up as long as it lasts, with three attempts to a call."""

    async def main() -> Played:
        chat_client = client(server, attempts=3)
        played = await play_session(folder, chat_client, server, **changes)
        await check_clean(chat_client)
        return played

    with server:
        return run_main(main, loop)


def run_main(main: Callable[[], Coroutine[Any, Any, Played]], loop: str = "uvloop") -> Played:
    """Run to the end, and see that spans are whole: each once, none outside its parent."""
    played: Played = run(main(), loop)
    by_ref = {span.ref: span for span in played.spans}
    assert len(by_ref) == len(played.spans)
    for span in played.spans:
        assert span.start_ns <= span.end_ns
        if span.parent is not None:
            parent = by_ref[span.parent]
            assert parent.start_ns <= span.start_ns <= span.end_ns <= parent.end_ns, (span, parent)
    assert len(played.named(semconv.CHAT)) == len(played.named(semconv.PREPARE))
    return played


def steps(*commands: Sequence[str]) -> list[dict[str, Any]]:
    """One turn whose steps call bash with these commands, in parallel within a step, and then answer."""
    made: list[dict[str, Any]] = [
        {"calls": [{"bash": {"command": command}} for command in step], "output_tokens": 2} for step in commands
    ]
    return [{"user": "Go.", "steps": [*made, {"answer": "Done.", "output_tokens": 2}]}]


def is_about(value_ns: int | None, expected_s: float, slack_s: float = SLACK_S) -> bool:
    """As long as the script took, or longer by what a busy machine adds; a hair less, as requests take time to come."""
    return value_ns is not None and -0.02 < value_ns / 1e9 - expected_s < slack_s
