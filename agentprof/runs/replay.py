"""Replay: scenarios against backends, session by session, into a run folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentprof import semconv
from agentprof.agent.conversation import Conversation, make_nonce
from agentprof.agent.guard import Guard
from agentprof.agent.loop import Outcome, Session
from agentprof.agent.processes import run_in_thread
from agentprof.agent.sandbox import Sandbox
from agentprof.agent.workspace import Workspace, copy_workspace, remove_workspace
from agentprof.clock import now_ns
from agentprof.errors import InputError, RunError
from agentprof.records.backend import Backend
from agentprof.records.progress import SessionStatus
from agentprof.records.scenario import Scenario
from agentprof.records.spans import Span
from agentprof.runs.checks import run_checks
from agentprof.runs.facts import describe_run, describe_scenario
from agentprof.runs.plan import PlannedSession, plan_sessions
from agentprof.runs.recording import Observer, Recording, RunCounts, open_recording, run_together
from agentprof.runs.tracing import SessionRecorder
from agentprof.wire.dialects import ENGINES_WITH_CACHE_SALT

_APART_S = 0.01  # building a first request takes milliseconds: at once, sessions would measure one another's


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How scenarios are replayed. `sandbox` is needed by live scenarios; None runs their commands in the open."""

    repeat: int = 1
    concurrency: int = 1
    warmup: int = 1
    has_content: bool = False
    otlp_endpoint: str | None = None
    sandbox: Sandbox | None = None
    run_seed: str = ""


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """What a replay produced: how each session that began ended, and whether its checks passed (None: none ran)."""

    folder: Path
    planned: int
    outcomes: Sequence[tuple[PlannedSession, Outcome, bool | None]]
    counts: RunCounts


@dataclass(slots=True)
class _Ended:
    """How a session ended, as far as it came: no outcome where it never began."""

    outcome: Outcome | None = None
    has_passed: bool | None = None


class Replay:
    """One replay: prepares backends, runs the planned sessions, keeps what they reported."""

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        backends: Sequence[Backend],
        options: ReplayOptions,
        folder: Path,
        observer: Observer,
    ) -> None:
        self._scenarios = {scenario.name: scenario for scenario in scenarios}
        self._backends = {backend.name: backend for backend in backends}
        self._options = options
        self._folder = folder
        self._observer = observer
        self._plan = plan_sessions(
            list(self._scenarios), list(self._backends), options.repeat, options.concurrency, options.warmup
        )
        self._outcomes: list[tuple[PlannedSession, Outcome, bool | None]] = []
        self._guard = Guard()

    async def run(self) -> ReplaySummary:
        """Run everything. Cancellation ends the running sessions, keeps them, and is reported in the summary.

        Raises InputError and PreflightError before anything ran, RunError when results can't be written.
        """
        options = self._options
        sessions = [session for wave in self._plan for session in wave]
        async with open_recording(
            self._folder,
            list(self._backends.values()),
            self._observer,
            otlp_endpoint=options.otlp_endpoint,
            has_content=options.has_content,
        ) as recording:

            async def work() -> None:
                self._observer.planned(sessions)
                with self._guard:
                    for wave in self._plan:
                        await self._run_wave(wave, recording)

            counts = await recording.run(self._facts(recording, sessions), work)
        return ReplaySummary(self._folder, len(sessions), tuple(self._outcomes), counts)

    async def _run_wave(self, wave: Sequence[PlannedSession], recording: Recording) -> None:
        try:
            works = [self._run_session(planned, recording, n * _APART_S) for n, planned in enumerate(wave)]
            await run_together(works)
        except InputError as error:  # a workspace that was there before is gone, or the disk is full
            if not self._outcomes:
                raise
            raise RunError(f"{str(error).rstrip('.?')}. The sessions before it are kept.") from error

    async def _run_session(self, planned: PlannedSession, recording: Recording, wait_s: float) -> None:
        scenario = self._scenarios[planned.scenario]
        status = SessionStatus(
            planned.scenario,
            planned.backend,
            planned.repetition,
            planned.is_warmup,
            0 if scenario.mode == "live" else sum(len(turn.steps) for turn in scenario.turns),
        )
        recording.running[planned] = status
        self._observer.started(status)
        recorder = recording.new_session()
        ended = _Ended()
        try:
            await asyncio.sleep(wait_s)
            await self._play(planned, scenario, recording, recorder, status, ended)
        finally:
            del recording.running[planned]
            status.outcome = ended.outcome.name if ended.outcome else "not begun"
            if ended.outcome is not None:
                self._outcomes.append((planned, ended.outcome, ended.has_passed))
            try:
                await recording.keep(recorder)
            finally:
                self._observer.ended(status)

    async def _play(
        self,
        planned: PlannedSession,
        scenario: Scenario,
        recording: Recording,
        recorder: SessionRecorder,
        status: SessionStatus,
        ended: _Ended,
    ) -> None:
        """The workspace, the session, the checks: three spans beside one another."""
        started_ns = now_ns()
        async with _own_workspace(scenario.workspace, self._guard) as workspace:
            recorder.add(Span(recorder.reserve(), None, semconv.PREPARE_WORKSPACE, started_ns, now_ns()))
            await self._run_agent(planned, scenario, workspace, recording, recorder, status, ended)
            status.phase = "checks"
            ended.has_passed = await run_checks(scenario, workspace, recorder, self._sandbox(scenario))

    async def _run_agent(
        self,
        planned: PlannedSession,
        scenario: Scenario,
        workspace: Workspace,
        recording: Recording,
        recorder: SessionRecorder,
        status: SessionStatus,
        ended: _Ended,
    ) -> None:
        client = recording.backends[planned.backend].client
        root = recorder.reserve()
        conversation = Conversation(
            scenario,
            self._nonce(planned),
            scenario.cache,
            has_cache_salt=client.engine in ENGINES_WITH_CACHE_SALT,
        )
        sandbox = self._sandbox(scenario)
        session = Session(scenario, client, conversation, workspace, sandbox, recorder, root, status)
        mark, outcome = recording.lag.mark(), Outcome("cancelled", "interrupted")
        try:
            outcome = await session.run()
        finally:
            ended_ns = now_ns()
            status.wall_ns = ended_ns - session.started_ns
            ended.outcome = outcome
            attributes = {
                **recording.session_attributes(planned, root, mark),
                semconv.MODE: scenario.mode,
                semconv.LENGTH: "free" if scenario.mode == "live" else scenario.length,
                semconv.HISTORY: "generated" if scenario.mode == "live" else scenario.history,
                semconv.CACHE: scenario.cache,
                semconv.OUTCOME: outcome.name,
                **({semconv.OUTCOME_REASON: outcome.reason} if outcome.reason is not None else {}),
            }
            error = None if outcome.name == "completed" else outcome.reason or outcome.name
            name = f"{semconv.INVOKE_AGENT} {scenario.name}"
            recorder.add(Span(root, None, name, session.started_ns, ended_ns, "internal", attributes, error))

    def _sandbox(self, scenario: Scenario) -> Sandbox | None:
        return self._options.sandbox if scenario.mode == "live" else None

    def _nonce(self, planned: PlannedSession) -> str:
        """Equal for every backend, so that A and B get the same prompts; unless two share a server."""
        backend = self._backends[planned.backend]
        urls = [other.base_url.rstrip("/") for other in self._backends.values()]
        shares = urls.count(backend.base_url.rstrip("/")) > 1
        return make_nonce(
            self._options.run_seed,
            planned.scenario,
            planned.repetition,
            planned.is_warmup,
            backend.name if shares else "",
        )

    def _facts(self, recording: Recording, sessions: Sequence[PlannedSession]) -> dict[str, Any]:
        options = self._options
        return describe_run(
            "replay",
            self._folder.name,
            sessions,
            {name: describe_scenario(scenario) for name, scenario in self._scenarios.items()},
            {name: (ready.backend, ready.fingerprint) for name, ready in recording.backends.items()},
            {
                "repeat": options.repeat,
                "concurrency": options.concurrency,
                "warmup": options.warmup,
                "capture_content": options.has_content,
                "sandboxed": options.sandbox is not None,
            },
        )


@asynccontextmanager
async def _own_workspace(source: Path, guard: Guard) -> AsyncIterator[Workspace]:
    """A copy of a workspace as long as the block; it is removed however the block ends, even while it is made."""
    made: list[Workspace] = []
    try:
        await run_in_thread(lambda _stop: made.append(copy_workspace(source, guard.watch)))
        yield made[0]
    finally:
        if made:
            await run_in_thread(lambda _stop: remove_workspace(made[0]))
            guard.release(made[0])
