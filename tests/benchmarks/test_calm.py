"""Waiting for memory that answers, with latencies as they are told."""

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
    """Memory whose latencies are told."""

    def __init__(self, latencies: list[int], patience_s: float) -> None:
        super().__init__(200, patience_s)
        self.latencies: Iterator[int] = iter(latencies)

    def latency_ns(self) -> int:
        return next(self.latencies)


def measured(latencies: list[int], patience_s: float = 600) -> tuple[int, int]:
    """How often something was measured, and the latency that is told."""
    count = 0

    def measure() -> int:
        nonlocal count
        count += 1
        return count

    return Told(latencies, patience_s).around(measure)


def test_in_calm_it_is_measured_once(waited: list[float]) -> None:
    assert measured([90, 120]) == (1, 120)
    assert waited == []


def test_it_waits_for_calm_before(waited: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    assert measured([400, 300, 110, 100]) == (1, 110)
    assert len(waited) == 2
    assert "takes 400 ns; waiting for 200, 10 min at most" in capsys.readouterr().err


def test_what_ended_in_a_slow_minute_is_measured_again(waited: list[float]) -> None:
    assert measured([90, 300, 250, 100, 150]) == (2, 150)
    assert len(waited) == 1


def test_without_patience_it_is_measured_all_the_same_and_told(waited: list[float]) -> None:
    assert measured([400, 500], patience_s=0) == (1, 500)
    assert measured([400, 400, 500], patience_s=10) == (1, 500)
    assert len(waited) == 1


def test_a_walk_takes_time() -> None:
    assert 1 <= Calm(200, 0).latency_ns() < 100_000
