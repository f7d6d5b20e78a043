"""The requests of a recorded run, to be sent again: drafts are accepted on them as they will be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from agentprof import semconv
from agentprof.analysis import attributes
from agentprof.analysis.calls import CallFrame
from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.points import is_counted
from agentprof.errors import InputError
from agentprof.records.call import ChatRequest

_CONTENT = "content.jsonl"
_LEAST_SUFFIX = 8


def has_content(folder: Path) -> bool:
    """Whether a run kept its prompts."""
    return (folder / _CONTENT).is_file()


def longest_prompt(sessions: Sequence[SessionFrame]) -> int | None:
    """Prompt tokens of the longest prompt in completed sessions; None where none is told."""
    calls = [call for session in sessions if is_counted(session) for call in session.finished_calls]
    return max((call.prompt_tokens for call in calls if call.prompt_tokens is not None), default=None)


def usual_suffixes(sessions: Sequence[SessionFrame]) -> tuple[int, ...]:
    """How many new tokens follow cached ones: the quartiles of the run's calls, below and above the middle.

    Empty where the run doesn't tell.
    """
    calls = [call for session in sessions if is_counted(session) for call in session.finished_calls]
    new = sorted(
        call.prompt_tokens - call.cached_tokens
        for call in calls
        if call.prompt_tokens is not None and call.cached_tokens
    )
    if not new:
        return ()
    found = {max(_LEAST_SUFFIX, new[len(new) // 4]), max(_LEAST_SUFFIX, new[len(new) * 3 // 4])}
    return tuple(sorted(found))


def own_requests(folder: Path, sessions: Sequence[SessionFrame]) -> list[tuple[str, ChatRequest]]:
    """The requests of the last completed session of each scenario, in order, each with its scenario.

    Each is forced to the output tokens that it had. A call whose request isn't there is left out. Raises InputError
    where the run kept none of them.
    """
    last = {session.scenario: session for session in sessions if is_counted(session)}
    kept = dict(_requests(folder))
    found = [
        (scenario, request)
        for scenario, session in last.items()
        for call in session.finished_calls
        if (request := _request(session, call, kept)) is not None
    ]
    if not found:
        raise InputError(f"{folder / _CONTENT}: holds no requests of this run; make it with --capture-content.")
    return found


def _request(session: SessionFrame, call: CallFrame, kept: dict[tuple[str, str], dict[str, Any]]) -> ChatRequest | None:
    content = kept.get((f"{call.ref.trace_id:032x}", f"{call.ref.span_id:016x}"))
    chat = next(span for span in session.spans if span.ref == call.ref)
    if content is None or not call.output_tokens:
        return None
    return ChatRequest(
        messages=tuple(content["messages"]),
        tools=tuple(content.get("tools") or ()),
        max_tokens=call.output_tokens,
        forced_tokens=call.output_tokens,
        temperature=attributes.number(chat, semconv.REQUEST_TEMPERATURE),
        seed=attributes.integer(chat, semconv.REQUEST_SEED),
    )


def _requests(folder: Path) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Requests by trace and span; broken lines are left out."""
    path = folder / _CONTENT
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    entry = orjson.loads(line)
                except ValueError:
                    continue
                content = entry.get("content") if isinstance(entry, dict) and entry.get("kind") == "request" else None
                if isinstance(content, dict) and isinstance(content.get("messages"), list):
                    yield (str(entry.get("trace")), str(entry.get("span"))), content
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}.") from None
