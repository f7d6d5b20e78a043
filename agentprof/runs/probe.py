"""The probe: a few requests that tell what a backend's times depend on, within a budget (docs/predict.md).

Each length is asked for three times in a row: a prompt that is new, then the same with a short and a longer suffix,
which a prompt cache shortens. Each reply has a forced length, so every request tells of decoding at its depth too. A
one-token request precedes them, so that what another prompt leaves behind in the server isn't charged to them. Lengths
grow fourfold for as long as the budget allows, then all are repeated in alternating order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import log
from pathlib import Path
from typing import Any

from agentprof import semconv
from agentprof.clock import now_ns
from agentprof.errors import CallError
from agentprof.records.backend import Backend
from agentprof.records.call import CallResult, ChatRequest
from agentprof.records.progress import SessionStatus
from agentprof.records.spans import ListRecorder, Span
from agentprof.runs.facts import describe_run
from agentprof.runs.plan import PlannedSession
from agentprof.runs.prompts import PromptMaker
from agentprof.runs.recording import Observer, Recording, RunCounts, open_recording, run_together

SHORTEST_TOKENS = 64
GROWTH = 4
SUFFIXES = (16, 128)
_LARGEST_BLOCK = 900  # in prompts of fewer tokens nothing may be found: hybrid models cache in blocks of up to 864
_MOST_PASSES = 5
_FOR_REPEATS = 0.4  # share of the budget that the first pass leaves
_OWN_TEXT_SHARE = 0.35
_GROWS_FASTER = 0.2  # waits are taken to grow with a higher power of length than before: attention counts more
_AT_ONCE_LENGTHS = 2
SCENARIO = "probe"

# One token each for nearly every tokeniser. Lengths needn't be exact: the fit takes those that the server counts.
_WORDS = (
    "time year way day man life hand part case week room area fact month lot right study book eye job word side kind "
    "head house power hour game line end law car city name team idea body back level door war party point home water"
)
_PROMPTS = PromptMaker(tuple(_WORDS.split()), 0)


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """How to probe. budget_s: seconds, warm-up included; the last requests may exceed it by what they take.

    output_tokens: of each reply. most_tokens: the longest prompt; None: as long as the budget allows. suffixes: tokens
    that are added to a prompt that was just sent. concurrency: how many requests are made at once, beside those made
    alone. own_text: requests of a run, with their scenarios.
    """

    budget_s: float = 120.0
    output_tokens: int = 32
    most_tokens: int | None = None
    suffixes: Sequence[int] = SUFFIXES
    concurrency: int = 1
    own_text: Sequence[tuple[str, ChatRequest]] = ()
    seed: str = ""
    otlp_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeSummary:
    """What a probe did. failures: titles of the requests that failed, with why."""

    folder: Path
    requests: int
    failures: Sequence[str]
    counts: RunCounts


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request of the probe. `shared_tokens`: sent just before, so that a prompt cache holds them."""

    name: str
    kind: str
    request: ChatRequest
    prompt_tokens: int | None = None
    shared_tokens: int | None = None
    is_warmup: bool = False


@dataclass(slots=True)
class _Budget:
    """Time that is left, and by length how long it took in all and until the new prompt's first token."""

    ends_ns: int
    whole_ns: int
    took_ns: dict[int, int] = field(default_factory=dict)
    waited_ns: dict[int, int] = field(default_factory=dict)

    @property
    def left_ns(self) -> int:
        """Until the end; negative after it."""
        return self.ends_ns - now_ns()

    def expected_ns(self, length: int) -> float:
        """How long a length will take: as last time, else as the longest one with a wait that grows as it did."""
        if length in self.took_ns:
            return self.took_ns[length]
        tried = sorted(self.took_ns)
        if not tried:
            return 0.0
        waited, power = self.waited_ns[tried[-1]], 1.0
        if len(tried) > 1:
            before, last = tried[-2:]
            power = max(power, log(waited / self.waited_ns[before]) / log(last / before) + _GROWS_FASTER)
        return self.took_ns[tried[-1]] - waited + waited * float((length / tried[-1]) ** power)


class Probe:
    """One probe of one backend."""

    def __init__(self, backend: Backend, options: ProbeOptions, folder: Path, observer: Observer) -> None:
        self._backend = backend
        self._options = options
        self._folder = folder
        self._observer = observer
        self._planned: list[PlannedSession] = []
        self._failures: list[str] = []
        self._repetitions: Counter[tuple[str, bool]] = Counter()
        self._has_ceiling = False  # a length failed: no longer one is tried
        self._lacks_cache = False  # what was just sent isn't found again: longer lengths are only asked for new

    async def run(self) -> ProbeSummary:
        """Probe until the budget is used up. Cancellation ends it and keeps what was measured.

        Raises InputError and PreflightError before anything ran, CallError when the warm-up fails.
        """
        options = self._options
        async with open_recording(
            self._folder, [self._backend], self._observer, otlp_endpoint=options.otlp_endpoint
        ) as recording:
            ready = recording.backends[self._backend.name]
            written = asdict(replace(options, own_text=())) | {"own_text": len(options.own_text)}
            facts = describe_run(
                "probe",
                self._folder.name,
                (),
                {},
                {self._backend.name: (ready.backend, ready.fingerprint)},
                {name: value for name, value in written.items() if name not in {"seed", "otlp_endpoint"}},
            )
            counts = await recording.run(facts, lambda: self._work(recording))
        return ProbeSummary(self._folder, len(self._planned), tuple(self._failures), counts)

    async def _work(self, recording: Recording) -> None:
        whole_ns = round(self._options.budget_s * 1e9)
        budget = _Budget(now_ns() + whole_ns, whole_ns)
        try:
            for asked in self._length(self._shortest, "warm-up"):
                await self._ask(recording, replace(asked, is_warmup=True))
            await self._grow(recording, budget, reserve_ns=round(budget.whole_ns * _FOR_REPEATS))
            await self._ask_own_text(recording, budget)
            await self._ask_at_once(recording, budget)
            await self._repeat(recording, budget, 2)
            await self._grow(recording, budget, reserve_ns=0)
            for number in range(3, _MOST_PASSES + 1):
                await self._repeat(recording, budget, number)
        finally:
            recording.update(planned=[asdict(planned) for planned in self._planned])

    @property
    def _shortest(self) -> int:
        """The length to begin with."""
        most = self._options.most_tokens
        return SHORTEST_TOKENS if most is None else min(SHORTEST_TOKENS, most)

    async def _grow(self, recording: Recording, budget: _Budget, *, reserve_ns: int) -> None:
        """Lengths that weren't tried, each four times the one before, the last one the longest asked for."""
        most, longest = self._options.most_tokens, max(budget.took_ns, default=None)
        while not self._has_ceiling and longest != (most or 0):
            length = self._shortest if longest is None else longest * GROWTH
            length = length if most is None else min(length, most)
            if budget.expected_ns(length) > budget.left_ns - reserve_ns:
                return
            self._has_ceiling = not await self._ask_length(recording, length, budget, 1)
            longest = length

    async def _repeat(self, recording: Recording, budget: _Budget, number: int) -> None:
        """One more pass over the lengths that still fit, from long to short or back."""
        for length in sorted(budget.took_ns, reverse=number % 2 == 0):
            if budget.expected_ns(length) <= budget.left_ns:
                await self._ask_length(recording, length, budget, number)

    async def _ask_length(self, recording: Recording, length: int, budget: _Budget, number: int) -> bool:
        """All requests of one length; whether they succeeded."""
        started_ns = now_ns()
        await self._clear_the_way(recording)
        for asked in self._length(length, number):
            if asked.kind == "follow" and self._lacks_cache and length >= _LARGEST_BLOCK:
                break
            asked_ns = now_ns()
            result = await self._ask(recording, asked)
            if result is None:
                return False
            if asked.kind == "follow" and length >= _LARGEST_BLOCK and result.reply.usage.cached_tokens == 0:
                self._lacks_cache = True
            if asked.kind == "new":
                events = result.reply.events
                budget.waited_ns[length] = (events[0].at_ns if events else now_ns()) - asked_ns
        budget.took_ns[length] = now_ns() - started_ns
        return True

    def _length(self, length: int, number: object) -> list[_Asked]:
        """A new prompt of a length, then with each of the suffixes after it."""
        text = _PROMPTS.make(length, (self._options.seed, length, number))
        asked = [_Asked(f"{SCENARIO} {length} new", "new", self._request(text), length, 0)]
        for suffix in self._options.suffixes:
            shared = asked[-1].prompt_tokens or 0
            text += _PROMPTS.make(suffix, (self._options.seed, length, number, suffix))
            name = f"{SCENARIO} {suffix} after {shared}"
            asked.append(_Asked(name, "follow", self._request(text), shared + suffix, shared))
        return asked

    async def _ask_own_text(self, recording: Recording, budget: _Budget) -> None:
        """Requests of the recorded run, in its order, within a share of the budget."""
        ends_ns = min(budget.ends_ns, now_ns() + round(budget.whole_ns * _OWN_TEXT_SHARE))
        for number, (scenario, request) in enumerate(self._options.own_text, start=1):
            if now_ns() >= ends_ns:
                return
            await self._ask(recording, _Asked(f"own text {number}, {scenario}", "own_text", request))

    async def _ask_at_once(self, recording: Recording, budget: _Budget) -> None:
        """Several new prompts at the same time, for what a decoding step costs beside others."""
        count = self._options.concurrency
        if count == 1:
            return
        for length in sorted(budget.took_ns)[:_AT_ONCE_LENGTHS]:
            if count * budget.expected_ns(length) > budget.left_ns:
                return
            group = [
                self._request(_PROMPTS.make(length, (self._options.seed, length, "at once", index)))
                for index in range(count)
            ]
            name = f"{SCENARIO} {count} at once of {length}"
            await run_together(
                [self._ask_one(recording, _Asked(name, "at_once", request, length)) for request in group]
            )

    def _request(self, text: str) -> ChatRequest:
        tokens = self._options.output_tokens
        return ChatRequest(({"role": "user", "content": text},), (), tokens, forced_tokens=tokens, temperature=0.0)

    async def _clear_the_way(self, recording: Recording) -> None:
        """A short request that isn't measured: saving an earlier prompt's cache, or waking up, falls to it."""
        client = recording.backends[self._backend.name].client
        recorder = ListRecorder()
        request = ChatRequest(({"role": "user", "content": "ping"},), (), 1, temperature=0.0)
        await client.call(request, recorder=recorder, parent=recorder.reserve(), prepared_from_ns=now_ns())

    async def _ask_one(self, recording: Recording, asked: _Asked) -> None:
        await self._ask(recording, asked)

    async def _ask(self, recording: Recording, asked: _Asked) -> CallResult | None:
        """One request as a session of its own; None where it failed."""
        key = (asked.name, asked.is_warmup)
        self._repetitions[key] += 1
        repetition = self._repetitions[key]
        planned = PlannedSession(asked.name, self._backend.name, repetition, asked.is_warmup)
        self._planned.append(planned)
        status = SessionStatus(asked.name, self._backend.name, repetition, asked.is_warmup, 1, step=1, is_calling=True)
        recording.running[planned] = status
        self._observer.started(status)
        try:
            return await self._record(recording, asked, planned, status)
        finally:
            del recording.running[planned]
            self._observer.ended(status)

    async def _record(
        self, recording: Recording, asked: _Asked, planned: PlannedSession, status: SessionStatus
    ) -> CallResult | None:
        recorder = recording.new_session()
        root, step = recorder.reserve(), recorder.reserve()
        mark, outcome, reason = recording.lag.mark(), "cancelled", "interrupted"
        result = None
        started_ns = now_ns()
        client = recording.backends[self._backend.name].client
        try:
            result = await client.call(asked.request, recorder=recorder, parent=step, prepared_from_ns=started_ns)
            recorder.add(Span(recorder.reserve(), step, semconv.PARSE, result.ended_ns, now_ns()))
            outcome = "completed"
            status.session_tokens = result.output_tokens
        except CallError as error:
            outcome, reason = "failed", error.message
            if error.kind != "context_overflow":  # the end of what can be probed, and no failure
                self._failures.append(f"{planned.title}: {error.message}")
            if asked.is_warmup:
                raise
        finally:
            status.outcome = outcome
            ended_ns = now_ns()
            recorder.add(
                Span(step, root, f"{semconv.STEP} 1", started_ns, ended_ns, "internal", {semconv.STEP_NUMBER: 1})
            )
            attributes: dict[str, Any] = {
                **recording.session_attributes(planned, root, mark),
                semconv.LENGTH: "forced",
                semconv.OUTCOME: outcome,
                semconv.PROBE_KIND: asked.kind,
                semconv.PROBE_PROMPT_TOKENS: asked.prompt_tokens,
                semconv.PROBE_SHARED_TOKENS: asked.shared_tokens,
            }
            present = {name: value for name, value in attributes.items() if value is not None}
            error_text = None if outcome == "completed" else reason
            name = f"{semconv.INVOKE_AGENT} {asked.name}"
            recorder.add(Span(root, None, name, started_ns, ended_ns, "internal", present, error_text))
            await recording.keep(recorder)
        return result
