"""What the simulated model answers: tokens with their kinds, decided by the profile, the seed and the prompt alone."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from agentprof.serve.sim.profile import Output, Profile, ScriptedReply
from agentprof.serve.sim.requests import Asked
from agentprof.serve.sim.text import draw_arguments, draw_text
from agentprof.serve.sim.timing import cut_steps, draw_lengths, length_probabilities
from agentprof.serve.sim.tokens import call_token, tokenize


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A tool call: tokens `start` (which opens it and names the tool) to `end` of the reply; the rest are arguments."""

    id: str
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A reply before it is sent.

    kinds: one letter a token, `r` reasoning, `c` content, `t` tool call. steps: tokens of each decoding step, the first
    of them out of the prefill. random: where the times go on drawing.
    """

    pieces: list[str]
    kinds: str
    calls: tuple[PlannedCall, ...]
    steps: list[int]
    finish: str
    random: Random

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning."""
        return self.kinds.count("r")

    def text(self, kind: str) -> str:
        """All text of one kind: `r` or `c`."""
        return "".join(piece for piece, letter in zip(self.pieces, self.kinds, strict=True) if letter == kind)

    def arguments(self, call: PlannedCall) -> str:
        """The argument text of a call."""
        return "".join(self.pieces[call.start + 1 : call.end])


def plan_reply(asked: Asked, profile: Profile, seed: int) -> Plan:
    """Decide a reply: scripted where a script matches, else drawn; of forced, limited or natural length."""
    random = _random(asked, seed)
    limit = profile.context_tokens - len(asked.prompt)
    if asked.max_tokens is not None:
        limit = min(limit, asked.max_tokens)
    script = _find_script(asked, profile)
    called = [
        (name, [call_token(name), *tokenize(arguments)])
        for name, arguments in _choose_calls(asked, profile.output, script, random)
    ]
    reasoning, content = _write(asked, profile.output, script, sum(len(tokens) for _, tokens in called), limit, random)
    pieces, kinds = reasoning + content, "r" * len(reasoning) + "c" * len(content)
    calls: list[PlannedCall] = []
    for name, tokens in called:
        if len(pieces) < limit:
            end = min(len(pieces) + len(tokens), limit)
            calls.append(PlannedCall(f"call_{random.getrandbits(64):016x}", name, len(pieces), end))
        pieces, kinds = pieces + tokens, kinds + "t" * len(tokens)
    is_cut = len(pieces) > limit or (len(pieces) == limit and not called)
    pieces, kinds = pieces[:limit], kinds[:limit]
    finish = "length" if is_cut else "tool_calls" if called else "stop"
    lengths = draw_lengths(length_probabilities(profile.speculation, is_chat=asked.is_chat), random)
    steps = cut_steps(len(pieces), lengths)
    return Plan(pieces, kinds, tuple(calls), steps, finish, random)


def _random(asked: Asked, seed: int) -> Random:
    text = f"{seed}\x00{asked.seed}\x00" + "\x00".join(asked.prompt)
    return Random(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest())  # noqa: S311


def _find_script(asked: Asked, profile: Profile) -> ScriptedReply | None:
    if not profile.replies or not asked.is_chat:
        return None
    turn = sum(message.get("role") == "assistant" for message in asked.messages)
    last = asked.messages[-1].get("content")
    last_text = last if isinstance(last, str) else json.dumps(last)
    for reply in profile.replies:
        if reply.turn in (None, turn) and (reply.when is None or re.search(reply.when, last_text)):
            return reply
    return None


def _choose_calls(asked: Asked, output: Output, script: ScriptedReply | None, random: Random) -> list[tuple[str, str]]:
    offered = {tool["function"]["name"]: tool["function"] for tool in asked.tools if "name" in tool.get("function", {})}
    if not offered or asked.tool_choice == "none":
        return []
    if script is not None and script.calls:
        return [(call.name, json.dumps(call.arguments)) for call in script.calls if call.name in offered]
    must, names = asked.tool_choice == "required", [name for name in output.call_tools if name in offered]
    if isinstance(asked.tool_choice, dict):
        must, names = True, [str((asked.tool_choice.get("function") or {}).get("name"))]
    if not must and (script is not None or random.random() >= output.call_probability):
        return []
    name = random.choice([name for name in names if name in offered] or list(offered))
    schema = offered[name].get("parameters") or {"type": "object"}
    return [(name, json.dumps(draw_arguments(schema, random)))]


def _write(
    asked: Asked, output: Output, script: ScriptedReply | None, call_tokens: int, limit: int, random: Random
) -> tuple[list[str], list[str]]:
    """Reasoning and content in tokens, long enough for the wanted length; what is too long is cut by the caller."""
    if script is not None:
        reasoning = list(tokenize(script.reasoning)) if asked.wants_reasoning else []
        content = list(tokenize(script.text))
        total = max(script.tokens or 0, len(reasoning) + len(content) + call_tokens)
    else:
        low, high = output.tokens
        total, reasoning, content = max(random.randint(low, high), call_tokens), [], []
    total = limit if asked.ignores_eos else max(total, min(asked.min_tokens, limit))
    if script is None and asked.wants_reasoning:
        wanted = output.reasoning_tokens
        if wanted is None:
            wanted = round(output.reasoning_share * total)
        reasoning = draw_text(min(wanted, total - min(call_tokens, total)), random)
    missing = total - len(reasoning) - len(content) - call_tokens
    return reasoning, content + draw_text(max(0, missing), random)
