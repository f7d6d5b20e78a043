"""A prediction beside what was measured afterwards, and the form itself tested on a run by leaving parts out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from agentprof.analysis.calls import BUFFERED, CallFrame
from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.ledger import LEDGER_ROWS
from agentprof.analysis.points import CallPoint, call_points, is_counted
from agentprof.analysis.predict import CallPrediction, Estimate, Prediction, predict_sessions, scenario_mean
from agentprof.analysis.probe import fit_points
from agentprof.analysis.workload import Workload, read_workload
from agentprof.errors import InputError

_SAME_TOKENS = 0.02


@dataclass(frozen=True, slots=True)
class Checked:
    """A predicted number beside the measured one; `measured` None = not measured. Times in nanoseconds."""

    name: str
    predicted: Estimate | None
    measured: float | None

    @property
    def off_by(self) -> float | None:
        """Predicted less measured; a side that isn't measured counts as 0 where the other is."""
        if self.predicted is None and self.measured is None:
            return None
        return (self.predicted.value if self.predicted else 0.0) - (self.measured or 0.0)

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1; None where there is nothing to divide by."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted.value / self.measured - 1

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured number lies in the interval."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted.low <= self.measured <= self.predicted.high


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """One step of a scenario, mean over its sessions: predicted and measured nanoseconds, and uncached tokens."""

    scenario: str
    step: int | None
    predicted_ns: float
    measured_ns: float
    uncached_tokens: float | None
    measured_uncached_tokens: float | None
    outside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PredictionCheck:
    """A prediction beside a run on the backend it was made for.

    rows: the ledger's. scenarios: model time of each. `cautions`: in what the measured run did other work.
    """

    rows: tuple[Checked, ...]
    model_time: Checked
    wall: Checked
    agent_tok_s: Checked
    scenarios: tuple[Checked, ...]
    calls: tuple[CheckedCall, ...]
    cautions: tuple[str, ...]


def compare_prediction(prediction: Prediction, sessions: Sequence[SessionFrame]) -> PredictionCheck:
    """Predicted beside measured: the mean over scenarios of the mean over their sessions.

    Warm-ups and incomplete sessions are left out. Raises InputError where the scenarios aren't the same: `in_common`
    gives those that both have.
    """
    measured = [session for session in sessions if is_counted(session)]
    names = {session.scenario for session in prediction.sessions}
    if names != {session.scenario for session in measured}:
        raise InputError("the predicted and the measured run have different scenarios; compare those that both have.")

    def checked(name: str, predicted: Estimate | None, value: Callable[[SessionFrame], float | None]) -> Checked:
        return Checked(name, predicted, _mean(measured, value))

    tokens = _mean(measured, lambda session: session.output_tokens)
    wall = checked("wall", prediction.wall, lambda session: session.wall_ns)
    rate = tokens * 1e9 / wall.measured if tokens and wall.measured else None
    return PredictionCheck(
        rows=tuple(
            checked(row, prediction.rows[row], lambda session, row=row: session.ledger.rows[row])  # type: ignore[misc]
            for row in LEDGER_ROWS
        ),
        model_time=checked("model time", prediction.model_time, lambda session: session.ledger.model_time_ns),
        wall=wall,
        agent_tok_s=Checked("agent", prediction.agent_tok_s, rate),
        scenarios=tuple(_scenarios(prediction, measured)),
        calls=tuple(_calls(prediction, measured)),
        cautions=tuple(_cautions(prediction, measured, tokens)),
    )


def in_common(sessions: Sequence[SessionFrame], measured: Sequence[SessionFrame]) -> list[list[SessionFrame]]:
    """The sessions of both runs whose scenarios have completed sessions in both.

    Raises InputError where they have none in common.
    """
    names = [{session.scenario for session in run if is_counted(session)} for run in (sessions, measured)]
    both = names[0] & names[1]
    if not both:
        raise InputError(
            f"the runs have no scenario with completed sessions in common: {_listed(names[0])} here, "
            f"{_listed(names[1])} there."
        )
    return [[session for session in run if session.scenario in both] for run in (sessions, measured)]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a run, predicted from the rest of it: mean model time of its calls in nanoseconds."""

    name: str
    predicted_ns: float
    measured_ns: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_ns / self.measured_ns - 1 if self.measured_ns else 0.0


def leave_one_out(sessions: Sequence[SessionFrame]) -> list[LeftOut]:
    """How well a run's own calls follow the model: each scenario predicted from the calls of the others.

    With one scenario, each of its steps from the other steps. Empty where there is nothing to leave out.
    """
    work = read_workload(sessions)
    points = [
        point for point in call_points(sessions) if point.prompt_tokens is not None and point.output_tokens is not None
    ]
    scenario_of = {call.point.call.ref: session.frame.scenario for session in work.sessions for call in session.calls}
    has_several = len(set(scenario_of.values())) > 1

    def part_of(point: CallPoint) -> str:
        return scenario_of[point.call.ref] if has_several else point.group

    parts = list(dict.fromkeys(map(part_of, points)))
    return [_left_out(name, points, part_of, work) for name in parts] if len(parts) > 1 else []


def _left_out(name: str, points: Sequence[CallPoint], part_of: Callable[[CallPoint], str], work: Workload) -> LeftOut:
    fit = fit_points([point for point in points if part_of(point) != name], is_whole=False)
    left = {point.call.ref for point in points if part_of(point) == name}
    calls = [
        (predicted, worked)
        for session, whole in zip(predict_sessions(work, fit), work.sessions, strict=True)
        for predicted, worked in zip(session.calls, whole.calls, strict=True)
        if worked.point.call.ref in left
    ]
    return LeftOut(
        name,
        mean(predicted.ns for predicted, _ in calls),
        mean(sum(ns or 0 for ns in worked.point.rows.values()) for _, worked in calls),
    )


def _mean(sessions: Sequence[SessionFrame], value: Callable[[SessionFrame], float | None]) -> float | None:
    """Mean over scenarios of the mean over their sessions; what isn't measured counts as 0 unless nothing is."""
    by_scenario: defaultdict[str, list[float | None]] = defaultdict(list)
    for session in sessions:
        by_scenario[session.scenario].append(value(session))
    if all(each is None for values in by_scenario.values() for each in values):
        return None
    return mean(mean(each or 0 for each in values) for values in by_scenario.values())


def _scenarios(prediction: Prediction, measured: Sequence[SessionFrame]) -> Iterator[Checked]:
    """Model time of each scenario; the interval is that of the whole prediction, in proportion."""
    whole = prediction.model_time
    for name in dict.fromkeys(session.scenario for session in prediction.sessions):
        ns = scenario_mean(
            [session for session in prediction.sessions if session.scenario == name],
            lambda session: session.model_time_ns,
        )
        share = ns / whole.value if whole.value else 0.0
        estimate = Estimate(ns, whole.low * share, whole.high * share)
        here = [session for session in measured if session.scenario == name]
        yield Checked(name, estimate, _mean(here, lambda session: session.ledger.model_time_ns))


def _calls(prediction: Prediction, measured: Sequence[SessionFrame]) -> Iterator[CheckedCall]:
    """Steps that both have, in order of the prediction's."""
    found: defaultdict[tuple[str, int | None], list[CallFrame]] = defaultdict(list)
    for session in measured:
        for call in session.finished_calls:
            found[session.scenario, call.step].append(call)
    planned: defaultdict[tuple[str, int | None], list[CallPrediction]] = defaultdict(list)
    for predicted in prediction.calls:
        planned[predicted.scenario, predicted.step].append(predicted)
    for (scenario, step), predictions in planned.items():
        calls = found.get((scenario, step))
        if not calls:
            continue
        sizes = [each.size.uncached_tokens for each in predictions if each.size is not None]
        new = [
            call.prompt_tokens - call.cached_tokens
            for call in calls
            if call.prompt_tokens is not None and call.cached_tokens is not None
        ]
        yield CheckedCall(
            scenario,
            step,
            mean(each.ns for each in predictions),
            mean(call.wall_ns - (call.retry_ns or 0) for call in calls),
            mean(sizes) if sizes else None,
            mean(new) if new else None,
            predictions[0].outside,
        )


def _cautions(prediction: Prediction, measured: Sequence[SessionFrame], tokens: float | None) -> Iterator[str]:
    if tokens and abs(tokens / prediction.output_tokens - 1) > _SAME_TOKENS:
        yield (
            f"The measured run wrote {tokens:,.0f} output tokens a session, {prediction.output_tokens:,.0f} were "
            f"predicted for: length is a factor of its own, --output-factor {tokens / prediction.output_tokens:.2f}."
        )
    if any(call.error for session in measured for call in session.calls):
        yield "Calls of the measured run failed; the time is in its retry row, and no prediction has one."
    if any(BUFFERED in call.flags for session in measured for call in session.finished_calls) and (
        not prediction.probe.is_unsplit
    ):
        yield "Some streams of the measured run arrived buffered: their rows are in generation, the probe's weren't."


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
