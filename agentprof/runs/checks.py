"""A scenario's checks: commands that run in the workspace once the session has ended, outside its wall time."""

from __future__ import annotations

from agentprof import semconv
from agentprof.agent.sandbox import Sandbox
from agentprof.agent.tools import ToolLimits, ToolResult, execute
from agentprof.agent.workspace import Workspace
from agentprof.clock import now_ns
from agentprof.records.scenario import Scenario
from agentprof.records.spans import AttributeValue, Recorder, Span, SpanRef

_SHOWN_CHARS = 500


async def run_checks(
    scenario: Scenario, workspace: Workspace, recorder: Recorder, sandbox: Sandbox | None
) -> bool | None:
    """Run all of them; whether each exited with 0 in its time, None where there are none.

    Records `checks` with one `check` below it for each; when cancelled, those that ran.
    """
    if not scenario.checks:
        return None
    limits = ToolLimits(scenario.limits.tool, scenario.limits.tool_memory_mib, scenario.limits.tool_output_bytes)
    ref, started_ns = recorder.reserve(), now_ns()
    error: str | None = "cancelled"
    attributes: dict[str, AttributeValue] = {}
    try:
        results = [await _run_check(command, workspace, limits, recorder, ref, sandbox) for command in scenario.checks]
        attributes[semconv.CHECKS_PASSED] = all(results)
        error = None if all(results) else "a check failed"
    finally:
        recorder.add(Span(ref, None, semconv.CHECKS, started_ns, now_ns(), "internal", attributes, error))
    return all(results)


async def _run_check(
    command: str,
    workspace: Workspace,
    limits: ToolLimits,
    recorder: Recorder,
    parent: SpanRef,
    sandbox: Sandbox | None,
) -> bool:
    result = await execute("bash", {"command": command}, workspace, limits, sandbox)
    attributes: dict[str, AttributeValue] = {semconv.CHECK_COMMAND: command}
    if result.exit_code is not None:
        attributes[semconv.EXIT_CODE] = result.exit_code
    error = _error_of(result)
    recorder.add(
        Span(
            recorder.reserve(),
            parent,
            semconv.CHECK,
            result.started_ns,
            result.ended_ns,
            "internal",
            attributes,
            error,
        )
    )
    return error is None


def _error_of(result: ToolResult) -> str | None:
    """Why a check failed: the end of what it printed; None where it passed."""
    if result.exit_code == 0 and not result.is_timed_out:
        return None
    return result.output[-_SHOWN_CHARS:] or "the check failed without output"
