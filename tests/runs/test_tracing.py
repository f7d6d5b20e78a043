"""Spans through the OpenTelemetry SDK: kept whole here, exported where asked, and no endpoint holds a run up."""

from __future__ import annotations

import asyncio
import os
import socket
import time

import pytest
from otlp_sink import attributes_of, otlp_sink

from agentprof.clock import ANCHOR, now_ns
from agentprof.errors import InputError
from agentprof.records.spans import Arrivals, Span, SpanRef
from agentprof.runs.tracing import ExportCounts, SessionRecorder, Tracing, traces_endpoint


@pytest.fixture(autouse=True)
def _no_otel_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def record(recorder: SessionRecorder, count: int = 1) -> list[Span]:
    """A root with `count` children, ended in the order of a real session: children first."""
    root, at_ns = recorder.reserve(), now_ns()
    made = [
        Span(recorder.reserve(), root, f"chat {n}", at_ns + n, at_ns + n + 7, "client", {"n": n, "words": ("a", "b")})
        for n in range(count)
    ]
    made.append(Span(root, None, "invoke_agent fix", at_ns, at_ns + 99, "internal", {"ok": True, "x": 0.5}, "broke"))
    for span in made:
        recorder.add(span)
    return made


def dead_url() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_spans_come_back_as_they_were_added_on_the_wall_clock() -> None:
    tracing = Tracing({})
    recorder = tracing.new_session()
    added = record(recorder, 3)
    expected = [
        Span(
            span.ref,
            span.parent,
            span.name,
            ANCHOR.to_wall_ns(span.start_ns),
            ANCHOR.to_wall_ns(span.end_ns),
            span.kind,
            span.attributes,
            span.error,
        )
        for span in added
    ]
    assert recorder.take_spans() == expected
    assert recorder.take_spans() == []
    assert (recorder.created, tracing.close()) == (4, ExportCounts(4, None, None))


def test_spans_are_made_once_the_loop_has_time_and_go_out_while_the_session_runs() -> None:
    with otlp_sink() as sink:
        tracing = Tracing({}, sink.url)
        recorder = tracing.new_session()

        async def session() -> list[Span]:
            for _ in range(3):
                record(recorder, 2)
            await asyncio.to_thread(sink.wait_for, 9)
            assert len(sink.spans) == 9
            return recorder.take_spans()

        assert len(asyncio.run(session())) == 9
        assert tracing.close().exported == 9


def test_taking_a_trace_leaves_the_others_waiting() -> None:
    tracing = Tracing({})
    one, two = tracing.new_session(), tracing.new_session()

    async def sessions() -> list[Span]:
        record(one)
        record(two, 3)
        return one.take_spans()

    assert {span.ref.trace_id for span in asyncio.run(sessions())} == {one.trace_id}
    assert len(two.take_spans()) == 4
    assert tracing.close().created == 6


def test_sessions_have_traces_of_their_own() -> None:
    tracing = Tracing({})
    one, two = tracing.new_session(), tracing.new_session()
    record(one)
    record(two)
    assert {span.ref.trace_id for span in one.take_spans()} == {one.trace_id} != {two.trace_id}
    assert len(two.take_spans()) == 2
    tracing.close()


def test_content_is_kept_only_where_asked_for() -> None:
    tracing = Tracing({})
    span = SpanRef(1, 1)
    for has_content in (True, False):
        recorder = tracing.new_session(has_content=has_content)
        recorder.add_content(span, "reply", "words")
        recorder.add_arrivals(Arrivals(span, 1, [], "", [], []))
        assert recorder.contents == ([(span, "reply", "words")] if has_content else [])
        assert len(recorder.arrivals) == 1
    tracing.close()


def test_no_variable_cuts_what_the_run_folder_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATTRIBUTE_COUNT_LIMIT", "SPAN_ATTRIBUTE_COUNT_LIMIT", "SPAN_EVENT_COUNT_LIMIT"):
        monkeypatch.setenv(f"OTEL_{name}", "1")
    for name in ("ATTRIBUTE_VALUE_LENGTH_LIMIT", "SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT"):
        monkeypatch.setenv(f"OTEL_{name}", "2")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    tracing = Tracing({})
    recorder = tracing.new_session()
    attributes = {f"name {n}": "long text" * 1000 for n in range(200)}
    recorder.add(Span(recorder.reserve(), None, "s", 1, 2, attributes=attributes))
    assert recorder.take_spans()[0].attributes == attributes
    tracing.close()


def test_the_endpoint_gets_the_same_spans() -> None:
    with otlp_sink() as sink:
        tracing = Tracing({"host.name": "box"}, sink.url)
        recorder = tracing.new_session()
        added = record(recorder, 700)  # more than one batch
        counts = tracing.close()
    assert counts == ExportCounts(701, 701, f"{sink.url}/v1/traces")
    assert tracing.close() == counts
    by_id = {int.from_bytes(span.span_id): span for span in sink.spans}
    assert len(by_id) == 701
    for span in added:
        got = by_id[span.ref.span_id]
        assert int.from_bytes(got.trace_id) == span.ref.trace_id
        assert int.from_bytes(got.parent_span_id) == (span.parent.span_id if span.parent else 0)
        assert (got.name, got.end_time_unix_nano - got.start_time_unix_nano) == (span.name, span.duration_ns)
        assert got.kind == (3 if span.kind == "client" else 1)
        assert (got.status.code, got.status.message) == ((2, "broke") if span.error else (0, ""))
    assert attributes_of(by_id[added[-1].ref.span_id]) == {"ok": True, "x": 0.5}
    assert sink.resources[0]["service.name"] == "agentprof"
    assert sink.resources[0]["host.name"] == "box"


def test_the_standard_variables_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=agents")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=ci,host.name=other")
        tracing = Tracing({"host.name": "box"})
        record(tracing.new_session())
        counts = tracing.close()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{sink.url}/elsewhere")
        more = Tracing({})
        record(more.new_session())
        elsewhere = more.close()
    assert (counts.exported, elsewhere.exported) == (2, 2)
    assert elsewhere.endpoint == f"{sink.url}/elsewhere"
    assert sink.headers[0]["x-team"] == "agents"
    assert sink.headers[0]["Content-Encoding"] == "gzip"
    resource = sink.resources[0]
    assert (resource["service.name"], resource["deployment.environment"], resource["host.name"]) == (
        "nightly",
        "ci",
        "other",
    )


def test_a_given_endpoint_stands_above_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert traces_endpoint("http://h:4318") == "http://h:4318/v1/traces"
    assert traces_endpoint("https://h/") == "https://h/v1/traces"
    assert traces_endpoint("http://h:4318/v1/traces") == "http://h:4318/v1/traces"
    assert traces_endpoint(None) is None
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console, otlp")
    assert traces_endpoint(None) == "http://127.0.0.1:9"


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://h", "http://", "http://h:port", "", "http://[::1"])
def test_a_wrong_endpoint_is_one_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"--otlp-endpoint: .* is not an http"):
        Tracing({}, url)
    if url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        with pytest.raises(InputError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT: .* is not an http"):
            Tracing({})


def test_a_password_in_an_endpoint_is_never_shown() -> None:
    with pytest.raises(InputError) as caught:
        Tracing({}, "ftp://me:hunter2@h")
    assert "hunter2" not in str(caught.value)
    tracing = Tracing({}, "http://me:hunter2@127.0.0.1:9")
    assert tracing.close().endpoint == "http://127.0.0.1:9/v1/traces"


def test_secrets_reach_neither_the_endpoint_nor_the_folder() -> None:
    key = "sk-tests-0123456789abcdef"
    with otlp_sink() as sink:
        tracing = Tracing({}, sink.url, [key, "EMPTY"])
        recorder = tracing.new_session()
        attributes = {"said": f"your key: {key}", "all": ["EMPTY", key], "n": 3}
        recorder.add(Span(recorder.reserve(), None, "s", 1, 2, attributes=attributes, error=f"no {key}"))
        tracing.close()
    (kept,) = recorder.take_spans()
    assert kept.attributes == {"said": "your key: (key, not kept)", "all": ("EMPTY", "(key, not kept)"), "n": 3}
    assert kept.error == "no (key, not kept)"
    assert key not in str(sink.spans)
    assert "(key, not kept)" in str(sink.spans)


def test_a_disabled_sdk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "TRUE")
    with pytest.raises(InputError, match="OTEL_SDK_DISABLED"):
        Tracing({})


def test_a_dead_endpoint_costs_seconds_and_is_counted(capfd: pytest.CaptureFixture[str]) -> None:
    tracing = Tracing({}, dead_url())
    recorder = tracing.new_session()
    record(recorder, 2000)
    started = time.monotonic()
    counts = tracing.close()
    assert time.monotonic() - started < 15
    assert (counts.created, counts.exported) == (2001, 0)
    assert len(recorder.take_spans()) == 2001
    assert capfd.readouterr() == ("", "")


def test_an_endpoint_that_never_answers_costs_seconds_and_is_counted() -> None:
    with otlp_sink(answer_s=60) as sink:
        tracing = Tracing({}, sink.url)
        record(tracing.new_session(), 2000)
        started = time.monotonic()
        counts = tracing.close()
        assert time.monotonic() - started < 15
    assert (counts.created, counts.exported) == (2001, 0)


def test_an_endpoint_that_refuses_is_counted() -> None:
    with otlp_sink(status=400) as sink:
        tracing = Tracing({}, sink.url)
        record(tracing.new_session())
        counts = tracing.close()
    assert (counts.created, counts.exported) == (2, 0)
    assert sink.headers
