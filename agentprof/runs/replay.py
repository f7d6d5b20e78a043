"""Replay: scenarios against backends, session by session, into a run folder."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentprof import semconv
from agentprof.agent.conversation import Conversation, make_nonce
from agentprof.agent.loop import Outcome, Session
from agentprof.agent.processes import run_in_thread
from agentprof.agent.sandbox import Sandbox
from agentprof.agent.workspace import Workspace, copy_workspace, remove_workspace
from agentprof.clock import now_ns
from agentprof.records.backend import Backend, Fingerprint
from agentprof.records.progress import SessionStatus
from agentprof.records.scenario import Scenario
from agentprof.records.spans import AttributeValue, Span, SpanRef
from agentprof.runs.checks import run_checks
from agentprof.runs.facts import describe_run
from agentprof.runs.lag import LagMeter
from agentprof.runs.plan import PlannedSession, plan_sessions
from agentprof.runs.preflight import make_ready
from agentprof.runs.store import RunWriter, check_new
from agentprof.runs.tracing import ExportCounts, SessionRecorder, Tracing
from agentprof.wire.client import ChatClient, api_key
from agentprof.wire.dialects import ENGINES_WITH_CACHE_SALT


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
    """What a replay produced. `is_interrupted`: Ctrl-C ended it early; what was finished is kept."""

    folder: Path
    planned: int
    outcomes: Sequence[tuple[PlannedSession, Outcome, bool | None]]
    spans_created: int
    spans_written: int
    export: ExportCounts
    is_interrupted: bool


class Observer:
    """Told about a replay's progress; the command line's override shows it. Does nothing by itself."""

    def waiting(self, message: str) -> None:
        """Something is waited for before sessions can run."""

    def planned(self, sessions: Sequence[PlannedSession]) -> None:
        """The sessions that will run."""

    def started(self, status: SessionStatus) -> None:
        """A session has begun; `status` stays live."""

    def ended(self, status: SessionStatus) -> None:
        """A session has ended."""


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
        self._clients: dict[str, ChatClient] = {}
        self._fingerprints: dict[str, Fingerprint] = {}
        self._outcomes: list[tuple[PlannedSession, Outcome, bool | None]] = []
        self._spans_created = 0
        self._running: dict[PlannedSession, SessionStatus] = {}
        self._lag = LagMeter(lambda: any(status.is_calling for status in self._running.values()))

    async def run(self) -> ReplaySummary:
        """Run everything. Cancellation ends the running sessions, keeps them, and is reported in the summary.

        Raises InputError and PreflightError before anything ran, RunError when results can't be written.
        """
        check_new(self._folder)
        is_interrupted = False
        async with AsyncExitStack() as stack:
            tracing = Tracing({"host.name": platform.node()}, self._options.otlp_endpoint)
            stack.callback(tracing.close)
            await self._prepare_backends(stack)
            sessions = [session for wave in self._plan for session in wave]
            secrets = [key for backend in self._backends.values() if (key := api_key(backend))]
            writer = RunWriter(self._folder, self._facts(sessions), secrets)
            self._observer.planned(sessions)
            self._lag.start()
            try:
                for wave in self._plan:
                    await self._run_wave(wave, tracing, writer)
            except asyncio.CancelledError:
                is_interrupted = True
            finally:
                await self._lag.stop()
                export = await run_in_thread(lambda _stop: tracing.close())
            self._finish(writer, export, is_interrupted=is_interrupted)
        return ReplaySummary(
            self._folder,
            len(sessions),
            tuple(self._outcomes),
            self._spans_created,
            writer.spans_written,
            export,
            is_interrupted,
        )

    async def _prepare_backends(self, stack: AsyncExitStack) -> None:
        for backend in self._backends.values():
            self._observer.waiting(f'waiting for backend "{backend.name}"')
            client, found = await make_ready(backend, self._observer.waiting)
            stack.push_async_callback(client.close)
            self._clients[backend.name] = client
            self._fingerprints[backend.name] = found

    async def _run_wave(self, wave: Sequence[PlannedSession], tracing: Tracing, writer: RunWriter) -> None:
        """Run sessions that belong together at once, and write each as it ends, even when interrupted."""
        tasks = [asyncio.create_task(self._run_session(planned, tracing, writer)) for planned in wave]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _run_session(self, planned: PlannedSession, tracing: Tracing, writer: RunWriter) -> None:
        scenario = self._scenarios[planned.scenario]
        status = SessionStatus(
            planned.scenario,
            planned.backend,
            planned.repetition,
            planned.is_warmup,
            0 if scenario.mode == "live" else sum(len(turn.steps) for turn in scenario.turns),
        )
        self._running[planned] = status
        self._observer.started(status)
        recorder = tracing.new_session(has_content=self._options.has_content)
        ended = _Ended()
        try:
            await self._play(planned, scenario, recorder, status, ended)
        finally:
            del self._running[planned]
            status.outcome = ended.outcome.name if ended.outcome else "not begun"
            try:
                await self._keep(planned, recorder, ended, tracing, writer)
            finally:
                self._observer.ended(status)

    async def _keep(
        self, planned: PlannedSession, recorder: SessionRecorder, ended: _Ended, tracing: Tracing, writer: RunWriter
    ) -> None:
        """Write a session to the run folder. Ctrl-C meanwhile waits until it is written."""
        spans = recorder.take_spans()
        self._spans_created += recorder.created
        if ended.outcome is not None:
            self._outcomes.append((planned, ended.outcome, ended.has_passed))
        if spans:
            # Off the loop: an fsync must not delay other sessions' streams.
            await run_in_thread(
                lambda _stop: writer.write_session(spans, recorder.arrivals, recorder.contents, tracing.resource)
            )

    async def _play(
        self,
        planned: PlannedSession,
        scenario: Scenario,
        recorder: SessionRecorder,
        status: SessionStatus,
        ended: _Ended,
    ) -> None:
        """The workspace, the session, the checks: three spans beside one another."""
        started_ns = now_ns()
        async with _own_workspace(scenario.workspace) as workspace:
            recorder.add(Span(recorder.reserve(), None, semconv.PREPARE_WORKSPACE, started_ns, now_ns()))
            await self._run_agent(planned, scenario, workspace, recorder, status, ended)
            status.phase = "checks"
            ended.has_passed = await run_checks(scenario, workspace, recorder, self._sandbox(scenario))

    async def _run_agent(
        self,
        planned: PlannedSession,
        scenario: Scenario,
        workspace: Workspace,
        recorder: SessionRecorder,
        status: SessionStatus,
        ended: _Ended,
    ) -> None:
        client = self._clients[planned.backend]
        root = recorder.reserve()
        conversation = Conversation(
            scenario,
            self._nonce(planned),
            scenario.cache,
            has_cache_salt=client.engine in ENGINES_WITH_CACHE_SALT,
        )
        sandbox = self._sandbox(scenario)
        session = Session(scenario, client, conversation, workspace, sandbox, recorder, root, status)
        mark, outcome = self._lag.mark(), Outcome("cancelled", "interrupted")
        started_ns = now_ns()
        try:
            outcome = await session.run()
        finally:
            ended_ns = now_ns()
            ended.outcome = outcome
            attributes = self._session_attributes(planned, scenario, root, outcome, mark)
            error = None if outcome.name == "completed" else outcome.reason or outcome.name
            name = f"{semconv.INVOKE_AGENT} {scenario.name}"
            recorder.add(Span(root, None, name, started_ns, ended_ns, "internal", attributes, error))

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

    def _session_attributes(
        self, planned: PlannedSession, scenario: Scenario, root: SpanRef, outcome: Outcome, mark: Sequence[int]
    ) -> dict[str, AttributeValue]:
        lag = self._lag.since(mark)
        session_id = f"{root.trace_id:032x}"
        attributes: dict[str, AttributeValue | None] = {
            semconv.OPERATION: "invoke_agent",
            semconv.OPENINFERENCE_KIND: "AGENT",
            semconv.AGENT_NAME: scenario.name,
            semconv.CONVERSATION_ID: session_id,
            semconv.SESSION_ID: session_id,
            semconv.SCENARIO: scenario.name,
            semconv.BACKEND: planned.backend,
            semconv.REPETITION: planned.repetition,
            semconv.WARMUP: planned.is_warmup,
            semconv.MODE: scenario.mode,
            semconv.LENGTH: "free" if scenario.mode == "live" else scenario.length,
            semconv.HISTORY: "generated" if scenario.mode == "live" else scenario.history,
            semconv.CACHE: scenario.cache,
            semconv.OUTCOME: outcome.name,
            semconv.OUTCOME_REASON: outcome.reason,
            semconv.LAG_P99_NS: lag.p99_ns,
            semconv.LAG_MAX_NS: lag.max_ns,
        }
        return {name: value for name, value in attributes.items() if value is not None}

    def _facts(self, sessions: Sequence[PlannedSession]) -> dict[str, Any]:
        options = self._options
        return describe_run(
            self._folder.name,
            sessions,
            self._scenarios,
            {name: (backend, self._fingerprints[name]) for name, backend in self._backends.items()},
            {
                "repeat": options.repeat,
                "concurrency": options.concurrency,
                "warmup": options.warmup,
                "capture_content": options.has_content,
                "sandboxed": options.sandbox is not None,
            },
        )

    def _finish(self, writer: RunWriter, export: ExportCounts, *, is_interrupted: bool) -> None:
        lag = self._lag.since()
        writer.update(
            is_finished=not is_interrupted,
            client={
                "lag_p50_ns": lag.p50_ns,
                "lag_p99_ns": lag.p99_ns,
                "lag_max_ns": lag.max_ns,
                "cpu_share": round(self._lag.cpu_share, 4),
                "spans_created": self._spans_created,
                "spans_written": writer.spans_written,
                "spans_exported": export.exported,
            },
        )


@asynccontextmanager
async def _own_workspace(source: Path) -> AsyncIterator[Workspace]:
    """A copy of a workspace as long as the block; it is removed however the block ends, even while it is made."""
    made: list[Workspace] = []
    try:
        await run_in_thread(lambda _stop: made.append(copy_workspace(source)))
        yield made[0]
    finally:
        if made:
            await run_in_thread(lambda _stop: remove_workspace(made[0]))
