"""Waiting for a calm machine, with strains as they are told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import calm as calm_module
from calm import Calm


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(calm_module.time, "sleep", pauses.append)
    return pauses


class Told(Calm):
    """A machine whose strains are told."""

    def __init__(self, strains: list[float], patience_s: float) -> None:
        super().__init__(3.0, patience_s)
        self.strains: Iterator[float] = iter(strains)

    def strain(self) -> float:
        return next(self.strains)


def measured(strains: list[float], patience_s: float = 600) -> tuple[int, float]:
    """How often something was measured, and the strain that is told."""
    count = 0

    def measure() -> int:
        nonlocal count
        count += 1
        return count

    return Told(strains, patience_s).around(measure)


def test_in_calm_it_is_measured_once(waited: list[float]) -> None:
    assert measured([1.2, 2.0]) == (1, 2.0)
    assert waited == []


def test_it_waits_for_calm_before(waited: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    assert measured([4.0, 3.1, 2.5, 1.5]) == (1, 2.5)
    assert len(waited) == 2
    assert "takes 4.0 times as long as in a loop; waiting for 3, 10 min at most" in capsys.readouterr().err


def test_what_ended_in_strain_is_measured_again(waited: list[float]) -> None:
    assert measured([1.5, 5.0, 4.0, 1.5, 2.0]) == (2, 2.0)
    assert len(waited) == 1


def test_without_patience_it_is_measured_all_the_same_and_told(waited: list[float]) -> None:
    assert measured([4.0, 5.0], patience_s=0) == (1, 5.0)
    assert measured([4.0, 4.0, 5.0], patience_s=10) == (1, 5.0)
    assert len(waited) == 1


def test_work_after_a_pause_takes_about_as_long_or_longer() -> None:
    assert 0.5 < Calm(3.0, 0).strain() < 1000
