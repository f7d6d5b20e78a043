"""Checks of a scenario's tools and scripted steps against each other.

They read the plain values of the file, not the finished model, so that a file with a mistake elsewhere still has all of
its problems named at once; what has the wrong shape is left to pydantic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentprof.records.document import Loc
from agentprof.records.scenario import Limits
from agentprof.records.tools import TOOLS, check_arguments
from agentprof.records.wording import suggestion

Finding = tuple[Loc, str]


def trajectory_problems(data: Mapping[str, Any]) -> Iterator[Finding]:
    """Everything that is wrong with tools, calls and steps, as (location, words)."""
    tools = data.get("tools")
    offered = [name for name in tools if isinstance(name, str)] if isinstance(tools, list) else None
    yield from _tool_problems(offered or [])
    is_scripted = data.get("mode", "scripted") == "scripted"
    is_forced = data.get("length", "forced") == "forced"
    count = 0
    for index, turn in _mappings(data.get("turns")):
        loc: Loc = ("turns", index)
        steps = turn.get("steps", [])
        if isinstance(steps, list):
            yield from _turn_problems(loc, steps, is_scripted)
        for step_index, step in _mappings(steps):
            count += 1
            step_loc = (*loc, "steps", step_index)
            yield from _step_problems(step_loc, step)
            if is_scripted and is_forced and step.get("output_tokens") is None:
                words = "output_tokens is missing; `length: forced` needs it on every step (or write `length: free`)"
                yield step_loc, words
            for call_index, call in _mappings(step.get("calls")):
                yield from _call_problems((*step_loc, "calls", call_index), call, offered)
    yield from _limit_problems(data, count)


def _mappings(value: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for index, item in enumerate(value if isinstance(value, list) else []):
        if isinstance(item, dict):
            yield index, item


def _tool_problems(offered: Sequence[str]) -> Iterator[Finding]:
    for index, name in enumerate(offered):
        if name not in TOOLS:
            words = f'"{name}" is not a tool. Tools: {", ".join(TOOLS)}.{suggestion(name, TOOLS)}'
            yield ("tools", index), words
        elif name in offered[:index]:
            yield ("tools", index), f'"{name}" is listed twice; keep one'


def _turn_problems(loc: Loc, steps: Sequence[Any], is_scripted: bool) -> Iterator[Finding]:
    if not steps:
        if is_scripted:
            yield loc, "steps is missing; `mode: scripted` needs the steps of every turn (or write `mode: live`)"
        return
    for index, step in enumerate(steps):
        is_last = index == len(steps) - 1
        if not isinstance(step, dict):
            continue
        if is_last and step.get("calls") and "answer" not in step:
            yield (*loc, "steps", index), "the last step of a turn must be an `answer`, since nothing follows its calls"
        if not is_last and step.get("answer") is not None and not step.get("calls"):
            words = "an `answer` ends the turn, but more steps follow; write words beside calls as `text`"
            yield (*loc, "steps", index, "answer"), words


def _step_problems(loc: Loc, step: Mapping[str, Any]) -> Iterator[Finding]:
    has_calls, has_answer = bool(step.get("calls")), step.get("answer") is not None
    if not has_calls and not has_answer:
        yield loc, "a step needs `calls` or an `answer`"
    if has_calls and has_answer:
        yield (
            (*loc, "answer"),
            "an `answer` ends the turn, so it can't stand beside `calls`; write those words as `text`",
        )
    if has_answer and not has_calls and step.get("text") is not None:
        yield (*loc, "text"), "`text` stands beside calls; put all of it into the `answer`"


def _call_problems(loc: Loc, call: Mapping[str, Any], offered: Sequence[str] | None) -> Iterator[Finding]:
    if call.keys() == {"name", "arguments"}:
        name, arguments = call["name"], call["arguments"]
    elif len(call) == 1:
        ((name, arguments),) = call.items()
    else:
        return
    if not isinstance(name, str):
        return
    if offered is not None and name in TOOLS and name not in offered:
        yield loc, f'"{name}" is called but not in the scenario\'s `tools`; add it there'
    if isinstance(arguments, dict | None):
        words = check_arguments(name, arguments or {})
        if words is not None:
            yield loc, words


def _limit_problems(data: Mapping[str, Any], count: int) -> Iterator[Finding]:
    limits = data.get("limits")
    allowed = limits.get("steps") if isinstance(limits, dict) else None
    allowed = Limits().steps if allowed is None else allowed
    if data.get("mode", "scripted") == "scripted" and isinstance(allowed, int) and count > allowed:
        yield ("limits", "steps"), f"{allowed} are allowed, but the turns have {count}; raise limits.steps"
