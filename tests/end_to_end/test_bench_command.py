"""`agentprof bench`, and `explain --bench` beside it, as a user runs them, against the simulated server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Ended, run
from small_scenarios import write_scenario

from agentprof.serve.sim import Profile, RunningSim, start_sim

PROFILE = {
    "prefill": {"base": "30ms", "per_token": "0.1ms"},
    "decode": {"tpot": "3ms"},
    "speculation": {"draft_tokens": 3, "acceptance_length": 2.0},
}


@pytest.fixture
def sim() -> Iterator[RunningSim]:
    with start_sim(Profile.model_validate(PROFILE)) as running:
        yield running


def bench(folder: Path, sim: RunningSim, *options: str, out: str = "bench") -> Ended:
    lengths = ["--input-tokens", "200", "--output-tokens", "64"]
    return run(
        "bench", "--base-url", sim.base_url, "--model", "simulated", "--out", out, *lengths, *options, cwd=folder
    )


def explained(folder: Path, *options: str) -> dict[str, Any]:
    return json.loads(run("explain", "run", "--json", *options, cwd=folder).out)


def test_bench_prints_figures_with_their_provenance_and_can_be_explained(tmp_path: Path, sim: RunningSim) -> None:
    ended = bench(tmp_path, sim, "--seed", "7")
    assert (ended.code, ended.complaints) == (0, [])
    for words in (
        "TTFT, mean",
        "TPOT, mean",
        "acceptance length",
        "requests completed",
        "own tokeniser",
        "decode tok/s",
    ):
        assert words in ended.out
    told = json.loads(run("explain", "bench", "--json", cwd=tmp_path).out)
    measured = [session for session in told["sessions"] if not session["warmup"]]
    assert [session["calls"][0]["prompt_tokens"] for session in measured] == [200] * 3


def test_the_bridge_adds_up_to_the_difference(tmp_path: Path, sim: RunningSim) -> None:
    write_scenario(tmp_path)
    assert bench(tmp_path, sim).code == 0
    url = ["--base-url", sim.base_url, "--model", "simulated"]
    assert run("replay", "tiny.yaml", *url, "--out", "run", cwd=tmp_path).code == 0
    bridge = explained(tmp_path, "--bench", "bench")["bridge"]
    gap = bridge["agent_ms_per_token"] - bridge["benchmark_ms_per_token"]
    assert sum(bridge["rows"].values()) == pytest.approx(gap, rel=1e-9)
    assert bridge["rows"]["tool"] > 0
    assert bridge["counterfactual_tok_s"]
    ended = run("explain", "run", "--bench", "bench", "--html", "gap.html", "--open", cwd=tmp_path)
    assert ended.code == 0
    assert "share of the gap" in ended.out
    html = (tmp_path / "gap.html").read_text()
    assert "<html" in html
    assert 'src="http' not in html


def test_a_benchmark_of_another_backend_is_refused_unless_forced(tmp_path: Path, sim: RunningSim) -> None:
    write_scenario(tmp_path)
    bench(tmp_path, sim)
    facts = tmp_path / "bench" / "run.json"
    facts.write_text(facts.read_text().replace('"model": "simulated"', '"model": "another-70b"'))
    run("replay", "tiny.yaml", "--base-url", sim.base_url, "--model", "simulated", "--out", "run", cwd=tmp_path)
    refused = run("explain", "run", "--bench", "bench", cwd=tmp_path)
    assert refused.code == 2
    assert len(refused.complaints) == 1
    assert "another-70b" in refused.complaints[0]
    forced = run("explain", "run", "--bench", "bench", "--force", cwd=tmp_path)
    assert forced.code == 0
    assert "FORCED" in forced.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--requests", "2", "--concurrency", "3"], "--requests 2 is less than --concurrency 3"),
        (["--questions", "none.jsonl"], "none.jsonl: can't be read"),
        (["--questions", "q.jsonl", "--users", "1,x"], "--users: '1,x' is not a list"),
        (["--import", "none.json"], "none.json"),
        (["--import", "q.jsonl"], "q.jsonl"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, sim: RunningSim, options: list[str], words: str) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    ended = bench(tmp_path, sim, *options)
    assert ended.code == 2
    assert words in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "bench").exists()


def test_a_replay_is_no_benchmark(tmp_path: Path, sim: RunningSim) -> None:
    write_scenario(tmp_path)
    run("replay", "tiny.yaml", "--base-url", sim.base_url, "--model", "simulated", "--out", "run", cwd=tmp_path)
    ended = run("explain", "run", "--bench", "run", cwd=tmp_path)
    assert ended.code == 2
    assert "is no benchmark but a run of `agentprof replay`" in ended.err
