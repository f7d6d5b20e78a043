"""A model that says what it was told to, in the time that it was told to take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentprof import semconv
from agentprof.clock import now_ns
from agentprof.errors import CallError
from agentprof.records.call import CallResult, ChatRequest, Reply, ToolCall, Usage
from agentprof.records.spans import Recorder, Span, SpanRef


@dataclass
class Said:
    """One answer: text, calls, how long it takes, or how it fails. `is_asked`: set when the model is asked for it."""

    content: str = ""
    calls: Sequence[ToolCall] = ()
    finish: str | None = None
    seconds: float = 0.0
    error: CallError | None = None
    is_asked: asyncio.Event | None = None


@dataclass
class ScriptedModel:
    """Implements `agentprof.agent.loop.Model`. Says the last answer again when it has no other."""

    answers: Sequence[Said] = (Said("ok"),)
    requests: list[ChatRequest] = field(default_factory=list)

    async def call(
        self,
        request: ChatRequest,
        *,
        recorder: Recorder,
        parent: SpanRef,
        prepared_from_ns: int,
        on_phase: Callable[[str], None] | None = None,
        on_events: Callable[[int], None] | None = None,
    ) -> CallResult:
        said = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        started_ns, error = now_ns(), said.error.message if said.error else None
        recorder.add(Span(recorder.reserve(), parent, semconv.PREPARE, prepared_from_ns, started_ns))
        if on_phase is not None:
            on_phase("waiting for the model")
        ref = recorder.reserve()
        try:
            if said.is_asked is not None:
                said.is_asked.set()
            await asyncio.sleep(said.seconds)
            if on_events is not None:
                on_events(3)
        except asyncio.CancelledError:
            error = "cancelled"
            raise
        finally:
            ended_ns = now_ns()
            recorder.add(Span(ref, parent, f"{semconv.CHAT} scripted", started_ns, ended_ns, "client", {}, error))
        if said.error is not None:
            raise said.error
        finish = said.finish or ("tool_calls" if said.calls else "stop")
        reply = Reply(
            said.content, "", tuple(said.calls), finish, Usage(), None, (), None, True, 0, 0, None, None, None
        )
        return CallResult(reply, 5, False, ended_ns, ())


def tool_call(name: str, arguments: str, parsed: dict[str, str] | None, call_id: str = "c1") -> ToolCall:
    return ToolCall(call_id, name, arguments, parsed)
