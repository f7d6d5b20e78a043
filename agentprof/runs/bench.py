"""The raw serving benchmark: requests without an agent, written as a run like any other.

Every request is a session of its own, `invoke_agent <group>`, with one step and one call. A group is a set of requests
that run under one concurrency; its warm-up comes first and is marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentprof import semconv
from agentprof.clock import now_ns
from agentprof.errors import CallError
from agentprof.records.backend import Backend
from agentprof.records.call import CallResult, ChatRequest
from agentprof.records.progress import SessionStatus
from agentprof.records.spans import AttributeValue, Span, SpanRef
from agentprof.runs.facts import describe_run
from agentprof.runs.plan import PlannedSession
from agentprof.runs.recording import Observer, Recording, RunCounts, open_recording, run_together
from agentprof.runs.tracing import SessionRecorder
from agentprof.runs.workloads import Item, Workload, fitted_to
from agentprof.wire.client import ChatClient


@dataclass(frozen=True, slots=True)
class BenchSummary:
    """What a benchmark produced: how many requests were planned, and why those that failed did."""

    folder: Path
    planned: int
    failures: Sequence[str]
    counts: RunCounts
    notes: Sequence[str] = ()


@dataclass(slots=True)
class Bench:
    """One benchmark: workloads against backends, one after the other.

    seed: of the prompts; equal seeds give equal prompts. options: kept in run.json.
    """

    workloads: Sequence[Workload]
    backends: Sequence[Backend]
    folder: Path
    observer: Observer
    seed: int
    options: Mapping[str, Any]
    otlp_endpoint: str | None = None
    _failures: list[str] = field(default_factory=list)

    async def run(self) -> BenchSummary:
        """Run everything. Cancellation keeps what is finished and is reported in the counts.

        Raises InputError and PreflightError before anything ran, RunError when results can't be written.
        """
        planned: list[PlannedSession] = []
        notes: list[str] = []
        async with open_recording(
            self.folder, self.backends, self.observer, otlp_endpoint=self.otlp_endpoint
        ) as recording:
            fitted: list[tuple[Workload, str, Mapping[PlannedSession, Item]]] = []
            for name, ready in recording.backends.items():
                for workload in self.workloads:
                    self.observer.waiting(f'fitting the prompts of "{workload.name}" to backend "{name}"')
                    made = await fitted_to(workload, ready.client, self.seed)
                    notes += [note for note in [made.note] if note is not None]
                    sessions = {
                        PlannedSession(workload.name, name, number, is_warmup): item
                        for is_warmup, items in ((True, made.warmup), (False, made.items))
                        for number, item in enumerate(items, start=1)
                    }
                    planned += sessions
                    fitted.append((workload, name, sessions))

            async def work() -> None:
                self.observer.planned(planned)
                for workload, _, sessions in fitted:
                    for is_warmup in (True, False):
                        some = {session: item for session, item in sessions.items() if session.is_warmup == is_warmup}
                        await _run_at_once(some, workload.concurrency, recording, self)

            facts = describe_run(
                "bench",
                self.folder.name,
                planned,
                {workload.name: workload.describe() for workload in self.workloads},
                {name: (ready.backend, ready.fingerprint) for name, ready in recording.backends.items()},
                {**self.options, "notes": list(dict.fromkeys(notes))},
            )
            counts = await recording.run(facts, work)
        return BenchSummary(self.folder, len(planned), self._failures, counts, tuple(dict.fromkeys(notes)))

    async def request(self, planned: PlannedSession, item: Item, recording: Recording) -> None:
        """One request as a session."""
        status = SessionStatus(planned.scenario, planned.backend, planned.repetition, planned.is_warmup, 1, step=1)
        status.is_calling = True
        recording.running[planned] = status
        self.observer.started(status)
        recorder = recording.new_session()
        status.outcome = "cancelled"
        try:
            await self._call(planned, item, recording, recorder, status)
        finally:
            del recording.running[planned]
            try:
                await recording.keep(recorder)
            finally:
                self.observer.ended(status)

    async def _call(
        self,
        planned: PlannedSession,
        item: Item,
        recording: Recording,
        recorder: SessionRecorder,
        status: SessionStatus,
    ) -> None:
        client = recording.backends[planned.backend].client
        root, mark, started_ns = recorder.reserve(), recording.lag.mark(), now_ns()
        error: str | None = "interrupted"
        try:
            result = await _ask(client, item.request, recorder, (root, started_ns), status)
            status.outcome, error = "completed", None
            status.session_tokens, status.tokens = result.output_tokens, 0
        except CallError as failed:
            status.outcome = "context_overflow" if failed.kind == "context_overflow" else "failed"
            error = failed.message
            self._failures.append(f"{planned.title}: {failed.message}")
            result = None
        finally:
            attributes: dict[str, AttributeValue] = {
                **recording.session_attributes(planned, root, mark),
                semconv.LENGTH: "free" if item.request.forced_tokens is None else "forced",
                semconv.OUTCOME: status.outcome or "cancelled",
                **({semconv.OUTCOME_REASON: error} if error is not None else {}),
            }
            name = f"{semconv.INVOKE_AGENT} {planned.scenario}"
            recorder.add(Span(root, None, name, started_ns, now_ns(), "internal", attributes, error))
        if result is not None and item.is_right is not None:
            at_ns, is_right = now_ns(), item.is_right(result.reply.content)
            recorder.add(
                Span(
                    recorder.reserve(),
                    None,
                    semconv.CHECKS,
                    at_ns,
                    at_ns,
                    "internal",
                    {semconv.CHECKS_PASSED: is_right},
                )
            )


async def _ask(
    client: ChatClient,
    request: ChatRequest,
    recorder: SessionRecorder,
    begun: tuple[SpanRef, int],
    status: SessionStatus,
) -> CallResult:
    """The one step of a session, whose root and start are given."""
    root, started_ns = begun
    step = recorder.reserve()

    def count(events: int) -> None:
        status.tokens += events
        status.phase = "receiving"

    def show(phase: str) -> None:
        status.phase = phase

    try:
        result = await client.call(
            request, recorder=recorder, parent=step, prepared_from_ns=started_ns, on_phase=show, on_events=count
        )
        recorder.add(Span(recorder.reserve(), step, semconv.PARSE, result.ended_ns, now_ns()))
        return result
    finally:
        attributes: dict[str, AttributeValue] = {semconv.STEP_NUMBER: 1, semconv.TURN_NUMBER: 1}
        recorder.add(Span(step, root, f"{semconv.STEP} 1", started_ns, now_ns(), "internal", attributes))


async def _run_at_once(
    sessions: Mapping[PlannedSession, Item], concurrency: int, recording: Recording, bench: Bench
) -> None:
    """So many requests at once; the next one starts when one ends."""
    waiting = iter(sessions.items())

    async def user() -> None:
        for planned, item in waiting:
            await bench.request(planned, item, recording)

    await run_together([user() for _ in range(min(concurrency, len(sessions)))])
