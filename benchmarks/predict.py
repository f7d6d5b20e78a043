"""Predict real engine configurations from a run on another one and a probe, then run them and see.

    python benchmarks/predict.py                     # all pairs, about 25 minutes on two quiet cores
    python benchmarks/predict.py --pairs kv-q8_0 threads-2 --out /tmp/predict

One session recorded on configuration A (one thread, KV f16) is the workload. Each configuration is probed, predicted,
then really run, in a fresh engine each. A is among them: it must predict itself. Misses are printed like everything.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agentprof.analysis.frames import SessionFrame, session_frames
from agentprof.analysis.predict import predict
from agentprof.analysis.prediction_check import PredictionCheck, compare_prediction, leave_one_out
from agentprof.analysis.probe import read_probe
from agentprof.records.backend import Backend
from agentprof.records.loading import load_scenario
from agentprof.report.layout import table
from agentprof.report.predict_text import Names, render_check, render_left_out
from agentprof.report.probe_text import render_probe
from agentprof.runs.own_text import longest_prompt, own_requests
from agentprof.runs.probe import Probe, ProbeOptions
from agentprof.runs.recording import Observer
from agentprof.runs.replay import Replay, ReplayOptions
from agentprof.runs.store import read_run
from agentprof.serve.local import EngineOptions, LocalEngine, start_engine

A = EngineOptions(threads=1)
CONFIGURATIONS = {
    "itself": A,
    "kv-q8_0": EngineOptions(threads=1, kv_type="q8_0"),
    "no-prompt-cache": EngineOptions(threads=1, has_prompt_cache=False),
    "ngram-simple": EngineOptions(threads=1, speculation="ngram-simple"),
    "ngram-mod": EngineOptions(threads=1, speculation="ngram-mod"),
    "threads-2": EngineOptions(threads=2),
}


@dataclass(frozen=True)
class Plan:
    """What is run: the scenario, sessions for each configuration after a warm-up, and seconds for each probe."""

    scenario: Path
    repeat: int
    budget_s: float
    folder: Path


def backend(name: str, engine: LocalEngine, options: EngineOptions) -> Backend:
    labels = {key: str(value) for key, value in asdict(options).items() if value is not None}
    return Backend(name=name, base_url=engine.base_url, model=engine.model, labels=labels)


def replay(name: str, options: EngineOptions, plan: Plan, *, has_content: bool = False) -> list[SessionFrame]:
    """The scenario on a fresh engine; its sessions, the warm-up among them."""
    folder = plan.folder / f"run-{name}"
    with start_engine(options) as engine:
        how = ReplayOptions(repeat=plan.repeat, has_content=has_content, run_seed="predict")
        scenario = load_scenario(plan.scenario)
        asyncio.run(Replay([scenario], [backend(name, engine, options)], how, folder, Observer()).run())
    return session_frames(read_run(folder).spans)


def probe(name: str, options: EngineOptions, plan: Plan, recorded: Sequence[SessionFrame]) -> list[SessionFrame]:
    """A probe of a fresh engine that knows the recorded run: its longest prompt, and its text for drafts."""
    folder = plan.folder / f"probe-{name}"
    own_text = own_requests(plan.folder / "run-A", recorded) if options.speculation != "none" else []
    how = ProbeOptions(plan.budget_s, most_tokens=longest_prompt(recorded), own_text=own_text, seed=name)
    with start_engine(options) as engine:
        asyncio.run(Probe(backend(name, engine, options), how, folder, Observer()).run())
    return session_frames(read_run(folder).spans)


def check(name: str, options: EngineOptions, plan: Plan, recorded: Sequence[SessionFrame]) -> PredictionCheck:
    """Probe, predict, run, compare; prints all of it."""
    print(f"\n## {name}\n", flush=True)
    fit = read_probe(probe(name, options, plan, recorded))
    print(render_probe(fit, name) + "\n", flush=True)
    prediction = predict(recorded, fit)
    measured = replay(name, options, plan)
    found = compare_prediction(prediction, measured)
    print(render_check(prediction, found, Names("A", name)), flush=True)
    return found


def summary(checks: dict[str, PredictionCheck]) -> str:
    """One line for each configuration; the worst row is by share of measured model time."""
    rows = []
    for name, found in checks.items():
        model = found.model_time
        whole = model.measured or 1.0
        worst = max(found.rows[:10], key=lambda row: abs(row.off_by or 0.0))
        rows.append(
            (
                name,
                f"{model.predicted.value / 1e9:.2f}" if model.predicted else "–",
                f"{whole / 1e9:.2f}",
                f"{100 * (model.error or 0.0):+.1f} %",
                "yes" if model.is_inside else "no",
                f"{worst.name} {100 * (worst.off_by or 0.0) / whole:+.1f} %",
                "" if abs(model.error or 0.0) <= 0.1 else "miss",
            )
        )
    headers = ("A →", "predicted s", "measured s", "model time", "in interval", "worst row, of model time", "")
    return "\n".join(table(headers, rows, left=(0, 4, 5, 6), width=110))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", choices=list(CONFIGURATIONS), default=list(CONFIGURATIONS))
    parser.add_argument("--scenario", type=Path, default=Path(__file__).parents[1] / "scenarios/fix-failing-test.yaml")
    parser.add_argument("--repeat", type=int, default=3, help="sessions for each configuration, after a warm-up")
    parser.add_argument("--budget", type=float, default=100.0, help="seconds for each probe")
    parser.add_argument("--out", type=Path, default=None, help="keep the run folders here")
    given = parser.parse_args()
    folder = given.out or Path(tempfile.mkdtemp(prefix="agentprof-predict-"))
    plan = Plan(given.scenario, given.repeat, given.budget, folder)
    print(f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors")
    recorded = replay("A", A, plan, has_content=True)
    print(render_left_out(leave_one_out(recorded)))
    checks = {name: check(name, CONFIGURATIONS[name], plan, recorded) for name in given.pairs}
    print(f"\n## Summary\n\n{summary(checks)}\n\nload average after: {os.getloadavg()[0]:.2f}")
    if given.out is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
