"""Sessions' spans through the OpenTelemetry SDK: to the run folder always, to an OTLP endpoint where asked.

The only module that imports OpenTelemetry. Spans arrive finished, with ids reserved before; the id generator hands
those out. They are handed to the SDK a little later, a few at a time: it takes up to 0.1 ms for each, which would be
time of the session that is measured. The run folder takes all of a session's and loses none; the live export is
counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from agentprof import __version__
from agentprof.clock import ANCHOR
from agentprof.errors import InputError
from agentprof.records.spans import Arrivals, Span, SpanRef
from agentprof.runs.secrecy import hide_in_span, real_secrets

_KINDS = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}
_LATER_S = 0.02  # by then a step's request is out, or its tools run
_AGAIN_S = 0.001
_AT_ONCE = 2
_EXPORT_TIMEOUT_S = 5
_CLOSE_S = 8
_EXPORT_QUEUE = 65_536
_EXPORT_BATCH = 512
# In full: the SDK takes from the environment what is left out, and the run folder's spans would be cut with the others.
_NO_LIMITS = SpanLimits(
    max_attributes=SpanLimits.UNSET,
    max_events=SpanLimits.UNSET,
    max_links=SpanLimits.UNSET,
    max_span_attributes=SpanLimits.UNSET,
    max_event_attributes=SpanLimits.UNSET,
    max_link_attributes=SpanLimits.UNSET,
    max_attribute_length=SpanLimits.UNSET,
    max_span_attribute_length=SpanLimits.UNSET,
)


class _ReservedIds(IdGenerator):
    """Hands the SDK the ids that were reserved for the span being made."""

    def __init__(self) -> None:
        self.random = RandomIdGenerator()
        self.next = SpanRef(0, 0)

    def generate_trace_id(self) -> int:
        return self.next.trace_id

    def generate_span_id(self) -> int:
        return self.next.span_id


class _PerTrace(SpanProcessor):
    """Keeps each trace's finished spans until its session is written."""

    def __init__(self) -> None:
        self.spans: dict[int, list[ReadableSpan]] = defaultdict(list)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is not None:
            self.spans[context.trace_id].append(span)


class _CountingExporter(SpanExporter):
    """Counts what the endpoint took, since the batch processor drops in silence.

    `is_closing`: the run is over, so nothing more is tried after a failure.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._has_failed = False
        self.exported = 0
        self.is_closing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.is_closing and self._has_failed:
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        self._has_failed = result is not SpanExportResult.SUCCESS
        if not self._has_failed:
            self.exported += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


@dataclass(frozen=True, slots=True)
class ExportCounts:
    """Spans made, and spans that the OTLP endpoint acknowledged (None without one). `endpoint` names no user."""

    created: int
    exported: int | None
    endpoint: str | None


class Tracing:
    """The process's tracer. `otlp_endpoint`: a base URL or a full /v1/traces URL; the OTEL_* variables work too.

    `resource`: attributes of the process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES stand above them. `secrets`:
    texts, such as API keys, that no span shall carry. Raises InputError for an endpoint or variable that can't be used.
    """

    def __init__(
        self, resource: Mapping[str, str], otlp_endpoint: str | None = None, secrets: Sequence[str] = ()
    ) -> None:
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            raise InputError("OTEL_SDK_DISABLED=true turns off the spans that agentprof measures with; unset it.")
        # Export failures are counted and reported in one line by us; the SDK would log a traceback for each.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._secrets = real_secrets(secrets)
        self._ids = _ReservedIds()
        self._kept = _PerTrace()
        self._waiting: deque[Span] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._making = threading.Lock()  # the end of a run makes what is left from a thread of its own
        self._created = 0
        self._counts: ExportCounts | None = None
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=_resource(resource),
            id_generator=self._ids,
            span_limits=_NO_LIMITS,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(self._kept)
        self.endpoint = traces_endpoint(otlp_endpoint)
        self._exporter: _CountingExporter | None = None
        if self.endpoint is not None:
            self._exporter = _CountingExporter(_otlp_exporter(self.endpoint if otlp_endpoint else None))
            self._provider.add_span_processor(
                BatchSpanProcessor(
                    self._exporter,
                    max_queue_size=_EXPORT_QUEUE,
                    max_export_batch_size=_EXPORT_BATCH,
                    schedule_delay_millis=1000,
                    export_timeout_millis=_EXPORT_TIMEOUT_S * 1000,
                )
            )
        self._tracer = self._provider.get_tracer("agentprof", __version__)

    def new_session(self, *, has_content: bool = False) -> SessionRecorder:
        """A recorder with a trace of its own; `has_content`: prompts, completions and tool output are kept too."""
        return SessionRecorder(self, self._ids.random.generate_trace_id(), has_content)

    def new_ref(self, trace_id: int) -> SpanRef:
        """A fresh span id in a trace."""
        return SpanRef(trace_id, self._ids.random.generate_span_id())

    def add(self, span: Span) -> None:
        """Take a finished span. It is made once the event loop has time, or when its trace is taken."""
        self._created += 1
        self._waiting.append(span)
        if self._timer is None:
            self._timer = self._make_after(_LATER_S)

    def _make_after(self, wait_s: float) -> asyncio.TimerHandle | None:
        try:
            return asyncio.get_running_loop().call_later(wait_s, self._make_some)
        except RuntimeError:  # no loop runs, so nobody is kept waiting
            return None

    def _make_some(self) -> None:
        with self._making:
            for _ in range(min(_AT_ONCE, len(self._waiting))):
                self._make(self._waiting.popleft())
        self._timer = self._make_after(_AGAIN_S) if self._waiting else None

    def _make(self, span: Span) -> None:
        span = hide_in_span(span, self._secrets)
        parent = span.parent
        context = None
        if parent is not None:
            parent_context = SpanContext(parent.trace_id, parent.span_id, False, TraceFlags(TraceFlags.SAMPLED))
            context = trace.set_span_in_context(NonRecordingSpan(parent_context))
        else:
            context = trace.set_span_in_context(trace.INVALID_SPAN)
        self._ids.next = span.ref
        made = self._tracer.start_span(
            span.name,
            context=context,
            kind=_KINDS[span.kind],
            attributes=span.attributes,
            start_time=ANCHOR.to_wall_ns(span.start_ns),
        )
        if span.error is not None:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(ANCHOR.to_wall_ns(span.end_ns))

    def take(self, trace_id: int) -> list[ReadableSpan]:
        """All spans of a trace, which are then forgotten."""
        with self._making:
            waiting, self._waiting = self._waiting, deque()
            for span in waiting:
                if span.ref.trace_id == trace_id:
                    self._make(span)
                else:
                    self._waiting.append(span)
        return self._kept.spans.pop(trace_id, [])

    @property
    def resource(self) -> Mapping[str, object]:
        """The resource attributes that every span carries."""
        return self._provider.resource.attributes

    def close(self) -> ExportCounts:
        """Give the endpoint what is left, for eight seconds at most, and count. Further calls count no further."""
        if self._counts is None:
            with self._making:
                while self._waiting:
                    self._make(self._waiting.popleft())
            if self._exporter is not None:
                self._exporter.is_closing = True
            # The SDK's own shutdown waits half a minute, and longer for a server that trickles.
            ending = threading.Thread(target=self._provider.shutdown, daemon=True)
            ending.start()
            ending.join(_CLOSE_S)
            exported = self._exporter.exported if self._exporter else None
            self._counts = ExportCounts(self._created, exported, _without_user(self.endpoint))
        return self._counts


@dataclass(slots=True)
class SessionRecorder:
    """The recorder of one session: spans to OpenTelemetry, arrivals and content kept until the session is written."""

    _tracing: Tracing
    trace_id: int
    has_content: bool = False
    arrivals: list[Arrivals] = field(default_factory=list)
    contents: list[tuple[SpanRef, str, object]] = field(default_factory=list)
    created: int = 0

    def reserve(self) -> SpanRef:
        """A new id in this session's trace."""
        return self._tracing.new_ref(self.trace_id)

    def add(self, span: Span) -> None:
        """Record a finished span."""
        self._tracing.add(span)
        self.created += 1

    def add_arrivals(self, arrivals: Arrivals) -> None:
        """Keep the token arrivals of one attempt."""
        self.arrivals.append(arrivals)

    def add_content(self, span: SpanRef, kind: str, content: object) -> None:
        """Keep content, where the run captures it."""
        if self.has_content:
            self.contents.append((span, kind, content))

    def take_spans(self) -> list[Span]:
        """The finished spans, wall-anchored, as the SDK kept them."""
        return [_to_span(span) for span in self._tracing.take(self.trace_id)]


def _to_span(span: ReadableSpan) -> Span:
    context, parent = span.get_span_context(), span.parent
    if context is None or span.start_time is None or span.end_time is None:
        raise AssertionError("the SDK keeps finished spans only")
    kind = next(name for name, value in _KINDS.items() if value is span.kind)
    error = span.status.description or "error" if span.status.status_code is StatusCode.ERROR else None
    return Span(
        SpanRef(context.trace_id, context.span_id),
        SpanRef(parent.trace_id, parent.span_id) if parent is not None else None,
        span.name,
        span.start_time,
        span.end_time,
        kind,  # type: ignore[arg-type]  # a key of _KINDS
        dict(span.attributes or {}),  # type: ignore[arg-type]  # only what `add` accepted
        error,
    )


def _resource(attributes: Mapping[str, str]) -> Resource:
    """What every span says of its process; the standard variables win over our own values."""
    ours = {"service.name": "agentprof", "service.version": __version__, **attributes}
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def _otlp_exporter(endpoint: str | None) -> OTLPSpanExporter:
    """The SDK's exporter; None: to where the OTEL_* variables say."""
    try:
        return OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
    except (ValueError, OSError) as error:
        raise InputError(f"OTLP export: an OTEL_EXPORTER_OTLP_* variable can't be used: {error}") from None


def traces_endpoint(given: str | None) -> str | None:
    """Where spans go live; None = nowhere. A base URL gets /v1/traces, as the OTLP specification says.

    Without one given, the OTEL_* variables tell. Raises InputError for what is no http(s) URL.
    """
    if given is not None:
        url = _checked_url("--otlp-endpoint", given)
        return url if urlsplit(url).path.strip("/") else url.rstrip("/") + "/v1/traces"
    if "otlp" not in (os.environ.get("OTEL_TRACES_EXPORTER") or "otlp").replace(" ", "").split(","):
        return None
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        if found := os.environ.get(variable, "").strip():
            return _checked_url(variable, found)
    return None


def _checked_url(source: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        has_host = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host:
        shown = "what it holds" if "@" in url else f'"{url}"'  # a password is never shown
        raise InputError(f"{source}: {shown} is not an http(s) URL, such as http://127.0.0.1:4318")
    return url


def _without_user(url: str | None) -> str | None:
    if url is None:
        return None
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
