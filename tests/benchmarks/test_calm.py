"""Waiting for a calm machine, with strains as they are told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
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
    """A machine whose strains, and whose other processes' seconds, are told."""

    def __init__(self, strains: list[float], patience_s: float, foreign_s: list[float]) -> None:
        super().__init__(3.0, patience_s)
        self.strains: Iterator[float] = iter(strains)
        self.foreign: Iterator[float] = iter(foreign_s)

    def strain(self) -> float:
        return next(self.strains)

    def foreign_s(self) -> float:
        return next(self.foreign, 0.0)


def measured(strains: list[float], patience_s: float = 600, foreign_s: Sequence[float] = ()) -> tuple[int, float]:
    """How often something was measured, and the strain that is told."""
    count = 0

    def measure() -> int:
        nonlocal count
        count += 1
        return count

    return Told(strains, patience_s, list(foreign_s)).around(measure)


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


def test_what_others_disturbed_is_measured_again(waited: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    assert measured([1.5] * 4, foreign_s=[100, 200, 200, 200]) == (2, 1.5)
    assert waited == []
    assert "of the cores meanwhile; measuring again" in capsys.readouterr().err
    assert measured([1.5] * 2, patience_s=0, foreign_s=[100, 200]) == (1, 1.5)


def test_time_of_descendants_is_this_process_s_own_and_that_of_others_is_not() -> None:
    spin = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    before = calm_module._own_ticks()
    subprocess.run(["sh", "-c", '"$0" -c "$1"; true', sys.executable, spin], check=True)
    assert calm_module._own_ticks() - before >= 0.45 * os.sysconf("SC_CLK_TCK")
    before_s = calm_module._foreign_s()
    orphan = '"$0" -c "$1" > /dev/null & exec 1>&-; sleep 0.1'
    subprocess.run(["setsid", "sh", "-c", orphan, sys.executable, spin], check=True)
    end = time.monotonic() + 30
    while calm_module._foreign_s() - before_s < 0.3 and time.monotonic() < end:
        time.sleep(0.1)
    assert calm_module._foreign_s() - before_s >= 0.3


def test_without_patience_it_is_measured_all_the_same_and_told(waited: list[float]) -> None:
    assert measured([4.0, 5.0], patience_s=0) == (1, 5.0)
    assert measured([4.0, 4.0, 5.0], patience_s=10) == (1, 5.0)
    assert len(waited) == 1


def test_work_after_a_pause_takes_about_as_long_or_longer() -> None:
    assert 0.5 < Calm(3.0, 0).strain() < 1000
