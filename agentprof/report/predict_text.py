"""A prediction as plain text, alone and beside what was measured afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from agentprof.analysis.ledger import MODEL_ROWS
from agentprof.analysis.predict import Estimate, Prediction
from agentprof.analysis.prediction_check import Checked, CheckedCall, LeftOut, PredictionCheck
from agentprof.report.layout import MISSING, bar, count, duration, hang, ms, percent, rate, table, wrap

_BAR_CELLS = 16
_MOST_CALLS = 30
_MISS = 0.1


@dataclass(frozen=True, slots=True)
class Names:
    """What stands in sentences: the run, the probed backend, and its benchmark's call tok/s, None without one."""

    run: str
    backend: str
    benchmark_tok_s: float | None = None


def render_prediction(prediction: Prediction, names: Names, width: int = 100) -> str:
    """The predicted ledger with intervals, in lines of at most `width`."""
    blocks = [
        wrap(_sentence(prediction, names), width),
        _ledger(prediction, width),
        wrap(
            "Intervals: 95 % for one more session of each scenario; how they are made and what they leave out stands "
            "in docs/predict.md.",
            width,
        ),
        _cautions(prediction.cautions, width),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def render_check(prediction: Prediction, check: PredictionCheck, names: Names, width: int = 100) -> str:
    """Predicted beside measured, row by row and step by step."""
    blocks = [
        wrap(_verdict(check, names), width),
        _checked_rows(check, width),
        _checked_scenarios(check, width),
        _checked_calls(check.calls, width),
        _cautions((*check.cautions, *prediction.cautions), width),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def render_left_out(parts: Sequence[LeftOut], width: int = 100) -> str:
    """How well the run's own calls follow the model, in a sentence; empty without parts."""
    if not parts:
        return ""
    typical = median(abs(part.error) for part in parts)
    worst = max(parts, key=lambda part: abs(part.error))
    text = (
        f"The model's form on the run itself: each of {len(parts)} parts predicted from the others, typically "
        f"{100 * typical:.1f} % off, at worst {_signed_percent(worst.error)} ({worst.name})."
    )
    return "\n".join(wrap(text, width))


def _sentence(prediction: Prediction, names: Names) -> str:
    scenarios = list(dict.fromkeys(session.scenario for session in prediction.sessions))
    what = scenarios[0] if len(scenarios) == 1 else f"{len(scenarios)} scenarios, on average"
    text = f"{what} on {names.backend} would take {_span(prediction.wall)}"
    text += f" for {count(prediction.output_tokens)} tokens"
    if prediction.agent_tok_s is not None:
        rates = prediction.agent_tok_s
        text += f": {rate(rates.value)} agent tok/s ({rate(rates.low)}–{rate(rates.high)})"
    if names.benchmark_tok_s is not None:
        text += f", where its benchmark gives {rate(names.benchmark_tok_s)}"
    model = _span(prediction.model_time)
    return f"{text}. Model time {model}; tools, the agent's work and pauses as in {names.run}."


def _span(estimate: Estimate) -> str:
    return f"{duration(estimate.value)} ({duration(estimate.low)} – {duration(estimate.high)})"


def _ledger(prediction: Prediction, width: int) -> list[str]:
    wall = prediction.wall.value
    lines = [f"  {'row':<18}{'ms':>12}{'interval, ms':>26}{'share':>9}"]
    for row, estimate in prediction.rows.items():
        if estimate is None:
            lines.append(f"  {row:<18}{MISSING:>12}  the probed backend doesn't measure it")
        elif estimate.value >= 500 or row == "unattributed":
            lead = _line(row, estimate, wall) + f"  {bar(estimate.value / wall, _BAR_CELLS):<{_BAR_CELLS}}  "
            lines += hang("" if row in MODEL_ROWS else "as in the run", width, lead)
    lines.append(_line("in all", prediction.wall, wall))
    lines.append(_line("of it model time", prediction.model_time, wall))
    return lines


def _line(name: str, estimate: Estimate, wall: float) -> str:
    interval = f"{ms(estimate.low)} – {ms(estimate.high)}"
    return f"  {name:<18}{ms(estimate.value):>12}{interval:>26}{percent(estimate.value, wall, 1):>9}"


def _verdict(check: PredictionCheck, names: Names) -> str:
    model = check.model_time
    if model.error is None or model.predicted is None:
        return f"{names.run} measured no model time."
    inside = "inside" if model.is_inside else "outside"
    text = (
        f"Model time on {names.backend}: predicted {duration(model.predicted.value)}, measured "
        f"{duration(model.measured or 0)}: {_off(model.error)}, {inside} the interval."
    )
    missed = [row.name for row in check.rows if _is_miss(row, check)]
    if missed:
        return f"{text} Off by more than 10 % of it: {', '.join(missed)}."
    return f"{text} No row is off by more than 10 % of it."


def _off(error: float) -> str:
    return f"{100 * abs(error):.1f} % too {'long' if error > 0 else 'short'}"


def _is_miss(row: Checked, check: PredictionCheck) -> bool:
    measured = check.model_time.measured
    is_model_row = row.name in MODEL_ROWS
    return bool(is_model_row and measured and row.off_by is not None and abs(row.off_by) > _MISS * measured)


def _checked_rows(check: PredictionCheck, width: int) -> list[str]:
    whole = check.model_time.measured
    rows = [row for row in check.rows if _is_shown(row)]
    cells = [_checked_cells(row, whole, check) for row in (*rows, check.model_time, check.wall)]
    rates = check.agent_tok_s
    if rates.predicted is not None and rates.measured is not None:
        interval = f"{rate(rates.predicted.low)} – {rate(rates.predicted.high)}"
        values = (rate(rates.predicted.value), interval, rate(rates.measured), _signed_percent(rates.error), "", "")
        cells.append(("agent tok/s", *values))
    headers = ("row", "predicted ms", "interval", "measured ms", "error", "of model time", "")
    return table(headers, cells, left=(0, 6), width=width)


def _is_shown(row: Checked) -> bool:
    return bool((row.predicted and row.predicted.value >= 500) or row.measured)


def _checked_cells(row: Checked, whole: float | None, check: PredictionCheck) -> tuple[str, ...]:
    interval = f"{ms(row.predicted.low)} – {ms(row.predicted.high)}" if row.predicted else MISSING
    share = MISSING if row.off_by is None or not whole else _signed_percent(row.off_by / whole)
    return (
        row.name,
        ms(row.predicted.value if row.predicted else None),
        interval,
        ms(row.measured),
        _signed_percent(row.error),
        share,
        "miss" if _is_miss(row, check) else "outside" if row.is_inside is False else "",
    )


def _checked_scenarios(check: PredictionCheck, width: int) -> list[str]:
    if len(check.scenarios) < 2:
        return []
    cells = [
        (
            scenario.name,
            ms(scenario.predicted.value if scenario.predicted else None),
            ms(scenario.measured),
            _signed_percent(scenario.error),
        )
        for scenario in check.scenarios
    ]
    return table(("model time of", "predicted ms", "measured ms", "error"), cells, left=(0,), width=width)


def _checked_calls(calls: Sequence[CheckedCall], width: int) -> list[str]:
    has_several = len({call.scenario for call in calls}) > 1
    cells = [
        (
            f"{call.scenario}, step {call.step}" if has_several else f"step {call.step}",
            count(call.uncached_tokens),
            count(call.measured_uncached_tokens),
            ms(call.predicted_ns),
            ms(call.measured_ns),
            _signed_percent(call.predicted_ns / call.measured_ns - 1 if call.measured_ns else None),
            "outside the probed range" if call.outside else "",
        )
        for call in calls[:_MOST_CALLS]
    ]
    headers = ("call", "new tokens", "measured", "predicted ms", "measured ms", "error", "")
    lines = table(headers, cells, left=(0, 6), width=width)
    return [*lines, f"  … and {len(calls) - _MOST_CALLS} more: see --json"] if len(calls) > _MOST_CALLS else lines


def _signed_percent(share: float | None) -> str:
    if share is None:
        return MISSING
    text = f"{100 * share:+.1f}"
    return f"{'0.0' if text in {'+0.0', '-0.0'} else text} %"


def _cautions(cautions: Sequence[str], width: int) -> list[str]:
    lines = [line for caution in cautions for line in wrap(caution, width, first="  * ", rest="    ")]
    return ["Cautions:", *lines] if lines else []
