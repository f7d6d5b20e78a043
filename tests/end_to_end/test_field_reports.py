"""The servers and the turn of the field reports, on fast clocks: benchmarks find the profiles, bridges add up.

The servers and the rig's line run 20 times as fast as written. What doesn't scale, the client's own milliseconds and
the start of processes, only ever adds time, so upper bounds are wide; `benchmarks/field_reports.py` measures at full
length.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from command import run

from agentprof.serve.sim import Profile, load_profile, start_sim
from agentprof.serve.sim.timing import Pace, length_probabilities, mean_length

pytestmark = pytest.mark.xdist_group("field-reports")  # one worker makes the runs that all tests read

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SLOW, FAST = "l40s-fp8", "l40s-w4a16-dflash2"
SCALE = 20
TOKENS = 512

Json = dict[str, Any]


def profile_of(name: str) -> Profile:
    return load_profile(SCENARIOS / "backends" / f"{name}.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which both servers were benchmarked as `bench` and ran the turn as `turn`."""
    folder = tmp_path_factory.mktemp("field-reports")
    for part in ("prompts", "workspaces/meterbus"):
        shutil.copytree(SCENARIOS / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SCENARIOS / "report-turn.yaml", folder)
    rig = folder / "workspaces/meterbus/rig.ini"
    rig.write_text(rig.read_text().replace("baud = 2400", f"baud = {2400 * SCALE}"))
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(start_sim(profile_of(name), time_scale=SCALE)).base_url for name in (FAST, SLOW)
        }
        backends = {name: {"base_url": url, "model": "qwen3.8-27b"} for name, url in urls.items()}
        (folder / "backends.yaml").write_text(yaml.safe_dump({"backends": backends}))
        both = ("-b", FAST, "-b", SLOW)
        lengths = ("--input-tokens", str(TOKENS), "--output-tokens", str(TOKENS), "--requests", "2")
        benched = run("bench", *both, *lengths, "--warmup", "0", "--out", "bench", cwd=folder)
        assert benched.code == 0, benched.err
        replayed = run("replay", "report-turn.yaml", *both, "--warmup", "0", "--out", "turn", cwd=folder)
        assert replayed.code == 0, replayed.err
        yield folder


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Json]:
    """What `explain --bench --json` tells of each server."""
    words = ("explain", "turn", "--bench", "bench", "--json", "--backend")
    return {name: json.loads(run(*words, name, cwd=folder).out) for name in (FAST, SLOW)}


@pytest.mark.parametrize("name", [FAST, SLOW])
def test_the_benchmark_finds_the_figures_of_the_profile(told: dict[str, Json], name: str) -> None:
    profile = profile_of(name)
    pace, per_step = Pace.of(profile, SCALE), mean_length(length_probabilities(profile.speculation))
    ttft_ns = pace.prefill_ns(TOKENS, 0, Random(0))
    tpot_ns = pace.step_ns(TOKENS + TOKENS // 2, 0, Random(0)) / per_step
    figures = told[name]["bridge"]["benchmark"]["figures"]
    assert figures["output_length"]["value"] == TOKENS
    assert ttft_ns * 0.99 <= figures["ttft_ns"]["value"] <= ttft_ns + 100e6
    assert tpot_ns * 0.8 <= figures["tpot_ns"]["value"] <= tpot_ns * 1.5  # a late first token shortens the rest
    latency_ns = ttft_ns + tpot_ns * (TOKENS - 1)
    assert latency_ns * 0.96 <= figures["request_latency_ns"]["value"] <= latency_ns * 1.5 + 100e6
    if profile.speculation:
        assert figures["acceptance_length"]["value"] == pytest.approx(per_step, rel=0.05)


@pytest.mark.parametrize("name", [FAST, SLOW])
def test_the_bridge_adds_up(told: dict[str, Json], name: str) -> None:
    bridge = told[name]["bridge"]
    difference = bridge["agent_ms_per_token"] - bridge["benchmark_ms_per_token"]
    assert sum(bridge["rows"].values()) == pytest.approx(difference, rel=1e-9)
    assert bridge["output_tokens"] == 2700
    assert not bridge["mismatch"]


def test_the_turn_is_the_reports(told: dict[str, Json]) -> None:
    for told_of in told.values():
        sessions = {session["backend"]: session for session in told_of["sessions"]}
        assert sessions.keys() == {FAST, SLOW}
        for session in sessions.values():
            assert (session["outcome"], session["checks_passed"]) == ("completed", True)
            assert len(session["calls"]) == 17
            assert 17_000 < session["calls"][-1]["prompt_tokens"] < 20_000


def test_tools_are_the_largest_row_and_real_text_is_accepted_less(told: dict[str, Json]) -> None:
    bridge = told[FAST]["bridge"]
    assert max(bridge["rows"], key=lambda key: bridge["rows"][key]) == "tool"
    assert bridge["rows"]["first_token_waits"] > 0
    assert bridge["splits"]["speed"]["acceptance"] > 0


def test_the_agent_gains_less_than_the_benchmark(told: dict[str, Json]) -> None:
    fast, slow = (told[name]["bridge"] for name in (FAST, SLOW))
    raw = fast["benchmark_tok_s"] / slow["benchmark_tok_s"]
    assert 1 < fast["agent_tok_s"] / slow["agent_tok_s"] < 0.6 * raw
