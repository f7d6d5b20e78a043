"""What every kind of run shares: backends made ready, spans traced, a folder written, the client watched."""

from __future__ import annotations

import asyncio
import gc
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentprof import semconv
from agentprof.agent.processes import run_in_thread
from agentprof.records.backend import Backend, Fingerprint
from agentprof.records.progress import SessionStatus
from agentprof.records.spans import AttributeValue, SpanRef
from agentprof.runs.lag import LagMeter
from agentprof.runs.plan import PlannedSession
from agentprof.runs.preflight import make_ready
from agentprof.runs.store import RunWriter, check_new
from agentprof.runs.tracing import ExportCounts, SessionRecorder, Tracing
from agentprof.wire.client import ChatClient, api_key


class Observer:
    """Told about a run's progress; the command line's override shows it. Does nothing by itself."""

    def waiting(self, message: str) -> None:
        """Something is waited for before sessions can run."""

    def planned(self, sessions: Sequence[PlannedSession]) -> None:
        """The sessions that will run."""

    def started(self, status: SessionStatus) -> None:
        """A session has begun; `status` stays live."""

    def ended(self, status: SessionStatus) -> None:
        """A session has ended."""


@dataclass(frozen=True, slots=True)
class RunCounts:
    """What became of a run's spans. `is_interrupted`: Ctrl-C ended it early; what was finished is kept."""

    spans_created: int
    spans_written: int
    export: ExportCounts
    is_interrupted: bool


@dataclass(slots=True)
class ReadyBackend:
    """A backend that has answered a completion."""

    backend: Backend
    client: ChatClient
    fingerprint: Fingerprint


class Recording:
    """One run being recorded. Made by `open_recording`, which has `backends` ready; `run` then does the work."""

    def __init__(
        self, folder: Path, backends: Mapping[str, ReadyBackend], tracing: Tracing, *, has_content: bool
    ) -> None:
        self.folder = folder
        self.backends = backends
        self._tracing = tracing
        self._has_content = has_content
        self._writer: RunWriter | None = None
        self._spans_created = 0
        self.running: dict[PlannedSession, SessionStatus] = {}
        self.lag = LagMeter(lambda: any(status.is_calling for status in self.running.values()))

    async def run(self, facts: Mapping[str, Any], work: Callable[[], Awaitable[None]]) -> RunCounts:
        """Write the folder's facts, do the work, count. Cancellation ends the work and is reported in the counts.

        Raises RunError when results can't be written, and what `work` raises.
        """
        secrets = _keys([ready.backend for ready in self.backends.values()])
        writer = self._writer = RunWriter(self.folder, facts, secrets)
        is_interrupted = False
        self.lag.start()
        try:
            with _short_collections():
                await work()
        except asyncio.CancelledError:
            is_interrupted = True
        finally:
            await self.lag.stop()
            export = await run_in_thread(lambda _stop: self._tracing.close())
        lag = self.lag.since()
        writer.update(
            is_finished=not is_interrupted,
            client={
                "lag_p50_ns": lag.p50_ns,
                "lag_p99_ns": lag.p99_ns,
                "lag_max_ns": lag.max_ns,
                "cpu_share": round(self.lag.cpu_share, 4),
                "spans_created": self._spans_created,
                "spans_written": writer.spans_written,
                "spans_exported": export.exported,
            },
        )
        return RunCounts(self._spans_created, writer.spans_written, export, is_interrupted)

    def update(self, **facts: Any) -> None:
        """Add to the folder's facts while the run goes on."""
        if self._writer is None:
            raise AssertionError("facts are added while the run goes on")
        self._writer.update(**facts)

    def new_session(self) -> SessionRecorder:
        """A recorder with a trace of its own."""
        return self._tracing.new_session(has_content=self._has_content)

    async def keep(self, recorder: SessionRecorder) -> None:
        """Write a session that has ended. Ctrl-C meanwhile waits until it is written."""
        writer = self._writer
        if writer is None:
            raise AssertionError("sessions are kept while the run goes on")
        spans = recorder.take_spans()
        self._spans_created += recorder.created
        if spans:
            # Off the loop: an fsync must not delay other sessions' streams.
            await run_in_thread(
                lambda _stop: writer.write_session(spans, recorder.arrivals, recorder.contents, self._tracing.resource)
            )

    def session_attributes(
        self, planned: PlannedSession, root: SpanRef, mark: Sequence[int]
    ) -> dict[str, AttributeValue]:
        """What every session's root span says: who it is, and how late the client was since `mark`."""
        lag = self.lag.since(mark)
        session_id = f"{root.trace_id:032x}"
        attributes: dict[str, AttributeValue | None] = {
            semconv.OPERATION: "invoke_agent",
            semconv.OPENINFERENCE_KIND: "AGENT",
            semconv.AGENT_NAME: planned.scenario,
            semconv.CONVERSATION_ID: session_id,
            semconv.SESSION_ID: session_id,
            semconv.SCENARIO: planned.scenario,
            semconv.BACKEND: planned.backend,
            semconv.REPETITION: planned.repetition,
            semconv.WARMUP: planned.is_warmup,
            semconv.LAG_P99_NS: lag.p99_ns,
            semconv.LAG_MAX_NS: lag.max_ns,
        }
        return {name: value for name, value in attributes.items() if value is not None}


@contextmanager
def _short_collections() -> Iterator[None]:
    """Keep garbage collections off what was there before: a full one visits every object of every library.

    Measured with 16 streams at once, it held the event loop up for 80 to 110 ms.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@asynccontextmanager
async def open_recording(
    folder: Path,
    backends: Sequence[Backend],
    observer: Observer,
    *,
    otlp_endpoint: str | None = None,
    has_content: bool = False,
) -> AsyncIterator[Recording]:
    """Make the backends ready and a recording for them; clients and exporters are closed at the end of the block.

    Raises InputError and PreflightError before anything ran.
    """
    check_new(folder)
    tracing = Tracing({"host.name": platform.node()}, otlp_endpoint, _keys(backends))
    ready: dict[str, ReadyBackend] = {}
    try:
        for backend in backends:
            observer.waiting(f'waiting for backend "{backend.name}"')
            client, found = await make_ready(backend, observer.waiting)
            ready[backend.name] = ReadyBackend(backend, client, found)
        yield Recording(folder, ready, tracing, has_content=has_content)
    finally:
        for entry in ready.values():
            await entry.client.close()
        tracing.close()


def _keys(backends: Sequence[Backend]) -> list[str]:
    return [key for backend in backends if (key := api_key(backend))]


async def run_together(works: Sequence[Awaitable[None]]) -> None:
    """Run at once; when one fails or all are cancelled, end the others in order before that is passed on."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    except BaseException:  # cancellation too: what runs must end first
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
