"""Replay: scenarios against backends, session by session, into a run folder."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentprof import semconv
from agentprof.agent.conversation import Conversation, make_nonce
from agentprof.agent.loop import Outcome, Session
from agentprof.agent.sandbox import Sandbox
from agentprof.agent.tools import ToolLimits, execute
from agentprof.agent.workspace import Workspace, copy_workspace, remove_workspace
from agentprof.clock import now_ns
from agentprof.records.backend import Backend, Fingerprint
from agentprof.records.progress import SessionStatus
from agentprof.records.scenario import Scenario
from agentprof.records.spans import AttributeValue, Span, SpanRef
from agentprof.runs.lag import LagMeter
from agentprof.runs.plan import PlannedSession, plan_sessions
from agentprof.runs.preflight import make_ready
from agentprof.runs.store import RunWriter
from agentprof.runs.tracing import ExportCounts, SessionRecorder, Tracing
from agentprof.wire.client import ChatClient
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
        self._lag = LagMeter()

    async def run(self) -> ReplaySummary:
        """Run everything. Cancellation ends the running sessions, keeps them, and is reported in the summary.

        Raises PreflightError before anything ran, RunError when results can't be written.
        """
        is_interrupted = False
        async with AsyncExitStack() as stack:
            await self._prepare_backends(stack)
            tracing = Tracing({"host.name": platform.node()}, self._options.otlp_endpoint)
            writer = RunWriter(self._folder, self._facts())
            self._observer.planned([session for wave in self._plan for session in wave])
            self._lag.start()
            try:
                for wave in self._plan:
                    await self._run_wave(wave, tracing, writer)
            except asyncio.CancelledError:
                is_interrupted = True
            finally:
                await self._lag.stop()
                export = await asyncio.to_thread(tracing.close)
            self._finish(writer, export, is_interrupted=is_interrupted)
        return ReplaySummary(
            self._folder,
            sum(len(wave) for wave in self._plan),
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
        self._observer.started(status)
        recorder = tracing.new_session()
        recorder.has_content = self._options.has_content
        outcome, has_passed = Outcome("cancelled", "interrupted"), None
        try:
            outcome, has_passed = await self._play(planned, scenario, recorder, status)
        finally:
            status.outcome = outcome.name
            self._outcomes.append((planned, outcome, has_passed))
            self._spans_created += recorder.created
            spans = recorder.take_spans()
            # Off the loop: an fsync must not delay other sessions' streams. Shielded: Ctrl-C doesn't lose it.
            await asyncio.shield(
                asyncio.to_thread(writer.write_session, spans, recorder.arrivals, recorder.contents, tracing.resource)
            )
            self._observer.ended(status)

    async def _play(
        self, planned: PlannedSession, scenario: Scenario, recorder: SessionRecorder, status: SessionStatus
    ) -> tuple[Outcome, bool | None]:
        """The workspace, the session, the checks: three spans beside one another."""
        started_ns = now_ns()
        workspace = await asyncio.to_thread(copy_workspace, scenario.workspace)
        recorder.add(Span(recorder.reserve(), None, semconv.PREPARE_WORKSPACE, started_ns, now_ns()))
        try:
            outcome = await self._run_agent(planned, scenario, workspace, recorder, status)
            status.phase = "checks"
            has_passed = await self._run_checks(scenario, workspace, recorder) if scenario.checks else None
        finally:
            await asyncio.to_thread(remove_workspace, workspace)
        return outcome, has_passed

    async def _run_agent(
        self,
        planned: PlannedSession,
        scenario: Scenario,
        workspace: Workspace,
        recorder: SessionRecorder,
        status: SessionStatus,
    ) -> Outcome:
        client = self._clients[planned.backend]
        root = recorder.reserve()
        conversation = Conversation(
            scenario,
            self._nonce(planned),
            scenario.cache,
            has_cache_salt=client.engine in ENGINES_WITH_CACHE_SALT,
        )
        sandbox = self._options.sandbox if scenario.mode == "live" else None
        session = Session(scenario, client, conversation, workspace, sandbox, recorder, root, status)
        mark, outcome = self._lag.mark(), Outcome("cancelled", "interrupted")
        started_ns = now_ns()
        try:
            outcome = await session.run()
        finally:
            ended_ns = now_ns()
            attributes = self._session_attributes(planned, scenario, root, outcome, mark)
            error = None if outcome.name == "completed" else outcome.reason or outcome.name
            name = f"{semconv.INVOKE_AGENT} {scenario.name}"
            recorder.add(Span(root, None, name, started_ns, ended_ns, "internal", attributes, error))
        return outcome

    async def _run_checks(self, scenario: Scenario, workspace: Workspace, recorder: SessionRecorder) -> bool:
        limits = ToolLimits(scenario.limits.tool, scenario.limits.tool_memory_mib, scenario.limits.tool_output_bytes)
        sandbox = self._options.sandbox if scenario.mode == "live" else None
        ref, started_ns, has_passed = recorder.reserve(), now_ns(), True
        for command in scenario.checks:
            result = await execute("bash", {"command": command}, workspace, limits, sandbox)
            is_good = result.exit_code == 0 and not result.is_timed_out
            has_passed = has_passed and is_good
            attributes: dict[str, AttributeValue] = {semconv.CHECK_COMMAND: command}
            if result.exit_code is not None:
                attributes[semconv.EXIT_CODE] = result.exit_code
            error = None if is_good else result.output[-500:] or "the check failed without output"
            recorder.add(
                Span(recorder.reserve(), ref, semconv.CHECK, result.started_ns, now_ns(), "internal", attributes, error)
            )
        recorder.add(
            Span(
                ref,
                None,
                semconv.CHECKS,
                started_ns,
                now_ns(),
                "internal",
                {semconv.CHECKS_PASSED: has_passed},
                None if has_passed else "a check failed",
            )
        )
        return has_passed

    def _nonce(self, planned: PlannedSession) -> str:
        """Equal for every backend, so that A and B get the same prompts; unless two share a server."""
        backend = self._backends[planned.backend]
        shares = sum(other.base_url == backend.base_url for other in self._backends.values()) > 1
        return make_nonce(
            self._options.run_seed,
            planned.scenario,
            planned.repetition,
            planned.is_warmup,
            backend.name if shares else "",
        )

    def _session_attributes(
        self, planned: PlannedSession, scenario: Scenario, root: SpanRef, outcome: Outcome, mark: int
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

    def _facts(self) -> dict[str, Any]:
        options = self._options
        return {
            "name": self._folder.name,
            "command": "replay",
            "is_finished": False,
            "planned": [asdict(session) for wave in self._plan for session in wave],
            "scenarios": {
                name: {
                    "digest": scenario.digest,
                    "mode": scenario.mode,
                    "length": scenario.length,
                    "history": scenario.history,
                    "cache": scenario.cache,
                }
                for name, scenario in self._scenarios.items()
            },
            "backends": {
                name: {
                    "base_url": backend.base_url,
                    "model": backend.model,
                    "labels": backend.labels,
                    "extra_body": backend.extra_body,
                    "fingerprint": asdict(self._fingerprints[name]),
                }
                for name, backend in self._backends.items()
            },
            "options": {
                "repeat": options.repeat,
                "concurrency": options.concurrency,
                "warmup": options.warmup,
                "capture_content": options.has_content,
                "sandboxed": options.sandbox is not None,
            },
            "host": _host(),
        }

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


def _host() -> Mapping[str, str | int]:
    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpus": os.cpu_count() or 1,
    }
