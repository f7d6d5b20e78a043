"""Bars, tables and numbers as they are printed."""

from __future__ import annotations

import pytest

from agentprof.report.layout import bar, count, duration, ms, percent, rate, shorten, table, wrap


@pytest.mark.parametrize(
    ("share", "drawn"),
    [
        (0, ""),
        (1e-9, "▏"),
        (0.5, "████"),
        (0.5 + 1 / 64, "████▏"),
        (1 - 1 / 64, "███████▉"),
        (1, "████████"),
        (7, "████████"),
    ],
)
def test_bars_count_in_eighths(share: float, drawn: str) -> None:
    assert bar(share, 8) == drawn


@pytest.mark.parametrize(
    ("ns", "text"), [(None, "–"), (0, "0.0"), (1, "<0.1"), (50_000, "0.1"), (1_234_567_890, "1,234.6")]
)
def test_milliseconds_never_show_something_as_nothing(ns: float | None, text: str) -> None:
    assert ms(ns) == text


@pytest.mark.parametrize(
    ("part", "whole", "decimals", "text"),
    [
        (None, 10, 0, "–"),
        (1, 0, 0, "–"),
        (0, 10, 1, "0.0 %"),
        (1, 10_000, 0, "<1 %"),
        (1, 10_000, 1, "<0.1 %"),
        (58, 100, 0, "58 %"),
        (1, 1, 1, "100.0 %"),
    ],
)
def test_percent(part: float | None, whole: float, decimals: int, text: str) -> None:
    assert percent(part, whole, decimals) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(4_000_000, "4.0 ms"), (31_400_000_000, "31.4 s"), (999_900_000, "1.0 s"), (125_000_000_000, "2 min 05 s")],
)
def test_durations(ns: float, text: str) -> None:
    assert duration(ns) == text


def test_rates_and_counts() -> None:
    assert [rate(value) for value in (None, 0.0412, 7.62, 192.4, 1234.5)] == ["–", "0.041", "7.6", "192", "1,234"]
    assert [count(value) for value in (None, 0, 12345)] == ["–", "0", "12,345"]


def test_tables_keep_to_their_width_by_shortening_the_widest_text() -> None:
    rows = [["a-rather-long-scenario-name", "1.0"], ["b", "22,000.0"]]
    assert table(["name", "ms"], rows, left=[0], width=24) == [
        "  name                ms",
        "  a-rather-lo…       1.0",
        "  b             22,000.0",
    ]
    assert shorten("abc", 3) == "abc"


def test_wrapped_lines_hang_below_their_lead() -> None:
    assert wrap("one two three", 12, first="  * ", rest="    ") == ["  * one two", "    three"]
