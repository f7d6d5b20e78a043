"""Whole runs: servers that load, caches that remember, exporters that can't keep up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from live_sessions import steps
from otlp_sink import Sink, otlp_sink
from small_scenarios import make_scenario
from tiny_server import error, serve, tiny_server

from agentprof import semconv
from agentprof.analysis.explain import explain
from agentprof.cli.explain import print_run
from agentprof.records.backend import Backend
from agentprof.records.spans import Span
from agentprof.runs.recording import Observer
from agentprof.runs.replay import Replay, ReplayOptions, ReplaySummary
from agentprof.runs.store import RunData, RunWriter, read_run
from agentprof.runs.tracing import Tracing
from agentprof.serve.sim.app import SimOptions, running_app
from agentprof.serve.sim.profile import Profile


class Waiting(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def waiting(self, message: str) -> None:
        self.messages.append(message)


def replay(
    folder: Path,
    base_url: str,
    observer: Observer | None = None,
    scenario: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[ReplaySummary, RunData]:
    made = make_scenario(folder, **{"length": "free", **(scenario or {})})
    backend = Backend(name="new", base_url=base_url, model="tiny")
    wanted = ReplayOptions(**{"warmup": 0, "run_seed": "seed", **options})
    summary = asyncio.run(Replay([made], [backend], wanted, folder / "r", observer or Observer()).run())
    return summary, read_run(folder / "r")


def sessions(data: RunData) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = explain({}, data.spans)["sessions"]
    return found


class TestServersThatLoad:
    @pytest.mark.parametrize(
        ("fault", "times"),
        [
            pytest.param(lambda: error(503, "Loading model"), 3, id="llama.cpp, three times"),
            pytest.param(lambda: web.Response(status=503, text="model is loading, try again"), 1, id="plain text"),
            pytest.param(lambda: web.json_response({"detail": "Still Loading"}, status=503), 1, id="a gateway's"),
        ],
    )
    def test_loading_is_no_part_of_any_session(
        self, tmp_path: Path, fault: Callable[[], web.Response], times: int
    ) -> None:
        """/v1/models answers all along: ready means one real completion."""
        observer = Waiting()
        with tiny_server(fault=lambda number: fault() if number < times else None) as tiny:
            summary, data = replay(tmp_path, tiny.base_url, observer, {"turns": steps(["true"])}, warmup=1)
            pings = tiny.requests[: times + 1]
        assert observer.messages.count('backend "new" is loading its model') == times
        assert [ping["max_tokens"] for ping in pings] == [1] * (times + 1)
        assert [outcome.name for _, outcome, _ in summary.outcomes] == ["completed"] * 2
        assert [session["warmup"] for session in sessions(data)] == [True, False]
        for session in sessions(data):
            assert session["ledger"]["retry"] == 0
            assert [call["attempts"] for call in session["calls"]] == [1, 1]
        assert not any("attempt" in span.name or span.name == semconv.BACKOFF for span in data.spans)


class TestCaches:
    """A warm-up and a session of one scenario on a server with a prefix cache."""

    def cached(self, folder: Path, cache: str, turns: list[dict[str, Any]]) -> list[list[tuple[int, int]]]:
        """Cached and prompt tokens of each call of each session."""
        profile = Profile.model_validate(
            {"model": "tiny", "prefill": {"base": "2ms", "per_token": "0ms"}, "decode": {"step": "1ms"}}
        )
        scenario = make_scenario(folder, cache=cache, turns=turns)
        options = ReplayOptions(run_seed="seed")

        async def main() -> None:
            async with running_app(profile, SimOptions()) as base_url:
                backend = Backend(name="sim", base_url=base_url, model="tiny")
                await Replay([scenario], [backend], options, folder / "r", Observer()).run()

        asyncio.run(main())
        return [
            [(call["cached_tokens"], call["prompt_tokens"]) for call in session["calls"]]
            for session in sessions(read_run(folder / "r"))
        ]

    @pytest.mark.parametrize(
        ("cache", "least", "most"),
        [("production", 0.3, 0.97), ("isolated", 0.0, 0.05), ("shared", 0.9, 1.0)],
    )
    def test_a_repeated_prompt_is_cached_as_far_as_it_should_be(
        self, tmp_path: Path, cache: str, least: float, most: float, capsys: pytest.CaptureFixture[str]
    ) -> None:
        turns = steps(["cat notes.txt"])
        turns[0]["user"] = "Say what the notes hold, and how often each of their words occurs. " * 4
        first, second = self.cached(tmp_path, cache, turns)
        assert first[0][0] <= 16
        assert first[1][0] > 0.5 * first[0][1]  # a session's own history is always found
        assert least <= second[0][0] / second[0][1] <= most
        print_run(tmp_path / "r")
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        for step, (cached, prompt) in enumerate(second, start=1):  # beside the TTFT, which is the fifth
            assert any(line[:3] == [str(step), f"{prompt:,}", f"{cached:,}"] for line in lines)
        assert ["step", "prompt", "cached", "hit", "ms"] in [line[:5] for line in lines]


@dataclass
class Slowing(Sink):
    """Takes two batches, and then never answers."""

    async def take(self, request: web.Request) -> web.Response:
        if len(self.headers) >= 2:
            self.answer_s = 60
        return await super().take(request)


class TestManySpans:
    def test_what_the_exporter_lost_is_counted_and_the_folder_has_all(self, tmp_path: Path) -> None:
        calls = [{"list_files": {}}] * 500  # few large steps: building requests is what takes long
        turns = [{"user": "Go.", "steps": [{"calls": calls}, {"answer": "Done."}]}]
        scenario = {"turns": turns, "tools": ["list_files"]}
        sink = Slowing()
        with serve({"POST /v1/traces": sink.take}) as url, tiny_server(token_s=0.0) as tiny:
            summary, data = replay(tmp_path, tiny.base_url, None, scenario, repeat=10, concurrency=2, otlp_endpoint=url)
        counts = summary.counts
        assert counts.spans_created == counts.spans_written == len(data.spans) >= 5000
        assert counts.export.created == counts.spans_created
        assert counts.export.exported is not None
        assert 0 < counts.export.exported == len(sink.spans) < counts.spans_created
        assert data.facts["client"]["spans_exported"] == counts.export.exported
        assert [session["outcome"] for session in sessions(data)] == ["completed"] * 10

    @pytest.mark.parametrize(("changes", "is_taken"), [({"answer_s": 0.15}, True), ({"status": 503}, False)])
    def test_slow_and_faulty_exporters(self, tmp_path: Path, changes: dict[str, Any], is_taken: bool) -> None:
        writer = RunWriter(tmp_path / "r", {})
        with otlp_sink(**changes) as sink:
            tracing = Tracing({}, sink.url)
            for _ in range(5):
                recorder = tracing.new_session()
                root = recorder.reserve()
                for number in range(1000):
                    recorder.add(Span(recorder.reserve(), root, f"step {number}", number, number + 1))
                writer.write_session(recorder.take_spans(), [], [], tracing.resource)
            started = time.monotonic()
            counts = tracing.close()
            assert time.monotonic() - started < 20
        assert counts.created == writer.spans_written == len(read_run(tmp_path / "r").spans) == 5000
        assert counts.exported == (5000 if is_taken else 0)
