"""The probe against the simulated server, whose profile it has to find again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentprof.analysis.frames import SessionFrame, session_frames
from agentprof.analysis.points import CallSize
from agentprof.analysis.predict import predict
from agentprof.analysis.probe import ProbeFit, read_probe
from agentprof.records.backend import Backend
from agentprof.records.call import ChatRequest
from agentprof.runs.probe import Probe, ProbeOptions, ProbeSummary
from agentprof.runs.recording import Observer
from agentprof.runs.store import read_run
from agentprof.serve.sim import Profile, RunningSim, start_sim

MS = 1_000_000
PREFILL = {"base": "20ms", "per_token": "0.1ms", "attention": "60ms"}
DECODE = {"step": "4ms", "per_context_token": "0.002ms"}
SHORT = ProbeOptions(budget_s=5, output_tokens=12, most_tokens=1000, seed="s")


def serving(**profile: Any) -> RunningSim:
    return start_sim(Profile.model_validate({"prefill": PREFILL, "decode": DECODE, "model": "m"} | profile))


def probe(sim: RunningSim, folder: Path, options: ProbeOptions = SHORT) -> ProbeSummary:
    backend = Backend(name="sim", base_url=sim.base_url, model="m")
    return asyncio.run(Probe(backend, options, folder, Observer()).run())


def fitted(folder: Path) -> tuple[list[SessionFrame], ProbeFit]:
    frames = session_frames(read_run(folder).spans)
    return frames, read_probe(frames)


def size(new: int, cached: int = 0, output: int = 1) -> dict[str, float]:
    return CallSize(new, cached, output, output - 1, output - 1, 0, 0).terms()


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe") / "run"
    with serving() as sim:
        summary = probe(sim, folder)
    assert not summary.failures
    assert summary.requests >= 3 * 3 + 3
    return folder


def test_finds_the_prefill_of_the_profile(probed: Path) -> None:
    _, fit = fitted(probed)
    prefill = fit.fits["prefill"]

    for new, cached in ((64, 0), (128, 960), (1000, 0)):
        terms = size(new, cached)
        true_ms = 20 + 0.1 * new + 60 * terms["pairs"] / 1e6
        assert prefill.ns(terms) / MS == pytest.approx(true_ms, rel=0.15), (new, cached)
        assert fit.ttft.ns(terms) / MS == pytest.approx(true_ms, rel=0.4, abs=15), (new, cached)


def test_finds_the_step_time_and_its_growth_with_context(probed: Path) -> None:
    _, fit = fitted(probed)
    decode = fit.fits["decode"].coefficients

    for context in (64, 1100):
        assert (decode["step"] + decode.get("step_context", 0) * context) / MS == pytest.approx(
            4 + 0.002 * context, rel=0.25
        )


def test_knows_the_cache_and_its_block(probed: Path) -> None:
    frames, fit = fitted(probed)

    assert fit.has_cache is True
    assert fit.block_tokens == 16
    assert fit.drafting is None
    followers = [frame for frame in frames if frame.scenario == "probe 128 after 1016"]
    assert followers[0].calls[0].cached_tokens >= 1000


def test_is_a_run_like_any_other(probed: Path) -> None:
    data = read_run(probed)

    assert not data.problems
    assert data.facts["command"] == "probe"
    assert data.facts["is_finished"] is True
    assert len(data.facts["planned"]) == data.sessions
    frames = session_frames(data.spans)
    assert [frame.is_warmup for frame in frames[:3]] == [True, True, True]
    assert {frame.outcome for frame in frames} == {"completed"}
    assert all(len(frame.calls) == 1 and frame.calls[0].step == 1 for frame in frames)
    new = next(frame for frame in frames if frame.scenario == "probe 1000 new")
    assert 1000 <= new.calls[0].prompt_tokens < 1020  # the template's, too
    assert new.calls[0].output_tokens == 12


def test_repeats_what_fits_into_the_budget(probed: Path) -> None:
    frames, fit = fitted(probed)
    repetitions = [frame.repetition for frame in frames if frame.scenario == "probe 64 new" and not frame.is_warmup]

    assert len(repetitions) > 1
    assert fit.noise["decode"] < 2
    assert fit.groups == 9  # 64, 256, 1000, each new and with two suffixes


def test_predicts_itself(probed: Path) -> None:
    """A probe is a run of requests too: predicted from its own fit, its model time comes out."""
    frames, fit = fitted(probed)
    prediction = predict(frames, fit)
    measured = [frame for frame in frames if not frame.is_warmup]
    by_scenario: dict[str, list[int]] = {}
    for frame in measured:
        by_scenario.setdefault(frame.scenario, []).append(frame.ledger.model_time_ns)
    mean = sum(sum(values) / len(values) for values in by_scenario.values()) / len(by_scenario)

    assert prediction.model_time.value == pytest.approx(mean, rel=0.3)


def test_a_server_without_a_cache(tmp_path: Path) -> None:
    options = ProbeOptions(budget_s=12, output_tokens=4, most_tokens=3000, seed="s")
    with serving(cache={"blocks": 0}) as sim:
        probe(sim, tmp_path / "run", options)
    frames, fit = fitted(tmp_path / "run")

    assert fit.has_cache is False
    assert fit.ranges.cached_tokens == 0
    asked = {frame.scenario for frame in frames}
    assert "probe 16 after 1024" in asked  # a block of the cache may be as long as that
    assert "probe 3000 new" in asked
    assert "probe 16 after 3000" not in asked  # known by then


def test_a_server_that_reports_nothing_still_shows_its_cache(tmp_path: Path) -> None:
    options = ProbeOptions(budget_s=4, output_tokens=4, most_tokens=1000, seed="s")
    with serving(engine="openai", report="none") as sim:
        probe(sim, tmp_path / "run", options)
    _, fit = fitted(tmp_path / "run")

    assert "prefill" not in fit.fits
    assert fit.fits["first_token_wait"].ns(size(1000)) / MS == pytest.approx(150, rel=0.25)


def test_requests_at_once_show_what_others_cost(tmp_path: Path) -> None:
    options = ProbeOptions(budget_s=6, output_tokens=24, most_tokens=256, concurrency=3, seed="s")
    with serving(decode={"step": "8ms", "per_sequence": "6ms"}) as sim:
        probe(sim, tmp_path / "run", options)
    _, fit = fitted(tmp_path / "run")

    assert 1.5 < fit.ranges.others <= 2
    decode = fit.fits["decode"].coefficients
    assert 0.4 < decode["step_others"] / decode["step"] < 1.2


def test_acceptance_on_own_text_stands_apart(tmp_path: Path) -> None:
    own = ("fix", ChatRequest(({"role": "user", "content": "Fix it."},), (), 64, forced_tokens=64, temperature=0.0))
    options = ProbeOptions(budget_s=4, output_tokens=33, most_tokens=64, own_text=(own,), seed="s")
    with serving(speculation={"draft_tokens": 3, "acceptance_length": 2}) as sim:
        probe(sim, tmp_path / "run", options)
    frames, fit = fitted(tmp_path / "run")

    assert fit.drafting is not None
    assert fit.drafting.source == "own text"
    assert fit.drafting.tokens_per_step == pytest.approx(2, rel=0.2)
    assert [frame.scenario for frame in frames].count("own text 1, fix") == 1


def test_a_context_that_ends_ends_the_growth(tmp_path: Path) -> None:
    options = ProbeOptions(budget_s=3, output_tokens=4, seed="s")
    with serving(context_tokens=250) as sim:
        summary = probe(sim, tmp_path / "run", options)
    frames, fit = fitted(tmp_path / "run")

    assert not summary.failures
    assert fit.ranges.prompt_tokens < 250
    assert [frame.outcome for frame in frames if frame.scenario == "probe 256 new"] == ["failed"]


def test_a_server_without_usage_is_fitted_by_what_was_sent(tmp_path: Path) -> None:
    options = ProbeOptions(budget_s=3, output_tokens=4, most_tokens=1000, seed="s")
    with serving(stream={"usage": "none"}) as sim:
        probe(sim, tmp_path / "run", options)
    _, fit = fitted(tmp_path / "run")

    assert fit.tells_prompt is False
    assert fit.has_cache is True
    assert fit.fits["prefill"].ns(size(1000)) / MS == pytest.approx(150, rel=0.25)


def test_the_budget_is_kept(tmp_path: Path) -> None:
    """A slow server: nothing but what half the budget holds is tried, and no length that would exceed it."""
    options = ProbeOptions(budget_s=2, output_tokens=4, seed="s")
    with serving(prefill={"base": "0ms", "per_token": "1ms"}) as sim:
        probe(sim, tmp_path / "run", options)
    frames, fit = fitted(tmp_path / "run")

    assert fit.ranges.prompt_tokens < 1000
    assert (frames[-1].start_ns + frames[-1].wall_ns - frames[0].start_ns) < 6e9


def test_a_server_that_buffers_has_one_row(tmp_path: Path) -> None:
    options = ProbeOptions(budget_s=4, output_tokens=24, most_tokens=400, seed="s")
    with serving(stream={"buffered": True}) as sim:
        probe(sim, tmp_path / "run", options)
    frames, fit = fitted(tmp_path / "run")
    prediction = predict(frames, fit)

    assert fit.is_unsplit
    assert prediction.rows["generation"].value > 0.9 * prediction.model_time.value
    assert prediction.rows["decode"] is None
    true_ms = 20 + 0.1 * 400 + 60 * 8e4 / 1e6 + 23 * (4 + 0.002 * 412)
    assert fit.fits["generation"].ns(size(400, output=24)) / MS == pytest.approx(true_ms, rel=0.25)
