"""Spans to and from the OTLP file format: one TracesData JSON object a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentprof.records.spans import AttributeValue, Span, SpanKind, SpanRef

_KIND_NUMBERS: Mapping[SpanKind, int] = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_KIND_NAMES = {number: name for name, number in _KIND_NUMBERS.items()} | {
    f"SPAN_KIND_{name.upper()}": name for name in _KIND_NUMBERS
}
_ERROR = 2
_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def to_traces_data(spans: Sequence[Span], resource: Mapping[str, Any], scope_version: str) -> dict[str, Any]:
    """One TracesData object. Ids are lower-case hex and 64-bit integers strings, as OTLP JSON wants them."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {
                        "scope": {"name": "agentprof", "version": scope_version},
                        "spans": [_span(span) for span in spans],
                    }
                ],
            }
        ]
    }


def from_traces_data(data: Mapping[str, Any]) -> Iterator[Span]:
    """The spans of one TracesData object, other services' included; lists come back as tuples.

    Raises ValueError, KeyError, TypeError or AttributeError for anything else.
    """
    for resource_spans in data["resourceSpans"]:
        for scope_spans in resource_spans.get("scopeSpans", []):
            for span in scope_spans.get("spans", []):
                yield _read_span(span)


def _span(span: Span) -> dict[str, Any]:
    written: dict[str, Any] = {
        "traceId": f"{span.ref.trace_id:032x}",
        "spanId": f"{span.ref.span_id:016x}",
        "name": span.name,
        "kind": _KIND_NUMBERS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
    }
    if span.parent is not None:
        written["parentSpanId"] = f"{span.parent.span_id:016x}"
    if span.error is not None:
        written["status"] = {"code": _ERROR, "message": span.error}
    return written


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            # JSON has no such numbers; protobuf's JSON writes them as text.
            return {"doubleValue": value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [_value(item) for item in value]}}


def _read_span(data: Mapping[str, Any]) -> Span:
    trace_id = int(data["traceId"], 16)
    parent = data.get("parentSpanId")
    status = data.get("status") or {}
    is_error = status.get("code") in {_ERROR, "STATUS_CODE_ERROR"}
    kind = _KIND_NAMES.get(data.get("kind", 1), "internal")
    return Span(
        SpanRef(trace_id, int(data["spanId"], 16)),
        SpanRef(trace_id, int(parent, 16)) if parent else None,
        data["name"],
        int(data["startTimeUnixNano"]),
        int(data["endTimeUnixNano"]),
        kind,
        {item["key"]: _read_value(item["value"]) for item in data.get("attributes", [])},
        (status.get("message") or "error") if is_error else None,
    )


def _read_value(value: Mapping[str, Any]) -> AttributeValue:
    if "intValue" in value:
        return int(value["intValue"])
    if "doubleValue" in value:
        return float(value["doubleValue"])
    if "arrayValue" in value:
        return tuple(str(_read_value(item)) for item in value["arrayValue"].get("values", []))
    for key in ("stringValue", "boolValue"):
        if key in value:
            found: AttributeValue = value[key]
            return found
    return str(value)
