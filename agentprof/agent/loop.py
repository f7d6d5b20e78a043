"""The agent's loop: ask the model, run the tools that it asks for, remember, ask again.

Leaving the loop early is an exception; `Session.run` turns it into an outcome. Every moment lies in a span of its
own: `prepare` (from the end of what was before to the request), the call, `parse` (reading the reply), `dispatch`
(starting tools, and taking their results in), the tools, `think`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agentprof import semconv
from agentprof.agent.conversation import Conversation, scripted_calls
from agentprof.agent.masking import mask
from agentprof.agent.sandbox import Sandbox
from agentprof.agent.tools import ToolLimits, ToolResult, execute
from agentprof.agent.workspace import Workspace
from agentprof.clock import now_ns
from agentprof.errors import CallError
from agentprof.records.call import CallResult, ChatRequest, ToolCall
from agentprof.records.progress import SessionStatus
from agentprof.records.scenario import Scenario, Step, Turn
from agentprof.records.spans import AttributeValue, Recorder, Span, SpanRef
from agentprof.wire.figures import are_calls_whole

OutcomeName = Literal["completed", "failed", "context_overflow", "truncated_tool_call", "timed_out", "cancelled"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ended, and why if it did not complete."""

    name: OutcomeName
    reason: str | None = None


class SessionEndedError(Exception):
    """Leaves the loop before its end; carries the outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.name)
        self.outcome = outcome


class Model(Protocol):
    """Who answers: a served model, or a scripted one."""

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
        """One call; records its spans; raises CallError when it failed for good."""
        ...


@dataclass(slots=True)
class Session:
    """One agent at work on one scenario.

    `root` is the session's span, which the caller records when it has ended, from `started_ns` on.
    """

    scenario: Scenario
    model: Model
    conversation: Conversation
    workspace: Workspace
    sandbox: Sandbox | None
    recorder: Recorder
    root: SpanRef
    status: SessionStatus
    started_ns: int = 0
    _step: int = 0
    _told_ns: int = 0  # up to here, steps and pauses tell where the time went

    async def run(self) -> Outcome:
        """Play the whole scenario within its limits. Only cancellation from outside escapes as an exception."""
        limit_ns = self.scenario.limits.session
        self.started_ns = self._told_ns = now_ns()
        try:
            async with asyncio.timeout(limit_ns / 1e9) as limit:
                for number, turn in enumerate(self.scenario.turns, start=1):
                    await self._play(turn, number)
        except SessionEndedError as ended:
            return ended.outcome
        except TimeoutError:
            if not limit.expired():
                raise
            where = f"in step {self._step}" if self._step else "before the first step"
            return Outcome("timed_out", f"the session's limit of {limit_ns / 1e9:g} s was reached {where}")
        return Outcome("completed")

    async def _play(self, turn: Turn, number: int) -> None:
        if turn.think:
            self.status.phase = "thinking pause"
            started_ns = now_ns()
            try:
                await asyncio.sleep(turn.think / 1e9)
            finally:
                self._told_ns = self._record(semconv.THINK, self.root, started_ns, {semconv.TURN_NUMBER: number})
        self.conversation.add_user(turn.user)
        if self.scenario.mode == "live":
            while await self._run_step(None, number):
                pass
            return
        for step in turn.steps:
            await self._run_step(step, number)

    async def _run_step(self, scripted: Step | None, turn: int) -> bool:
        """One model call and its tools; returns whether the model asked for any."""
        if self._step >= self.scenario.limits.steps:
            raise SessionEndedError(Outcome("failed", f"the limit of {self._step} steps was reached"))
        self._step += 1
        self.status.step = self._step
        self.status.tokens = 0
        started_ns = self._told_ns
        ref = self.recorder.reserve()
        try:
            return await self._ask_and_act(scripted, ref, started_ns)
        finally:
            self._told_ns = now_ns()
            attributes: dict[str, AttributeValue] = {semconv.STEP_NUMBER: self._step, semconv.TURN_NUMBER: turn}
            self.recorder.add(
                Span(ref, self.root, f"{semconv.STEP} {self._step}", started_ns, self._told_ns, "internal", attributes)
            )

    async def _ask_and_act(self, scripted: Step | None, step: SpanRef, started_ns: int) -> bool:
        is_forced = scripted is not None and self.scenario.length == "forced"
        request = self.conversation.request(scripted.output_tokens if scripted and is_forced else None)
        self.status.is_calling = True
        try:
            result = await self.model.call(
                request,
                recorder=self.recorder,
                parent=step,
                prepared_from_ns=started_ns,
                on_phase=self._show_phase,
                on_events=self._count_events,
            )
        except CallError as error:
            if error.ended_ns is not None:
                self._record(semconv.PARSE, step, error.ended_ns)
            name: OutcomeName = "context_overflow" if error.kind == "context_overflow" else "failed"
            raise SessionEndedError(Outcome(name, error.message)) from error
        finally:
            self.status.is_calling = False
        self.status.session_tokens += result.output_tokens
        try:
            calls = self._take_reply(scripted, result)
        finally:
            parsed_ns = self._record(semconv.PARSE, step, result.ended_ns)
        if not calls:
            return False
        await self._run_tools(calls, step, parsed_ns)
        return True

    def _take_reply(self, scripted: Step | None, result: CallResult) -> Sequence[ToolCall]:
        """Remember the assistant's turn; the tool calls to run now."""
        if scripted is not None:
            calls = scripted_calls(scripted, self._step)
            self.conversation.add_scripted(scripted, calls, result)
            return calls
        reply = result.reply
        if reply.tool_calls and not are_calls_whole(reply):
            raise SessionEndedError(
                Outcome("truncated_tool_call", f"step {self._step}: the model's tool call is cut off or not JSON")
            )
        self.conversation.add_reply(result)
        return reply.tool_calls

    async def _run_tools(self, calls: Sequence[ToolCall], step: SpanRef, from_ns: int) -> None:
        """Run the calls in parallel and remember their outputs in the order of the calls."""
        self.status.phase = "tools: " + ", ".join(call.name for call in calls)
        limits = self.scenario.limits
        tool_limits = ToolLimits(limits.tool, limits.tool_memory_mib, limits.tool_output_bytes)
        begun_ns: list[int] = []
        tasks = [asyncio.create_task(self._run_tool(call, step, tool_limits, begun_ns)) for call in calls]
        try:
            results = await asyncio.gather(*tasks)
        except BaseException:  # cancellation too: no tool may outlive its session
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._record(semconv.DISPATCH, step, from_ns, ended_ns=min(begun_ns, default=None))
            raise
        # What a tool waits for its thread and process is the loop's own time, unless another one runs meanwhile.
        self._record(semconv.DISPATCH, step, from_ns, ended_ns=max(result.started_ns for result in results))
        for call, result in zip(calls, results, strict=True):
            self.conversation.add_tool_output(call, self._seen(result.output))
        self._record(semconv.DISPATCH, step, max(result.ended_ns for result in results))

    async def _run_tool(self, call: ToolCall, step: SpanRef, limits: ToolLimits, begun_ns: list[int]) -> ToolResult:
        started_ns = now_ns()
        begun_ns.append(started_ns)
        ref = self.recorder.reserve()
        try:
            result = await execute(call.name, call.parsed or {}, self.workspace, limits, self.sandbox)
        except asyncio.CancelledError:
            self._record_tool(call, step, ref, (started_ns, now_ns()), {}, "cancelled")
            raise
        attributes: dict[str, AttributeValue] = {
            semconv.OUTPUT_BYTES: result.output_bytes,
            semconv.TIMED_OUT: result.is_timed_out,
            semconv.TRUNCATED: result.is_truncated,
            semconv.SANDBOXED: result.is_sandboxed,
        }
        if result.exit_code is not None:
            attributes[semconv.EXIT_CODE] = result.exit_code
        error = _error_of(result)
        self._record_tool(call, step, ref, (result.started_ns, result.ended_ns), attributes, error)
        self.recorder.add_content(ref, "tool_output", result.output)
        return result

    def _record_tool(
        self,
        call: ToolCall,
        step: SpanRef,
        ref: SpanRef,
        times: tuple[int, int],
        attributes: dict[str, AttributeValue],
        error: str | None,
    ) -> None:
        attributes = {
            semconv.OPERATION: "execute_tool",
            semconv.OPENINFERENCE_KIND: "TOOL",
            semconv.TOOL_NAME: call.name,
            semconv.TOOL_CALL_ID: call.id,
            semconv.TOOL_TYPE: "function",
            **attributes,
        }
        name = f"{semconv.EXECUTE_TOOL} {call.name}"
        self.recorder.add(Span(ref, step, name, times[0], times[1], "internal", attributes, error))

    def _record(
        self,
        name: str,
        parent: SpanRef,
        started_ns: int,
        attributes: dict[str, AttributeValue] | None = None,
        ended_ns: int | None = None,
    ) -> int:
        ended_ns = now_ns() if ended_ns is None else ended_ns
        self.recorder.add(
            Span(self.recorder.reserve(), parent, name, started_ns, ended_ns, "internal", attributes or {})
        )
        return ended_ns

    def _seen(self, output: str) -> str:
        """Tool output as the model gets it: in scripted replay, what differs between equal runs is masked."""
        return output if self.scenario.mode == "live" else mask(output, self.workspace)

    def _show_phase(self, phase: str) -> None:
        self.status.phase = phase

    def _count_events(self, count: int) -> None:
        self.status.tokens += count
        self.status.phase = "receiving"


def _error_of(result: ToolResult) -> str | None:
    """What a tool's span says of a call that failed."""
    if result.is_timed_out:
        return "stopped at the time limit"
    return (result.output.splitlines() or ["failed"])[0][:200] if result.is_error else None
