"""Spans to OTLP JSON and back: exact, and as the OTLP file format spells things."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentprof.records.spans import Span, SpanRef
from agentprof.runs.otlp_json import from_traces_data, to_traces_data

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = (
    TEXT
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.lists(TEXT, max_size=4).map(tuple)
)
TRACES, IDS = st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1)
TIMES = st.integers(0, 2**63 - 1)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    trace = draw(TRACES)
    return Span(
        SpanRef(trace, draw(IDS)),
        draw(st.none() | IDS.map(lambda span_id: SpanRef(trace, span_id))),
        draw(TEXT),
        draw(TIMES),
        draw(TIMES),
        draw(st.sampled_from(["internal", "client", "server", "producer", "consumer"])),
        draw(st.dictionaries(TEXT, VALUES, max_size=6)),
        draw(st.none() | TEXT.filter(bool)),
    )


@given(st.lists(spans(), max_size=5), st.dictionaries(TEXT, VALUES, max_size=3))
def test_a_round_trip_is_exact(written: list[Span], resource: dict[str, Any]) -> None:
    line = orjson.dumps(to_traces_data(written, resource, "1.0"))
    assert list(from_traces_data(orjson.loads(line))) == written
    assert list(from_traces_data(json.loads(line))) == written


def test_it_is_spelled_as_otlp_json() -> None:
    span = Span(
        SpanRef(0xABC, 0xDEF),
        SpanRef(0xABC, 1),
        "chat m",
        1_700_000_000_000_000_001,
        1_700_000_000_000_000_009,
        "client",
        {"n": 7, "x": 0.5, "ok": True, "words": ("a", "b"), "s": "t"},
        "boom",
    )
    data = to_traces_data([span], {"service.name": "agentprof"}, "1.2.3")
    (resource_spans,) = data["resourceSpans"]
    assert resource_spans["resource"] == {
        "attributes": [{"key": "service.name", "value": {"stringValue": "agentprof"}}]
    }
    (scope_spans,) = resource_spans["scopeSpans"]
    assert scope_spans["scope"] == {"name": "agentprof", "version": "1.2.3"}
    assert scope_spans["spans"] == [
        {
            "traceId": "00000000000000000000000000000abc",
            "spanId": "0000000000000def",
            "parentSpanId": "0000000000000001",
            "name": "chat m",
            "kind": 3,
            "startTimeUnixNano": "1700000000000000001",
            "endTimeUnixNano": "1700000000000000009",
            "attributes": [
                {"key": "n", "value": {"intValue": "7"}},
                {"key": "x", "value": {"doubleValue": 0.5}},
                {"key": "ok", "value": {"boolValue": True}},
                {"key": "words", "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}}},
                {"key": "s", "value": {"stringValue": "t"}},
            ],
            "status": {"code": 2, "message": "boom"},
        }
    ]


def test_numbers_that_are_not_finite_survive_json() -> None:
    span = Span(SpanRef(1, 1), None, "s", 0, 0, attributes={"a": float("inf"), "b": float("-inf"), "c": float("nan")})
    (read,) = from_traces_data(orjson.loads(orjson.dumps(to_traces_data([span], {}, "1"))))
    assert read.attributes["a"] == float("inf")
    assert read.attributes["b"] == float("-inf")
    assert read.attributes["c"] != read.attributes["c"]


def test_spans_of_other_services_are_read_as_their_exporters_write_them() -> None:
    other = {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "0" * 31 + "1",
                                "spanId": "0" * 15 + "2",
                                "parentSpanId": "",
                                "name": "llm_request",
                                "kind": "SPAN_KIND_SERVER",
                                "startTimeUnixNano": 5,
                                "endTimeUnixNano": "9",
                                "status": {"code": "STATUS_CODE_ERROR"},
                                "attributes": [{"key": "n", "value": {"intValue": 3}}],
                            },
                            {
                                "traceId": "1",
                                "spanId": "3",
                                "name": "x",
                                "startTimeUnixNano": "1",
                                "endTimeUnixNano": "2",
                            },
                        ]
                    }
                ]
            },
            {"resource": {}},
        ]
    }
    first, second = from_traces_data(other)
    assert first == Span(SpanRef(1, 2), None, "llm_request", 5, 9, "server", {"n": 3}, "error")
    assert second == Span(SpanRef(1, 3), None, "x", 1, 2)


@pytest.mark.parametrize(
    "data", [{}, [], None, {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}, {"resourceSpans": 3}]
)
def test_anything_else_raises_what_readers_catch(data: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        list(from_traces_data(data))
