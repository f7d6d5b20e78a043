"""Probes and predictions as JSON values: contracts, documented in docs/predict.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agentprof.analysis.predict import CallPrediction, Estimate, Prediction
from agentprof.analysis.prediction_check import Checked, LeftOut, PredictionCheck
from agentprof.analysis.probe import ProbeFit

FORMAT = 1


def probe_json(probe: ProbeFit) -> dict[str, Any]:
    """A probe's fits: nanoseconds for one unit of each term, by ledger row."""
    return {
        "fits_ns": {row: dict(fit.coefficients) for row, fit in probe.fits.items()},
        "ttft_ns": {} if probe.is_unsplit else dict(probe.ttft.coefficients),
        "unsplit": probe.is_unsplit,
        "has_cache": probe.has_cache,
        "block_tokens": probe.block_tokens,
        "drafting": asdict(probe.drafting) if probe.drafting else None,
        "first_read_tokens": probe.first_read_tokens,
        "ranges": asdict(probe.ranges),
        "noise": dict(probe.noise),
        "requests": probe.calls,
        "groups": probe.groups,
    }


def prediction_json(
    prediction: Prediction, check: PredictionCheck | None = None, left_out: Sequence[LeftOut] = ()
) -> dict[str, Any]:
    """A prediction, and beside it what was measured where that is known; times in nanoseconds."""
    return {
        "format": FORMAT,
        "model_time_ns": asdict(prediction.model_time),
        "wall_ns": asdict(prediction.wall),
        "agent_tok_s": _estimate(prediction.agent_tok_s),
        "output_tokens": prediction.output_tokens,
        "ledger": {row: _estimate(estimate) for row, estimate in prediction.rows.items()},
        "drafting": asdict(prediction.drafting) if prediction.drafting else None,
        "cautions": list(prediction.cautions),
        "calls": [_call(call) for call in prediction.calls],
        "probe": probe_json(prediction.probe),
        "leave_one_out": [asdict(part) | {"error": part.error} for part in left_out],
        "measured": None if check is None else _check(check),
    }


def _estimate(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else asdict(estimate)


def _call(call: CallPrediction) -> dict[str, Any]:
    return {
        "session": call.session,
        "scenario": call.scenario,
        "step": call.step,
        "size": asdict(call.size) if call.size else None,
        "rows_ns": dict(call.rows),
        "share": call.share,
        "outside": list(call.outside),
    }


def _check(check: PredictionCheck) -> dict[str, Any]:
    return {
        "model_time_ns": _checked(check.model_time),
        "wall_ns": _checked(check.wall),
        "agent_tok_s": _checked(check.agent_tok_s),
        "ledger": {row.name: _checked(row) for row in check.rows},
        "scenarios": {scenario.name: _checked(scenario) for scenario in check.scenarios},
        "calls": [asdict(call) | {"outside": list(call.outside)} for call in check.calls],
        "cautions": list(check.cautions),
    }


def _checked(checked: Checked) -> dict[str, Any]:
    return {"measured": checked.measured, "error": checked.error, "inside": checked.is_inside}
