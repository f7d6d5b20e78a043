"""What a run's workload would take on a backend that only a probe has seen (docs/predict.md).

Each call of the run keeps its tokens; its model time is what the probe's fits give for them. Tools, the loop and
pauses keep the time that they took in the run. Intervals are 95 % for one more session of each scenario. They hold how
the prediction moves when each of the probe's requests is left out (misfit, and noise of the fit), how much repeated
requests differed, and how much the kept rows differed between the run's sessions. They can't hold that the machine is
busier on another day.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, variance

from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.ledger import LEDGER_ROWS, MODEL_ROWS
from agentprof.analysis.points import CallSize
from agentprof.analysis.probe import Drafting, ProbeFit
from agentprof.analysis.workload import (
    KEPT_ROWS,
    WorkCall,
    Workload,
    WorkSession,
    drafting_on,
    read_workload,
    size_on,
    workload_cautions,
)

_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t for a two-sided 95 % interval, by degrees of freedom from 1."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CallPrediction:
    """One call of the run as it would be on the new backend.

    rows: nanoseconds by ledger row, the call taken alone. share: how much of it lies on the session's critical path.
    size: None where the run doesn't tell its prompt or output tokens; its rows are then those of the run. outside: in
    what it exceeds the probed range.
    """

    session: str
    scenario: str
    step: int | None
    size: CallSize | None
    rows: Mapping[str, float]
    share: float
    outside: tuple[str, ...]

    @property
    def ns(self) -> float:
        """The whole call."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class SessionPrediction:
    """One session: `rows` on its critical path, the kept ones included; they add up to its wall time."""

    session: str
    scenario: str
    rows: Mapping[str, float]
    output_tokens: float
    calls: tuple[CallPrediction, ...]

    @property
    def wall_ns(self) -> float:
        """Session wall time."""
        return sum(self.rows.values())

    @property
    def model_time_ns(self) -> float:
        """The rows of the model time together."""
        return sum(self.rows[row] for row in MODEL_ROWS)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A run's workload on a probed backend: means over scenarios of the mean over their sessions, in nanoseconds.

    rows: None where the probe's backend doesn't measure the row.
    """

    probe: ProbeFit
    sessions: tuple[SessionPrediction, ...]
    rows: Mapping[str, Estimate | None]
    model_time: Estimate
    wall: Estimate
    output_tokens: float
    agent_tok_s: Estimate | None
    drafting: Drafting | None
    cautions: tuple[str, ...]

    @property
    def calls(self) -> tuple[CallPrediction, ...]:
        """Of all sessions."""
        return tuple(call for session in self.sessions for call in session.calls)


def predict(sessions: Sequence[SessionFrame], probe: ProbeFit, *, output_factor: float = 1.0) -> Prediction:
    """Predict a run's completed sessions, warm-ups left out, on the backend that a probe was made of.

    output_factor: output tokens that the new backend writes for each of the run's. Raises InputError where no session
    can be used.
    """
    work = read_workload(sessions)
    predicted = predict_sessions(work, probe, output_factor)
    without = [predict_sessions(work, other, output_factor) for other in probe.without]

    def estimate(rows: Sequence[str]) -> Estimate:
        values = [scenario_mean(each, lambda session: _sum(session.rows, rows)) for each in (predicted, *without)]
        return _estimate(values[0], _variance(values, predicted, work, probe, rows), len(without))

    wall = estimate(LEDGER_ROWS)
    tokens = scenario_mean(predicted, lambda session: session.output_tokens)
    return Prediction(
        probe=probe,
        sessions=predicted,
        rows={row: estimate((row,)) if _is_measured(row, work, probe) else None for row in LEDGER_ROWS},
        model_time=estimate(MODEL_ROWS),
        wall=wall,
        output_tokens=tokens,
        agent_tok_s=_rate(tokens, wall),
        drafting=drafting_on(work, probe),
        cautions=(*_outside_cautions(predicted), *workload_cautions(work, probe), *_probe_cautions(work, probe)),
    )


def predict_sessions(work: Workload, probe: ProbeFit, output_factor: float = 1.0) -> tuple[SessionPrediction, ...]:
    """The sessions of a workload on a probed backend, without intervals."""
    return tuple(_session(session, work, probe, output_factor) for session in work.sessions)


def scenario_mean(sessions: Sequence[SessionPrediction], value: Callable[[SessionPrediction], float]) -> float:
    """The mean over scenarios of the mean over their sessions."""
    by_scenario: defaultdict[str, list[float]] = defaultdict(list)
    for session in sessions:
        by_scenario[session.scenario].append(value(session))
    return mean(mean(values) for values in by_scenario.values())


def _session(session: WorkSession, work: Workload, probe: ProbeFit, output_factor: float) -> SessionPrediction:
    calls = tuple(_call(session, call, work, probe, output_factor) for call in session.calls)
    rows = {row: sum(call.share * call.rows.get(row, 0.0) for call in calls) for row in MODEL_ROWS}
    rows |= {row: float(session.kept_ns(row)) for row in KEPT_ROWS}
    tokens = sum((call.point.output_tokens or 0) * output_factor for call in session.calls)
    return SessionPrediction(session.frame.session, session.frame.scenario, rows, tokens, calls)


def _call(
    session: WorkSession, call: WorkCall, work: Workload, probe: ProbeFit, output_factor: float
) -> CallPrediction:
    size = size_on(call, work, probe, output_factor)
    frame, step = session.frame, call.point.call.step
    if size is None:
        rows = {row: float(ns) for row, ns in call.point.rows.items() if ns}
        return CallPrediction(frame.session, frame.scenario, step, None, rows, call.share, ())
    outside = probe.ranges.outside(size)
    return CallPrediction(frame.session, frame.scenario, step, size, probe.rows_ns(size), call.share, outside)


def _is_measured(row: str, work: Workload, probe: ProbeFit) -> bool:
    """Whether a row has a number; no retries are predicted, which is one, and unsplit calls are rows of their own."""
    if row in KEPT_ROWS:
        return any(session.frame.ledger.rows[row] is not None for session in work.sessions)
    return row in probe.fits or row in {"retry", "generation"}


def _sum(rows: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(rows[name] for name in names)


def _variance(
    values: Sequence[float],
    predicted: Sequence[SessionPrediction],
    work: Workload,
    probe: ProbeFit,
    rows: Sequence[str],
) -> float:
    """Of the fit (the first value is the whole fit's, the others those with a group left out), calls, and kept rows."""
    whole, *without = values
    count = len(without)
    of_fit = (count - 1) / count * sum((value - whole) ** 2 for value in without) if count else 0.0
    scenarios = len({session.scenario for session in predicted})
    of_calls = scenario_mean(predicted, lambda session: _call_variance(session, probe, rows)) / scenarios
    return of_fit + of_calls + _kept_variance(work, rows)


def _call_variance(session: SessionPrediction, probe: ProbeFit, rows: Sequence[str]) -> float:
    """Calls differ independently, by what repeated requests of the probe differed."""
    return sum(
        (call.share * ns * probe.noise.get(row, 0.0)) ** 2
        for call in session.calls
        for row, ns in call.rows.items()
        if row in rows and call.size is not None
    )


def _kept_variance(work: Workload, rows: Sequence[str]) -> float:
    """Of the kept rows of one more session of each scenario; 0 where the run has one session of each."""
    kept = [row for row in rows if row in KEPT_ROWS]
    by_scenario: defaultdict[str, list[float]] = defaultdict(list)
    for session in work.sessions:
        by_scenario[session.frame.scenario].append(sum(session.kept_ns(row) for row in kept))
    several = [values for values in by_scenario.values() if len(values) > 1]
    return sum(variance(values) * (1 + 1 / len(values)) for values in several) / len(by_scenario) ** 2


def _estimate(value: float, spread: float, groups: int) -> Estimate:
    """Value and interval: h = t·sd/value, from value/(1 + h) to value·(1 + h), since times err by factors."""
    freedom = max(1, groups - 1)
    factor = _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.7 / freedom
    share = factor * spread**0.5 / value if value > 0 else 0.0
    return Estimate(value, value / (1 + share), value * (1 + share))


def _rate(tokens: float, wall: Estimate) -> Estimate | None:
    """Agent tokens per second: the longest wall time gives the lowest."""
    if not tokens or wall.low <= 0:
        return None
    return Estimate(tokens * 1e9 / wall.value, tokens * 1e9 / wall.high, tokens * 1e9 / wall.low)


def _outside_cautions(sessions: Sequence[SessionPrediction]) -> Iterator[str]:
    calls = [call for session in sessions for call in session.calls]
    outside = [call for call in calls if call.outside]
    if not outside:
        return
    first = outside[0]
    where = f"{first.scenario}, step {first.step}: {first.outside[0]}"
    yield (
        f"{len(outside)} of {len(calls)} calls lie outside the probed range ({where}): probe with --run, or with a "
        "larger --budget."
    )


def _probe_cautions(work: Workload, probe: ProbeFit) -> Iterator[str]:
    models = frozenset(call.point.call.model for call in work.calls if call.point.call.model)
    if models and probe.models and models != probe.models:
        yield (
            f"The run asked for {', '.join(sorted(models))}, the probe for {', '.join(sorted(probe.models))}: if these "
            "are different models, the same text has other token counts and replies other lengths (--output-factor)."
        )
    if len(probe.without) < 4:
        yield f"The probe made only {probe.groups} different requests: the interval rests on little."
    if not probe.tells_prompt:
        yield "The probed server tells no prompt tokens: the probe took one token for each word that it sent."
    if not probe.noise:
        yield "No request of the probe was repeated, so the interval holds no noise: give it a larger --budget."
    if len(work.sessions) == len({session.frame.scenario for session in work.sessions}):
        yield "The run has one session of each scenario: the interval takes tools and pauses as certain."
