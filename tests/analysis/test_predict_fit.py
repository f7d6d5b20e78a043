"""The fits below a prediction: non-negative, indifferent to size and repetition, hard to bend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentprof.analysis.fit import Fit, Sample, fit_constant, fit_terms, misfit, relative_noise, solve_non_negative

TERMS = ("once", "uncached", "pairs")
numbers = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))


def sample(new: float, ns: float, cached: float = 0.0, group: str | None = None) -> Sample:
    values = {"once": 1.0, "uncached": new, "pairs": new * (cached + new / 2)}
    return Sample(group or f"{new}+{cached}", values, ns)


def exact(new: float, cached: float = 0.0) -> float:
    return 5e6 + 2e5 * new + 30 * new * (cached + new / 2)


POINTS = [(16.0, 0.0), (16.0, 2000.0), (128.0, 500.0), (1000.0, 0.0), (4000.0, 0.0)]


def test_finds_what_made_the_samples() -> None:
    fit = fit_terms(TERMS, [sample(new, exact(new, cached), cached) for new, cached in POINTS])

    assert fit is not None
    assert fit.coefficients == pytest.approx({"once": 5e6, "uncached": 2e5, "pairs": 30})
    assert misfit(fit, [sample(new, exact(new, cached), cached) for new, cached in POINTS]) == pytest.approx(
        0, abs=1e-12
    )


def test_a_spike_hardly_bends_it() -> None:
    samples = [sample(new, exact(new, cached), cached) for new, cached in POINTS for _ in range(3)]
    samples[4] = sample(16.0, 10 * exact(16.0, 2000.0), 2000.0)
    fit = fit_terms(TERMS, samples)

    assert fit is not None
    assert fit.ns(sample(16.0, 0, 2000.0).values) == pytest.approx(exact(16.0, 2000.0), rel=0.02)


def test_a_long_prompt_weighs_no_more_than_a_short_one() -> None:
    """Two lengths that no line through the origin fits: the compromise is off by equal shares, not by equal times."""
    fit = fit_terms(("uncached",), [sample(10, 10e6), sample(10_000, 20e9)])

    assert fit is not None
    off = [fit.coefficients["uncached"] * new / ns - 1 for new, ns in ((10, 10e6), (10_000, 20e9))]
    assert off[0] > 0 > off[1]
    assert max(map(abs, off)) < 0.5 + 1e-6


def test_repeating_one_measurement_doesnt_give_it_more_weight() -> None:
    once = fit_terms(("once",), [sample(1, 1e6, group="a"), sample(1, 3e6, group="b")])
    often = fit_terms(("once",), [*[sample(1, 1e6, group="a")] * 9, sample(1, 3e6, group="b")])

    assert once is not None
    assert often is not None
    assert once.coefficients == pytest.approx(often.coefficients, rel=0.35)


def test_nothing_is_negative_and_what_cant_be_told_apart_stays_simple() -> None:
    falling = fit_terms(TERMS, [sample(10, 9e6), sample(100, 8e6), sample(1000, 7e6)])
    single = fit_terms(TERMS, [sample(100, 7e6)])

    assert falling is not None
    assert set(falling.coefficients) == {"once"}
    assert single is not None
    assert single.coefficients == pytest.approx({"once": 7e6})
    assert fit_terms(TERMS, []) is None
    assert fit_constant([], "once") is None


def test_a_constant_is_the_median() -> None:
    assert fit_constant([sample(1, 1e6), sample(1, 2e6), sample(1, 90e6)], "once") == Fit({"once": 2e6})


def test_noise_is_relative_and_within_groups() -> None:
    steady = [
        sample(1, 1e6, group="a"),
        sample(1, 1e6, group="a"),
        sample(9, 9e6, group="b"),
        sample(9, 9e6, group="b"),
    ]
    uneven = [sample(1, 0.9e6, group="a"), sample(1, 1.1e6, group="a"), sample(9, 9e6, group="b")]

    assert relative_noise(steady) == 0
    assert relative_noise(uneven) == pytest.approx(0.02**0.5)
    assert relative_noise(uneven[1:]) is None


@settings(max_examples=60)
@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=6), st.data())
def test_no_other_non_negative_solution_is_closer(rows: list[list[float]], data: st.DataObject) -> None:
    matrix = np.array(rows)
    values = np.array(data.draw(st.lists(numbers, min_size=len(rows), max_size=len(rows))))
    found = solve_non_negative(matrix, values)
    error = float(np.sum((matrix @ found - values) ** 2))

    assert np.all(found >= 0)
    rival = np.array(data.draw(st.lists(st.floats(0, 50), min_size=3, max_size=3)))
    assert error <= float(np.sum((matrix @ rival - values) ** 2)) + 1e-6 * (1 + float(values @ values))
