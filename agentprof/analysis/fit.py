"""Fitting times as sums of terms, none of which is negative: what a probe's calls say of a backend.

Each sample's residual counts in proportion to the typical time of its group, so that a prompt that takes twenty
seconds weighs no more than one that takes a tenth of a second. Residuals far beyond the typical one are weighted down
(Huber), since one interrupted call must not bend the fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_HUBER = 1.5
_MAD_TO_SIGMA = 1.4826
_LEAST_TIME_NS = 1_000.0  # below a microsecond nothing is told apart
_TIE = 1e-9

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time. `values`: the size of each term. `group`: samples that repeat the same measurement."""

    group: str
    values: Mapping[str, float]
    ns: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A sum of terms: nanoseconds for one unit of each. A term that is left out is 0."""

    coefficients: Mapping[str, float]

    def ns(self, values: Mapping[str, float]) -> float:
        """The time for these sizes, in nanoseconds."""
        return sum(coefficient * values[term] for term, coefficient in self.coefficients.items())


def fit_terms(terms: Sequence[str], samples: Sequence[Sample]) -> Fit | None:
    """The non-negative coefficients that come closest to the samples; None without samples.

    Of fits that are equally close the one with the fewest terms is taken, earlier terms first: what the samples can't
    tell apart goes to the term that stands first.
    """
    if not samples:
        return None
    matrix = np.array([[sample.values[term] for term in terms] for sample in samples], dtype=np.float64)
    times = np.array([sample.ns for sample in samples], dtype=np.float64)
    scales, shares = _scales(samples)
    weights = np.sqrt(shares) / scales
    found = solve_non_negative(matrix * weights[:, None], times * weights)
    for _ in range(_ROUNDS):
        residuals = np.abs(matrix @ found - times) / scales
        spread = _MAD_TO_SIGMA * float(np.median(residuals))
        if spread < _TIE:
            break
        trusted = np.minimum(1.0, _HUBER * spread / np.maximum(residuals, _TIE))
        weights = np.sqrt(shares * trusted) / scales
        found = solve_non_negative(matrix * weights[:, None], times * weights)
    return Fit({term: float(value) for term, value in zip(terms, found, strict=True) if value > 0})


def fit_constant(samples: Sequence[Sample], term: str) -> Fit | None:
    """The median time, for what doesn't depend on the call; None without samples."""
    return Fit({term: float(median(sample.ns for sample in samples))}) if samples else None


def solve_non_negative(matrix: Vector, values: Vector) -> Vector:
    """x ≥ 0 that minimises |matrix·x − values|, by trying every set of columns: exact, meant for a handful of them."""
    columns = matrix.shape[1]
    sizes = np.max(np.abs(matrix), axis=0, initial=0.0)
    scaled = matrix / np.where(sizes > 0, sizes, 1.0)
    best, best_error = np.zeros(columns), float(values @ values)
    tie = _TIE * best_error
    for count in range(1, columns + 1):
        for chosen in combinations([column for column in range(columns) if sizes[column] > 0], count):
            part = scaled[:, chosen]
            found, _, rank, _ = np.linalg.lstsq(part, values, rcond=None)
            if rank < count or np.any(found < 0):
                continue
            error = float(np.sum((part @ found - values) ** 2))
            if error < best_error - tie:
                best_error = error
                best = np.zeros(columns)
                best[list(chosen)] = found / sizes[list(chosen)]
    return best


def misfit(fit: Fit, samples: Sequence[Sample]) -> float:
    """How far a fit is from its samples: mean over groups of the squared residuals over the group's typical time."""
    scales, shares = _scales(samples)
    residuals = np.array([fit.ns(sample.values) - sample.ns for sample in samples], dtype=np.float64) / scales
    return float(np.sum(shares * residuals**2) / np.sum(shares))


def relative_noise(samples: Sequence[Sample]) -> float | None:
    """How much repeated measurements differ: pooled standard deviation over the group's mean; None without repeats."""
    squares, freedom = 0.0, 0
    for group in _grouped(samples).values():
        mean = sum(group) / len(group)
        if len(group) > 1 and mean > _LEAST_TIME_NS:
            squares += sum((ns / mean - 1) ** 2 for ns in group)
            freedom += len(group) - 1
    return (squares / freedom) ** 0.5 if freedom else None


def _scales(samples: Sequence[Sample]) -> tuple[Vector, Vector]:
    """The typical time of each sample's group, and its share: a group counts once however often it was repeated."""
    groups = _grouped(samples)
    typical = {name: max(float(median(group)), _LEAST_TIME_NS) for name, group in groups.items()}
    scales = np.array([typical[sample.group] for sample in samples], dtype=np.float64)
    shares = np.array([1.0 / len(groups[sample.group]) for sample in samples], dtype=np.float64)
    return scales, shares


def _grouped(samples: Sequence[Sample]) -> dict[str, list[float]]:
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for sample in samples:
        groups[sample.group].append(sample.ns)
    return dict(groups)
