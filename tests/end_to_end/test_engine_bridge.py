"""Benchmark, session and bridge on a real model, without and with drafting: rows sum, and acceptance has its part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import run
from small_scenarios import write_scenario

from agentprof.serve.local import EngineOptions, start_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

REPEATED = "Copy this list, then copy it again: " + "alpha beta gamma delta epsilon zeta eta theta iota kappa. " * 6


def bridge_of(folder: Path, speculation: str) -> dict[str, Any]:
    """What `explain --json` says of a benchmark and a run on one server."""
    limits = {"session": "90s", "tool": "10s", "output_tokens": 48}
    turns = [{"user": REPEATED, "steps": [{"answer": "Done.", "output_tokens": 48}]}] * 2
    scenario = write_scenario(folder, turns=turns, limits=limits)
    with start_engine(EngineOptions(threads=1, speculation=speculation)) as engine:
        server = ["--base-url", engine.base_url, "--model", engine.model]
        sizes = ["--input-tokens", "64", "--output-tokens", "64", "--requests", "2"]
        for command in (
            ["bench", *server, *sizes, "--seed", "1", "--out", str(folder / "bench")],
            ["replay", str(scenario), *server, "--warmup", "0", "--out", str(folder / "run")],
        ):
            ended = run(*command, cwd=folder)
            assert ended.code == 0, ended.err
    ended = run("explain", str(folder / "run"), "--bench", str(folder / "bench"), "--json", cwd=folder)
    assert ended.code == 0, ended.err
    bridge: dict[str, Any] = json.loads(ended.out)["bridge"]
    return bridge


@pytest.mark.parametrize("speculation", ["none", "ngram-simple"])
def test_rows_sum_and_acceptance_shows_where_drafts_are_made(tmp_path: Path, speculation: str) -> None:
    bridge = bridge_of(tmp_path, speculation)
    gap = bridge["agent_ms_per_token"] - bridge["benchmark_ms_per_token"]
    assert sum(bridge["rows"].values()) == pytest.approx(gap, rel=1e-9)
    splits = bridge["splits"]
    assert splits["decode"]["speed"] + splits["decode"]["count"] == pytest.approx(bridge["rows"]["decode"], rel=1e-9)
    if speculation == "none":
        assert "speed" not in splits
        return
    assert set(splits["speed"]) == {"acceptance", "step_time"}
    assert sum(splits["speed"].values()) == pytest.approx(splits["decode"]["speed"], rel=1e-9)
    assert splits["speed"]["acceptance"] < 0  # a list copied drafts better than random words
