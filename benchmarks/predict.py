"""Predict real engine configurations from a run on another one and a probe, then run them and see.

    python benchmarks/predict.py                     # all of them, about 30 minutes
    python benchmarks/predict.py --pairs kv-q8_0 threads-2 --out /tmp/predict

One run recorded on configuration A (one thread, KV f16) is the workload. Each configuration is probed, predicted from
the probe, then really run. A is among them: it must predict itself. Misses are printed like everything.

A machine that other programs share is faster in one minute than in the next, which is no fault of a prediction. So each
configuration is probed again after its run, and the table shows three predictions: from the probe before (what a user
has), and from both probes together, which a steady drift doesn't touch; how far the probe after differs from the one
before tells how steady the machine was.
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
from agentprof.analysis.ledger import MODEL_ROWS
from agentprof.analysis.predict import predict
from agentprof.analysis.prediction_check import PredictionCheck, compare_prediction, leave_one_out
from agentprof.analysis.probe import read_probe
from agentprof.records.backend import Backend
from agentprof.records.loading import load_scenario
from agentprof.report.layout import table
from agentprof.report.predict_text import Names, render_check, render_left_out
from agentprof.report.probe_text import render_probe
from agentprof.runs.own_text import longest_prompt, own_requests, usual_suffixes
from agentprof.runs.probe import Probe, ProbeOptions
from agentprof.runs.recording import Observer
from agentprof.runs.replay import Replay, ReplayOptions
from agentprof.runs.store import read_run
from agentprof.serve.local import EngineOptions, LocalEngine, start_engine

LIMIT = 0.1  # of measured model time
A = EngineOptions(threads=1)
CONFIGURATIONS = {
    "itself": A,
    "kv-q8_0": EngineOptions(threads=1, kv_type="q8_0"),
    "no-prompt-cache": EngineOptions(threads=1, has_prompt_cache=False),
    "ngram-simple": EngineOptions(threads=1, speculation="ngram-simple"),
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


def replay(
    name: str, engine: LocalEngine, options: EngineOptions, plan: Plan, *, has_content: bool = False
) -> list[SessionFrame]:
    """The scenario's sessions, a warm-up among them."""
    folder = plan.folder / f"run-{name}"
    # Prompts that the probe sent again, nonce and all, mustn't be found in the cache.
    how = ReplayOptions(repeat=plan.repeat, has_content=has_content, run_seed=f"predict {name}")
    scenario = load_scenario(plan.scenario)
    asyncio.run(Replay([scenario], [backend(name, engine, options)], how, folder, Observer()).run())
    return session_frames(read_run(folder).spans)


def probe(
    name: str, engine: LocalEngine, options: EngineOptions, plan: Plan, recorded: Sequence[SessionFrame]
) -> list[SessionFrame]:
    """A probe that knows the recorded run: how long its prompts are, and its text where drafts are made."""
    folder = plan.folder / f"probe-{name}"
    own_text = own_requests(plan.folder / "run-A", recorded) if options.speculation != "none" else []
    how = ProbeOptions(
        plan.budget_s,
        most_tokens=longest_prompt(recorded),
        suffixes=usual_suffixes(recorded),
        own_text=own_text,
        seed=name,
    )
    asyncio.run(Probe(backend(name, engine, options), how, folder, Observer()).run())
    return session_frames(read_run(folder).spans)


@dataclass(frozen=True)
class Found:
    """One configuration: predicted from the probe before its run, and from both, beside the run."""

    before: PredictionCheck
    both: PredictionCheck
    drift: float


def check(name: str, options: EngineOptions, plan: Plan, recorded: Sequence[SessionFrame]) -> Found:
    """Probe, run, probe again, predict, compare; prints all of it."""
    print(f"\n## {name}\n", flush=True)
    with start_engine(options) as engine:
        before = probe(f"{name}-before", engine, options, plan, recorded)
        measured = replay(name, engine, options, plan)
        after = probe(f"{name}-after", engine, options, plan, recorded)
    predictions = [predict(recorded, read_probe(points)) for points in (before, [*before, *after], after)]
    print(render_probe(predictions[1].probe, name) + "\n")
    checks = [compare_prediction(prediction, measured) for prediction in predictions]
    print(render_check(predictions[1], checks[1], Names("A", name)), flush=True)
    drift = predictions[2].model_time.value / predictions[0].model_time.value - 1
    return Found(checks[0], checks[1], drift)


def summary(found: dict[str, Found]) -> str:
    """One line for each configuration; the worst row is by share of measured model time."""
    rows = []
    for name, each in found.items():
        model = each.both.model_time
        whole = model.measured or 1.0
        worst = max(each.both.rows[: len(MODEL_ROWS)], key=lambda row: abs(row.off_by or 0.0))
        is_miss = abs(model.error or 0.0) > LIMIT or abs(worst.off_by or 0.0) > LIMIT * whole
        rows.append(
            (
                name,
                f"{whole / 1e9:.2f}",
                f"{model.predicted.value / 1e9:.2f}" if model.predicted else "–",
                percent(model.error),
                "yes" if model.is_inside else "no",
                f"{worst.name} {percent((worst.off_by or 0.0) / whole)}",
                percent(each.before.model_time.error),
                percent(each.drift),
                "miss" if is_miss else "",
            )
        )
    headers = ("A →", "measured s", "predicted s", "error", "inside", "worst row", "from before", "probes differ", "")
    return "\n".join(table(headers, rows, left=(0, 4, 5, 8), width=120))


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", choices=list(CONFIGURATIONS), default=list(CONFIGURATIONS))
    parser.add_argument("--scenario", type=Path, default=Path(__file__).parents[1] / "scenarios/fix-failing-test.yaml")
    parser.add_argument("--repeat", type=int, default=2, help="sessions for each configuration, after a warm-up")
    parser.add_argument("--budget", type=float, default=100.0, help="seconds for each probe")
    parser.add_argument("--out", type=Path, default=None, help="keep the run folders here")
    given = parser.parse_args()
    folder = given.out or Path(tempfile.mkdtemp(prefix="agentprof-predict-"))
    plan = Plan(given.scenario, given.repeat, given.budget, folder)
    print(f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors")
    with start_engine(A) as engine:
        recorded = replay("A", engine, A, plan, has_content=True)
    print(render_left_out(leave_one_out(recorded)))
    found = {name: check(name, CONFIGURATIONS[name], plan, recorded) for name in given.pairs}
    print(f"\n## Summary\n\n{summary(found)}\n\nload average after: {os.getloadavg()[0]:.2f}")
    if given.out is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
