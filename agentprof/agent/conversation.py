"""The messages of one session: what is sent, what is remembered, and what keeps sessions apart in a prefix cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from agentprof.records.call import CallResult, ChatRequest, ToolCall
from agentprof.records.scenario import Cache, Scenario, Step
from agentprof.records.tools import TOOLS


def make_nonce(*parts: object) -> str:
    """Twelve digits that depend on the parts: equal length in characters, and in tokens for usual tokenisers."""
    digest = hashlib.sha256("\0".join(str(part) for part in parts).encode()).digest()
    return f"{int.from_bytes(digest[:8], 'big') % 10**12:012d}"


class Conversation:
    """The history of one session, in the OpenAI API's shape.

    cache (docs/metrics.md): `production` puts the nonce at the head of the first user message, so that system prompt
    and tools are shared between sessions; `isolated` puts it before everything, through `cache_salt` where the server
    offers it; `shared` uses none.
    """

    def __init__(self, scenario: Scenario, nonce: str, cache: Cache, *, has_cache_salt: bool) -> None:
        self._scenario = scenario
        in_prompt = cache == "isolated" and not has_cache_salt
        self.cache_salt = nonce if cache == "isolated" and has_cache_salt else None
        head = f"[session {nonce}] " if in_prompt else ""
        self._user_head = f"[session {nonce}]\n\n" if cache == "production" else ""
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": head + scenario.system_text}]
        self.tools = [TOOLS[name].definition(head if index == 0 else "") for index, name in enumerate(scenario.tools)]

    def add_user(self, text: str) -> None:
        """A user's message; the session's first one carries the nonce in `production`."""
        self.messages.append({"role": "user", "content": self._user_head + text})
        self._user_head = ""

    def add_scripted(self, step: Step, calls: Sequence[ToolCall], reply: CallResult) -> None:
        """The assistant's turn under scripted replay: as recorded, or with the server's own words."""
        if self._scenario.history == "generated":
            text, reasoning = reply.reply.content, reply.reply.reasoning
        else:
            text, reasoning = step.answer or step.text or "", step.reasoning or ""
        self._add_assistant(text, reasoning, calls)

    def add_reply(self, reply: CallResult) -> None:
        """The assistant's turn as the model wrote it."""
        self._add_assistant(reply.reply.content, reply.reply.reasoning, reply.reply.tool_calls)

    def add_tool_output(self, call: ToolCall, output: str) -> None:
        """What a tool returned."""
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": output})

    def request(self, forced_tokens: int | None) -> ChatRequest:
        """The next request."""
        sampling = self._scenario.sampling
        return ChatRequest(
            messages=tuple(self.messages),
            tools=tuple(self.tools),
            max_tokens=self._scenario.limits.output_tokens,
            forced_tokens=forced_tokens,
            temperature=sampling.temperature,
            seed=sampling.seed,
            cache_salt=self.cache_salt,
        )

    def _add_assistant(self, text: str, reasoning: str, calls: Sequence[ToolCall]) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self._scenario.reasoning == "echo" and reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments or "{}"},
                }
                for call in calls
            ]
        self.messages.append(message)


def scripted_calls(step: Step, number: int) -> tuple[ToolCall, ...]:
    """The tool calls of a scripted step, with ids that are equal in every session."""
    return tuple(
        ToolCall(f"call_{number:03d}_{index}", use.name, json.dumps(use.arguments), dict(use.arguments))
        for index, use in enumerate(step.calls)
    )
