"""An OTLP endpoint over HTTP: decodes what it is sent, or is slow, or refuses."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tiny_server import serve


@dataclass
class Sink:
    """`spans` are protobuf spans; `resources` the resource attributes of each request."""

    url: str = ""
    answer_s: float = 0.0
    status: int = 200
    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()  # aiohttp has undone the compression
        await asyncio.sleep(self.answer_s)
        self.headers.append(dict(request.headers))
        if self.status == 200:
            asked = ExportTraceServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
            for resource_spans in asked.resource_spans:
                attributes = resource_spans.resource.attributes
                self.resources.append({item.key: item.value.string_value for item in attributes})
                for scope_spans in resource_spans.scope_spans:
                    self.spans.extend(scope_spans.spans)
        return web.Response(status=self.status, content_type="application/x-protobuf")

    def wait_for(self, count: int, seconds: float = 30.0) -> None:
        """Wait until so many spans have come, or the time is over."""
        until = time.monotonic() + seconds
        while len(self.spans) < count and time.monotonic() < until:
            time.sleep(0.01)


@contextmanager
def otlp_sink(**changes: Any) -> Iterator[Sink]:
    """A running sink; `url` is its base URL."""
    sink = Sink(**changes)
    with serve({"POST /v1/traces": sink.take, "POST /elsewhere": sink.take}) as url:
        sink.url = url
        yield sink


def attributes_of(span: Any) -> dict[str, Any]:
    """A protobuf span's attributes as plain values."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}
