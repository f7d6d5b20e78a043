"""What a benchmark sends: random words of an exact length, fixed prompts, or questions with known answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import orjson

from agentprof.clock import now_ns
from agentprof.errors import CallError, InputError
from agentprof.records.call import CallResult, ChatRequest
from agentprof.records.spans import ListRecorder
from agentprof.runs.preflight import PreflightError
from agentprof.runs.prompts import find_words
from agentprof.runs.token_count import token_counter
from agentprof.wire.client import ChatClient

Endpoint = Literal["completions", "chat"]

_FIXED_PROMPTS = (
    "Explain how a paged key-value cache serves many requests of different lengths from one block of GPU memory: "
    "block tables, copy-on-write for shared prefixes, eviction, and what happens to latency when memory runs out.",
    "Write a Python module that parses a log of HTTP requests, groups them by route, and reports the 50th, 95th and "
    "99th percentile of latency for each, with tests. Explain each design decision as you go.",
    "A distributed queue sometimes delivers a message twice. Describe three designs that make its consumers safe, with "
    "their costs, failure cases and the order in which you would introduce them into a running system.",
)
_ANSWER = re.compile(r"####\s*(-?[\d,.]+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Item:
    """One request, and whether a reply to it is right, where that can be told."""

    request: ChatRequest
    is_right: Callable[[str], bool] | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """A workload's requests for one backend. `note`: how exact the input length is."""

    warmup: Sequence[Item]
    items: Sequence[Item]
    note: str | None = None


class Workload(Protocol):
    """A group of requests under one concurrency."""

    @property
    def name(self) -> str:
        """Names the group in the run."""
        ...

    @property
    def concurrency(self) -> int:
        """Requests at once."""
        ...

    def describe(self) -> dict[str, Any]:
        """What makes two benchmarks comparable, for run.json."""
        ...

    async def fit(self, client: ChatClient, seed: int) -> Fitted:
        """The requests for one backend. Raises PreflightError where they can't be made for it."""
        ...


async def fitted_to(workload: Workload, client: ChatClient, seed: int) -> Fitted:
    """The requests of a workload for one backend; a backend that fails meanwhile is reported in one line."""
    try:
        return await workload.fit(client, seed)
    except CallError as error:
        raise PreflightError(error.message) from None


@dataclass(frozen=True, slots=True)
class RandomWords:
    """Requests of `input_tokens` random words, each answered with exactly `output_tokens` tokens."""

    input_tokens: int
    output_tokens: int
    requests: int
    concurrency: int
    warmup: int
    endpoint: Endpoint
    name: str = "bench"

    def describe(self) -> dict[str, Any]:
        """Lengths, endpoint and concurrency."""
        return {
            "prompts": "random",
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "concurrency": self.concurrency,
            "endpoint": self.endpoint,
        }

    async def fit(self, client: ChatClient, seed: int) -> Fitted:
        """Prompts whose length the server counts as asked, each different, none sent before."""

        async def ask(text: str) -> CallResult:
            recorder = ListRecorder()
            request = _request(text, 1, self.endpoint)
            return await client.call(request, recorder=recorder, parent=recorder.reserve(), prepared_from_ns=now_ns())

        count, how = await token_counter(client, ask, is_raw=self.endpoint == "completions")
        maker = await find_words(count)
        if self.input_tokens <= maker.overhead_tokens:
            raise InputError(
                f"--input-tokens {self.input_tokens}: the server alone adds {maker.overhead_tokens} tokens "
                "to a prompt; ask for more."
            )
        texts = [maker.make(self.input_tokens, (seed, number)) for number in range(self.warmup + self.requests)]
        items = [Item(_request(text, self.output_tokens, self.endpoint)) for text in texts]
        return Fitted(items[: self.warmup], items[self.warmup :], f"input length {how}")


@dataclass(frozen=True, slots=True)
class FixedPrompts:
    """Three technical prompts, each answered with exactly `output_tokens` tokens, one after the other."""

    output_tokens: int = 1024
    concurrency: int = 1
    warmup: int = 1
    name: str = "bench-fixed"

    def describe(self) -> dict[str, Any]:
        """Lengths and concurrency."""
        return {"prompts": "fixed", "output_tokens": self.output_tokens, "concurrency": self.concurrency}

    async def fit(self, client: ChatClient, seed: int) -> Fitted:  # noqa: ARG002  the prompts are what they are
        """The same prompts for every backend; the warm-up has one of its own."""
        items = [Item(_request(text, self.output_tokens, "chat")) for text in _FIXED_PROMPTS]
        warm = Item(_request("Explain what a benchmark's warm-up is good for.", self.output_tokens, "chat"))
        return Fitted([warm] * self.warmup, items)


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the number that answers it."""

    text: str
    answer: Decimal


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions with numbers for answers, asked by so many users at once and scored; replies end by themselves."""

    questions: Sequence[Question]
    concurrency: int
    max_tokens: int
    source: str
    name: str

    def describe(self) -> dict[str, Any]:
        """The file, how many, how many users."""
        return {
            "prompts": "questions",
            "source": self.source,
            "questions": len(self.questions),
            "concurrency": self.concurrency,
        }

    async def fit(self, client: ChatClient, seed: int) -> Fitted:  # noqa: ARG002  the questions are what they are
        """One request a question; each user warms up with a question that isn't scored."""
        warm = Item(_chat("What is 2 + 2? Reason briefly, then end with the number alone.", self.max_tokens))
        items = [
            Item(
                _chat(f"{question.text}\nReason step by step, then end with the number alone.", self.max_tokens),
                partial(_is_answered, question.answer),
            )
            for question in self.questions
        ]
        return Fitted([warm] * self.concurrency, items)


def read_questions(path: Path) -> list[Question]:
    """Questions in GSM8K's JSONL: `question`, and `answer` that ends in `#### 42`. Raises InputError, line named."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}.") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
            text, answer = str(row["question"]), str(row["answer"])
        except (ValueError, KeyError, TypeError):
            raise InputError(f'{path}:{number}: not a JSON object with "question" and "answer".') from None
        match = _ANSWER.search(answer)
        value = _decimal(match[1]) if match else None
        if value is None:
            raise InputError(f'{path}:{number}: answer: does not end in "#### NUMBER".')
        found.append(Question(text, value))
    if not found:
        raise InputError(f"{path}: has no questions.")
    return found


def last_number(text: str) -> Decimal | None:
    """The last number in a reply, thousands separators ignored; None where there is none."""
    numbers = _NUMBER.findall(text)
    return _decimal(numbers[-1]) if numbers else None


def _is_answered(answer: Decimal, reply: str) -> bool:
    return last_number(reply) == answer


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "").rstrip("."))
    except InvalidOperation:
        return None


def _request(text: str, output_tokens: int, endpoint: Endpoint) -> ChatRequest:
    if endpoint == "chat":
        messages: Sequence[Mapping[str, Any]] = ({"role": "user", "content": text},)
        return ChatRequest(messages, (), output_tokens, forced_tokens=output_tokens, temperature=0.0)
    return ChatRequest((), (), output_tokens, forced_tokens=output_tokens, temperature=0.0, prompt=text)


def _chat(text: str, max_tokens: int) -> ChatRequest:
    return ChatRequest(({"role": "user", "content": text},), (), max_tokens, temperature=0.0)
