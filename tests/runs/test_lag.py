"""The lag meter: what it counts, when it counts, and that asking it costs little."""

from __future__ import annotations

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from agentprof.runs.lag import Lag, LagMeter

MS = 1_000_000


def test_a_blocked_loop_shows_as_lag() -> None:
    async def run() -> Lag:
        meter = LagMeter()
        meter.start()
        await asyncio.sleep(0.05)
        mark = meter.mark()
        time.sleep(0.1)  # noqa: ASYNC251  the blocking that is to be seen
        await asyncio.sleep(0.02)
        lag = meter.since(mark)
        await meter.stop()
        return lag

    lag = asyncio.run(run())
    assert lag.samples >= 1
    assert lag.max_ns is not None
    assert 85 * MS <= lag.max_ns <= 400 * MS


def test_nothing_is_counted_while_no_stream_is_open() -> None:
    async def run() -> tuple[Lag, Lag]:
        is_open = False
        meter = LagMeter(lambda: is_open)
        meter.start()
        await asyncio.sleep(0.05)
        closed = meter.since()
        is_open = True
        await asyncio.sleep(0.05)
        await meter.stop()
        return closed, meter.since()

    closed, opened = asyncio.run(run())
    assert closed == Lag(0, None, None, None)
    assert opened.samples >= 2


def test_the_cpu_share_is_that_of_this_process() -> None:
    async def run() -> tuple[float, float]:
        meter = LagMeter()
        meter.start()
        await asyncio.sleep(0.2)
        idle = meter.cpu_share
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        busy = meter.cpu_share
        await meter.stop()
        return idle, busy

    idle, busy = asyncio.run(run())
    assert 0 <= idle < 0.5
    assert idle < busy <= 2.5


@given(st.lists(st.integers(0, 20_000_000_000), min_size=1, max_size=200))
def test_percentiles_are_within_three_percent_above_the_exact_ones(late_ns: list[int]) -> None:
    meter = LagMeter()
    meter.note(7)  # before the mark: not counted
    mark = meter.mark()
    for each in late_ns:
        meter.note(each)
    lag, ordered = meter.since(mark), sorted(late_ns)
    assert lag.samples == len(late_ns)
    exact = (ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])
    for found, true in zip((lag.p50_ns, lag.p99_ns, lag.max_ns), exact, strict=True):
        assert found is not None
        assert true < found <= true * 33 / 32 + 2_000


def test_no_lateness_is_too_great_to_count() -> None:
    meter = LagMeter()
    meter.note(10**22)
    assert meter.since().samples == 1


def test_asking_stays_quick_after_an_hour_of_samples() -> None:
    meter = LagMeter()
    for _ in range(720_000):
        meter._counts[3] += 1
    started = time.perf_counter()
    for _ in range(10):
        meter.since(meter.mark())
    assert (time.perf_counter() - started) / 10 < 0.2


def test_a_meter_that_never_ran_has_no_lag() -> None:
    assert LagMeter().since() == Lag(0, None, None, None)
    asyncio.run(LagMeter().stop())
