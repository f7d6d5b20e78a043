"""`probe` and `predict` as typed, against simulated servers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click
import pytest
from small_scenarios import write_scenario

from agentprof.cli.predict import predict
from agentprof.cli.probe import probe
from agentprof.errors import ExitCode, InputError
from agentprof.records.backend import Backend
from agentprof.records.loading import load_scenario
from agentprof.runs.bench import Bench
from agentprof.runs.recording import Observer
from agentprof.runs.replay import Replay, ReplayOptions
from agentprof.runs.store import read_run
from agentprof.runs.workloads import RandomWords
from agentprof.serve.sim import Profile, RunningSim, start_sim

OLD = {"prefill": {"base": "20ms", "per_token": "0.1ms"}, "decode": {"step": "4ms"}, "model": "m"}
NEW = OLD | {"decode": {"step": "2ms"}, "speculation": {"draft_tokens": 1, "lengths": [0, 1]}}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on an old server, a probe of a new one, and a run there."""
    folder = tmp_path_factory.mktemp("work")
    scenario = write_scenario(folder)
    with start_sim(Profile.model_validate(OLD)) as old, start_sim(Profile.model_validate(NEW)) as new:
        replay(scenario, old, "old", folder / "run-old")
        replay(scenario, new, "new", folder / "run-new")
        arguments = ["--base-url", new.base_url, "--model", "m", "--budget", "5s", "--out", str(folder / "probe")]
        bench(new, folder / "bench-new")
        bench(old, folder / "bench-old", labels={"speculative": "none"})
        run_command(probe, *arguments, "--run", str(folder / "run-old"), "--json")
    return folder


def replay(scenario: Path, sim: RunningSim, name: str, folder: Path) -> None:
    backend = Backend(name=name, base_url=sim.base_url, model="m")
    options = ReplayOptions(repeat=2, has_content=True, run_seed="s")
    asyncio.run(Replay([load_scenario(scenario)], [backend], options, folder, Observer()).run())


def bench(sim: RunningSim, folder: Path, labels: dict[str, str] | None = None) -> None:
    backend = Backend(name="default", base_url=sim.base_url, model="m", labels=labels or {})
    workload = RandomWords(100, 20, 2, 1, 0, "chat")
    asyncio.run(Bench([workload], [backend], folder, Observer(), 1, {"concurrency": 1}, None).run())


def run_command(command: click.Command, *arguments: str) -> Any:
    return command.main(list(arguments), standalone_mode=False)


def printed(capsys: pytest.CaptureFixture[str], command: click.Command, *arguments: str) -> str:
    capsys.readouterr()
    assert run_command(command, *arguments) == ExitCode.OK
    return capsys.readouterr().out


def test_a_probe_fits_the_run_that_it_is_for(work: Path) -> None:
    data = read_run(work / "probe")
    own = [name for name in (session["scenario"] for session in data.facts["planned"]) if name.startswith("own text")]

    assert data.facts["command"] == "probe"
    assert own
    assert data.facts["options"]["suffixes"] != [16, 128]
    assert data.facts["options"]["own_text"] == len(own)


def test_predicts_and_says_how_sure(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, predict, str(work / "run-old"), "--probe", str(work / "probe"))

    assert "would take" in text
    assert "agent tok/s" in text
    assert "Intervals: 95 %" in text
    assert "synthetic" not in text


def test_beside_the_real_run(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (str(work / "run-old"), "--probe", str(work / "probe"), "--against", str(work / "run-new"))
    text = printed(capsys, predict, *arguments)
    found = json.loads(printed(capsys, predict, *arguments, "--json"))

    assert text.startswith("Model time on default: predicted")
    assert found["format"] == 1
    assert found["drafting"]["source"] == "own text"
    assert found["drafting"]["tokens_per_step"] == pytest.approx(7 / 4)  # 2 + 2 + 2 + 1
    assert found["measured"]["model_time_ns"]["error"] == pytest.approx(0, abs=0.4)
    ledger = found["ledger"]
    assert sum(row["value"] for row in ledger.values() if row) == pytest.approx(found["wall_ns"]["value"])
    assert set(found["measured"]["ledger"]) == set(ledger)


def test_a_benchmark_of_the_probed_backend_joins(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(work / "run-old"), "--probe", str(work / "probe")]
    text = printed(capsys, predict, *arguments, "--bench", str(work / "bench-new"))
    with_bench = json.loads(printed(capsys, predict, *arguments, "--bench", str(work / "bench-new"), "--json"))
    without = json.loads(printed(capsys, predict, *arguments, "--json"))

    assert "where its benchmark gives" in " ".join(text.split())
    assert with_bench["probe"]["requests"] == without["probe"]["requests"] + 2
    with pytest.raises(InputError, match=r"no benchmark of the probed backend: label speculative is none in the bench"):
        run_command(predict, *arguments, "--bench", str(work / "bench-old"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-b", "new", "--budget", "5"], "--budget: '5' is not a duration"),
        (["-b", "new", "--run", "missing"], "missing: no run folder"),
        ([], "no backend"),
    ],
)
def test_mistakes_in_a_probe(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        run_command(probe, *arguments)


def test_a_run_is_no_folder(work: Path) -> None:
    with pytest.raises(InputError, match="no run folder"):
        run_command(predict, str(work / "nothing"), "--probe", str(work / "probe"))


def test_a_run_is_no_probe(work: Path) -> None:
    with pytest.raises(InputError, match="is no probe but a run of `agentprof replay`; make one with"):
        run_command(predict, str(work / "run-old"), "--probe", str(work / "run-old"))


def test_runs_of_other_scenarios_cant_be_compared(work: Path) -> None:
    with pytest.raises(InputError, match="no scenario with completed sessions in common"):
        run_command(predict, str(work / "run-old"), "--probe", str(work / "probe"), "--against", str(work / "probe"))
