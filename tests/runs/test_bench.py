from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from agentprof.analysis.bench import benchmark_of_run
from agentprof.analysis.frames import SessionFrame, session_frames
from agentprof.errors import InputError
from agentprof.records.backend import Backend
from agentprof.runs.bench import Bench, BenchSummary
from agentprof.runs.preflight import PreflightError
from agentprof.runs.recording import Observer
from agentprof.runs.store import RunData, read_run
from agentprof.runs.workloads import FixedPrompts, Questions, RandomWords, Workload, read_questions

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from sim_wire import Server, serving

FIGURES = {"prefill": {"base": "40ms", "per_token": "0.2ms"}, "decode": {"tpot": "5ms"}}


def run(folder: Path, server: Server, *workloads: Workload, seed: int = 5) -> tuple[BenchSummary, RunData]:
    backend = Backend(name="sim", base_url=f"http://127.0.0.1:{server.port}/v1", model="simulated")
    summary = asyncio.run(Bench(workloads, [backend], folder, Observer(), seed, {"seed": seed}).run())
    return summary, read_run(folder)


def measured(data: RunData) -> list[SessionFrame]:
    return [frame for frame in session_frames(data.spans) if not frame.is_warmup]


def words(endpoint: Any = "completions", **changed: Any) -> RandomWords:
    made = {"input_tokens": 300, "output_tokens": 40, "requests": 3, "concurrency": 1, "warmup": 1}
    return RandomWords(**{**made, "endpoint": endpoint, **changed})


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_lengths_are_exact_and_nothing_is_cached(tmp_path: Path, endpoint: str) -> None:
    with serving(tmp_path, **FIGURES) as server:
        summary, data = run(tmp_path / "r", server, words(endpoint))
    calls = [call for frame in measured(data) for call in frame.calls]
    assert [call.prompt_tokens for call in calls] == [300] * 3
    assert [call.output_tokens for call in calls] == [40] * 3
    assert all((call.cached_tokens or 0) <= 16 for call in calls)
    assert summary.failures == []
    how = "own tokeniser" if endpoint == "completions" else "calibrated"
    assert any(how in note for note in summary.notes)
    assert data.facts["command"] == "bench"
    assert data.facts["options"]["notes"] == list(summary.notes)


def test_the_profile_is_recovered(tmp_path: Path) -> None:
    with serving(tmp_path, **FIGURES) as server:
        _, data = run(tmp_path / "r", server, words())
    benchmark = benchmark_of_run(data.facts, session_frames(data.spans))
    assert benchmark.ttft_ns.number is not None
    assert benchmark.tpot_ns.number is not None
    assert 99e6 <= benchmark.ttft_ns.number <= 1000e6  # 40 ms + 300 · 0.2 ms, and the machine
    assert 5e6 * 0.95 <= benchmark.tpot_ns.number <= 5e6 * 3
    assert benchmark.completed.value == 3
    assert benchmark.input_tokens.value == 900


def test_warm_up_is_marked_and_every_row_sums(tmp_path: Path) -> None:
    with serving(tmp_path, **FIGURES) as server:
        summary, data = run(tmp_path / "r", server, words(warmup=2))
    frames = session_frames(data.spans)
    assert [frame.is_warmup for frame in frames] == [True, True, False, False, False]
    assert [frame.repetition for frame in frames] == [1, 2, 1, 2, 3]
    assert all(sum(ns or 0 for ns in frame.ledger.rows.values()) == frame.wall_ns for frame in frames)
    assert summary.counts.spans_created == summary.counts.spans_written == len(data.spans)


def test_so_many_run_at_once_and_no_more(tmp_path: Path) -> None:
    with serving(tmp_path, **FIGURES) as server:
        _, data = run(tmp_path / "r", server, words(concurrency=3, requests=7, warmup=0))
    frames = measured(data)
    edges = sorted(
        [(frame.start_ns, 1) for frame in frames] + [(frame.start_ns + frame.wall_ns, -1) for frame in frames]
    )
    running, most = 0, 0
    for _, change in edges:
        running += change
        most = max(most, running)
    assert (len(frames), most) == (7, 3)


def test_prompts_differ_between_requests_and_repeat_with_the_seed(tmp_path: Path) -> None:
    with serving(tmp_path, **FIGURES) as server:
        run(tmp_path / "a", server, words(requests=1, warmup=0), seed=1)
        _, again = run(tmp_path / "b", server, words(requests=1, warmup=0), seed=1)
        _, other = run(tmp_path / "c", server, words(requests=1, warmup=0), seed=2)
    assert (measured(again)[0].calls[0].cached_tokens or 0) > 250
    assert (measured(other)[0].calls[0].cached_tokens or 0) <= 16


def test_fixed_prompts_are_three_long_replies(tmp_path: Path) -> None:
    with serving(tmp_path, **FIGURES) as server:
        _, data = run(tmp_path / "r", server, FixedPrompts(output_tokens=30))
    assert [frame.output_tokens for frame in measured(data)] == [30] * 3
    assert len({frame.calls[0].prompt_tokens for frame in measured(data)}) > 1


def test_questions_are_scored(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    rows = [("How many legs has a dog?", 4), ("How many legs has a bird?", 2), ("How many legs has a fish?", 5)]
    file.write_text("".join(f'{{"question": "{text}", "answer": "#### {right}"}}\n' for text, right in rows))
    replies = [{"when": "dog", "text": "It has 4."}, {"when": "bird", "text": "So 2"}, {"when": "fish", "text": "0"}]
    workload = Questions(read_questions(file), 2, 200, file.name, "questions-2")
    with serving(tmp_path, **FIGURES, replies=replies) as server:
        _, data = run(tmp_path / "r", server, workload)
    assert sorted(str(frame.checks_passed) for frame in measured(data)) == ["False", "True", "True"]
    assert {frame.length for frame in measured(data)} == {"free"}


def test_a_failed_request_is_named_and_left_out(tmp_path: Path) -> None:
    # The first request is the readiness ping, so the third of the benchmark breaks in mid-stream.
    faults = [{"kind": "disconnect", "requests": [4], "after_tokens": 5}]
    with serving(tmp_path, **FIGURES, faults=faults) as server:
        summary, data = run(tmp_path / "r", server, words(requests=4, warmup=0))
    assert len(summary.failures) == 1
    assert "the connection broke after" in summary.failures[0]
    benchmark = benchmark_of_run(data.facts, session_frames(data.spans))
    assert (benchmark.completed.value, benchmark.failed.value) == (3, 1)


def test_a_prompt_shorter_than_the_template_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, **FIGURES) as server, pytest.raises(InputError, match="the server alone adds"):
        run(tmp_path / "r", server, words("chat", input_tokens=1))
    assert not (tmp_path / "r").exists()


def test_without_prompt_tokens_an_exact_length_is_refused(tmp_path: Path) -> None:
    shape = {"engine": "openai", "stream": {"usage": "none"}}
    with serving(tmp_path, **FIGURES, **shape) as server, pytest.raises(PreflightError, match="no prompt tokens"):
        run(tmp_path / "r", server, words("chat"))
