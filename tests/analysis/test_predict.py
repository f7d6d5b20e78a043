"""Prediction from a run and a probe, on servers whose times are known exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from known_server import CALLS, LENGTHS, MS, Call, Server, probe_sessions, run_sessions, session

from agentprof import semconv
from agentprof.analysis.frames import session_frames
from agentprof.analysis.points import call_points
from agentprof.analysis.predict import Prediction, predict
from agentprof.analysis.prediction_check import PredictionCheck, compare_prediction, in_common, leave_one_out
from agentprof.analysis.probe import read_probe
from agentprof.errors import InputError
from agentprof.records.spans import Span

A = Server()
B = Server(connect=2.0, base=25.0, per_token=0.5, per_pair=3e-4, step=6.0, per_context_token=1e-3, tail=1.0)


def predicted(here: Server, there: Server) -> tuple[Prediction, PredictionCheck]:
    prediction = predict(run_sessions(here), read_probe(probe_sessions(there)))
    return prediction, compare_prediction(prediction, run_sessions(there))


def test_the_probe_finds_the_coefficients_again() -> None:
    fits = read_probe(probe_sessions(A)).fits

    assert fits["prefill"].coefficients == pytest.approx(
        {"once": 40 * MS, "uncached": 0.2 * MS, "pairs": 1e-4 * MS}, rel=1e-5
    )
    assert fits["first_token_wait"].coefficients == pytest.approx({"prompt": 0.01 * MS}, rel=1e-4)
    assert fits["decode"].coefficients == pytest.approx({"step": 10 * MS, "step_context": 2e-3 * MS}, rel=1e-5)
    assert fits["connect"].coefficients == {"once": 1 * MS}
    assert fits["tail"].coefficients == {"once": 0.25 * MS}


def test_ttft_is_the_sum_of_its_parts() -> None:
    ttft = read_probe(probe_sessions(A)).ttft

    assert ttft.ns({"once": 1, "uncached": 100, "pairs": 0, "cached": 0, "prompt": 100}) == pytest.approx(
        (1 + 0.5 + 40 + 100 * 0.2 + 1) * MS, rel=1e-4
    )


def test_reading_cached_tokens_has_a_price_of_its_own() -> None:
    there = replace(A, per_cached=0.05)
    prediction, check = predicted(A, there)

    assert prediction.probe.fits["prefill"].coefficients["cached"] == pytest.approx(0.05 * MS, rel=1e-4)
    assert check.model_time.error == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("is_reporting", [True, False])
def test_another_backend_is_predicted_row_by_row(is_reporting: bool) -> None:
    there = replace(B, is_reporting=is_reporting, wait_per_prompt_token=0.01 if is_reporting else 0.0)
    prediction, check = predicted(A, there)

    assert check.model_time.error == pytest.approx(0, abs=1e-4)
    assert check.agent_tok_s.error == pytest.approx(0, abs=1e-4)
    for row in check.rows:
        assert (row.predicted is None) == (row.measured is None), row.name
        assert row.off_by is None or abs(row.off_by) < 1e-4 * prediction.model_time.value, row.name
    assert (prediction.rows["prefill"] is None) != is_reporting
    assert all(call.predicted_ns == pytest.approx(call.measured_ns, rel=1e-4) for call in check.calls)
    assert not any(call.outside for call in check.calls)


def test_a_predicts_a() -> None:
    prediction, check = predicted(A, A)

    assert check.model_time.error == pytest.approx(0, abs=1e-5)
    assert prediction.wall.value == pytest.approx(run_sessions(A)[0].wall_ns, rel=1e-5)
    assert prediction.output_tokens == sum(call.output for call in CALLS)
    assert sum(estimate.value for estimate in prediction.rows.values() if estimate) == pytest.approx(
        prediction.wall.value
    )


def test_tools_keep_their_time_and_widen_the_interval_by_their_spread() -> None:
    probe = read_probe(probe_sessions(A))
    steady = predict(run_sessions(A, tools_ms=(500.0, 500.0, 500.0)), probe)
    uneven = predict(run_sessions(A, tools_ms=(100.0, 500.0, 900.0)), probe)

    assert steady.rows["tool"].value == uneven.rows["tool"].value == 4 * 500 * MS
    assert steady.rows["tool"].low == steady.rows["tool"].high
    assert uneven.rows["tool"].low < 2000 * MS < uneven.rows["tool"].high
    assert uneven.model_time.low == steady.model_time.low
    assert uneven.wall.high > steady.wall.high


def test_the_agent_rate_is_lowest_where_the_wall_time_is_longest() -> None:
    prediction = predict(run_sessions(A, tools_ms=(100.0, 900.0)), read_probe(probe_sessions(A)))

    assert prediction.agent_tok_s.low == pytest.approx(prediction.output_tokens * 1e9 / prediction.wall.high)
    assert prediction.agent_tok_s.low < prediction.agent_tok_s.value < prediction.agent_tok_s.high


def test_a_backend_without_a_cache_computes_whole_prompts() -> None:
    prediction, check = predicted(A, replace(A, has_cache=False))

    assert prediction.probe.has_cache is False
    assert [call.size.uncached_tokens for call in prediction.calls] == [call.prompt for call in CALLS]
    assert check.model_time.error == pytest.approx(0, abs=1e-4)
    assert any("caches no prompts" in caution for caution in prediction.cautions)


def test_a_run_without_a_cache_is_taken_to_find_the_prompt_before() -> None:
    prediction, check = predicted(replace(A, has_cache=False), A)

    assert [call.size.cached_tokens for call in prediction.calls] == [0, 900, 1100, 1500]
    assert check.model_time.error == pytest.approx(0, abs=1e-4)
    assert any("the prompt of the call before" in caution for caution in prediction.cautions)


def test_cached_tokens_come_in_whole_blocks_of_the_new_cache() -> None:
    prediction, check = predicted(A, replace(A, block_tokens=16))

    assert prediction.probe.block_tokens == 16
    assert [call.size.cached_tokens for call in prediction.calls] == [0, 896, 1088, 1488]
    assert check.model_time.error == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("tokens", [1, 16, 48, 256, 864])
def test_the_block_of_a_cache_is_found(tokens: int) -> None:
    assert read_probe(probe_sessions(replace(A, block_tokens=tokens))).block_tokens == tokens


def test_a_cache_that_lost_something_is_taken_to_have_small_blocks() -> None:
    there = replace(A, block_tokens=16)
    sessions = probe_sessions(there, lengths=(64, 256)) + probe_sessions(replace(there, has_cache=False), (4001,))

    assert read_probe(sessions).block_tokens == 16


@pytest.mark.parametrize("has_cache", [True, False])
def test_a_cache_that_isnt_told_shows_in_the_waits(has_cache: bool) -> None:
    there = replace(A, has_cache=has_cache, tells_cache=False, is_reporting=False)
    probe = read_probe(probe_sessions(there))

    assert probe.has_cache is has_cache
    assert probe.block_tokens == 1


def test_drafts_accepted_as_in_the_run() -> None:
    drafting = replace(A, drafts_per_step=4, accepted_per_step=3, per_draft=0.5)
    prediction, check = predicted(drafting, drafting)

    assert prediction.probe.fits["decode"].coefficients["step"] > 0
    assert (prediction.drafting.tokens_per_step, prediction.drafting.source) == (4, "the run")
    assert check.model_time.error == pytest.approx(0, abs=1e-4)
    assert any("accepted as in the run" in caution for caution in prediction.cautions)


def test_drafts_of_a_run_that_had_none_follow_the_probe() -> None:
    drafting = replace(A, drafts_per_step=4, accepted_per_step=3, per_draft=0.5)
    synthetic = predict(run_sessions(A), read_probe(probe_sessions(drafting)))
    less = replace(drafting, accepted_per_step=1)
    own = session_frames(session(less, "own text", CALLS, trace=900, root_attributes={semconv.PROBE_KIND: "own_text"}))
    measured = predict(run_sessions(A), read_probe([*probe_sessions(drafting), *own]))

    assert synthetic.drafting.source == "synthetic text"
    assert any("isn't representative" in caution for caution in synthetic.cautions)
    assert (measured.drafting.tokens_per_step, measured.drafting.source) == (2, "own text")
    assert compare_prediction(synthetic, run_sessions(drafting)).model_time.error == pytest.approx(0, abs=1e-4)
    assert compare_prediction(measured, run_sessions(less)).model_time.error == pytest.approx(0, abs=1e-4)


def test_a_backend_without_drafts_ignores_those_of_the_run() -> None:
    drafting = replace(A, drafts_per_step=4, accepted_per_step=3, per_draft=0.5)
    prediction, check = predicted(drafting, A)

    assert prediction.drafting is None
    assert check.model_time.error == pytest.approx(0, abs=1e-4)


def test_a_first_read_of_several_tokens_leaves_fewer_steps_to_the_decode_time() -> None:
    drafting = replace(A, drafts_per_step=4, accepted_per_step=3)
    one, several = (
        call_points(session_frames(session(drafting, "fix", [Call(100)], call_attributes=attributes)))[0]
        for attributes in ({}, {semconv.FIRST_READ_TOKENS: 21})
    )

    assert (one.decoded_tokens, one.steps, one.drafted_tokens) == (40, 10, 40)
    assert (several.decoded_tokens, several.steps, several.drafted_tokens) == (20, 5, 20)


def test_calls_outside_the_probed_range_say_so() -> None:
    probe = read_probe(probe_sessions(A, lengths=(64, 256, 1000)))
    prediction = predict(run_sessions(A), probe)

    assert [bool(call.outside) for call in prediction.calls] == [False, False, True, True]
    assert prediction.calls[-1].outside == (
        "1,500 new prompt tokens, probed to 1,000",
        "a prompt of 3,000 tokens, probed to 1,160",
    )
    assert prediction.cautions[0].startswith(
        "2 of 4 calls lie outside the probed range (fix, step 3: a prompt of 1,500"
    )


def at_once(server: Server, length: int, trace: int) -> list[Span]:
    """Two requests of one length that decode side by side."""
    call = Call(length, 0, 41, others=1)
    return [
        span
        for number in (trace, trace + 1)
        for span in session(server, f"two of {length}", [call], trace=number, start_ms=3.6e6 * trace)
    ]


def test_calls_at_once_beyond_the_probed_say_so() -> None:
    prediction = predict(session_frames(at_once(A, 900, 1)), read_probe(probe_sessions(A)))

    assert [call.size.others for call in prediction.calls] == [1, 1]
    assert prediction.calls[0].outside == ("1.0 other calls at once, probed to 0.0",)


def test_others_that_decode_make_steps_longer() -> None:
    crowded = replace(A, per_other=3.0)
    alone = [span for frame in probe_sessions(crowded) for span in frame.spans]
    probe = read_probe(session_frames([*alone, *at_once(crowded, 500, 500), *at_once(crowded, 2000, 502)]))
    prediction = predict(session_frames(at_once(A, 900, 1)), probe)
    check = compare_prediction(prediction, session_frames(at_once(crowded, 900, 1)))

    assert probe.fits["decode"].coefficients["step_others"] == pytest.approx(3 * MS, rel=1e-4)
    assert not prediction.calls[0].outside
    assert check.model_time.error == pytest.approx(0, abs=1e-4)


def test_without_prompt_tokens_a_call_keeps_its_time() -> None:
    run = session_frames(session(A, "fix", CALLS, tool_ms=10, call_attributes={semconv.INPUT_TOKENS: "unknown"}))
    prediction = predict(run, read_probe(probe_sessions(B)))

    assert prediction.model_time.value == pytest.approx(run[0].ledger.model_time_ns)
    assert any("4 of 4 calls tell no prompt or output tokens" in caution for caution in prediction.cautions)


def test_longer_outputs_are_a_factor_of_their_own() -> None:
    probe = read_probe(probe_sessions(A))
    once, twice = (predict(run_sessions(A), probe, output_factor=factor) for factor in (1.0, 2.0))

    assert twice.output_tokens == 2 * once.output_tokens
    assert twice.rows["decode"].value > 2 * once.rows["decode"].value  # one token of each call isn't decoded
    assert twice.rows["prefill"].value == once.rows["prefill"].value


def test_warm_ups_and_incomplete_sessions_are_left_out() -> None:
    good = session(A, "fix", CALLS, trace=1)
    warm = session(A, "fix", [Call(64)], trace=2, root_attributes={semconv.WARMUP: True})
    cut = session(A, "fix", [Call(64)], trace=3, root_attributes={semconv.OUTCOME: "timed_out"})
    prediction = predict(session_frames([*good, *warm, *cut]), read_probe(probe_sessions(A)))

    assert len(prediction.sessions) == 1
    assert "1 of the run's sessions didn't complete and are left out." in prediction.cautions


def test_scenarios_weigh_the_same_however_many_sessions_they_have() -> None:
    run = session_frames(
        [
            *session(A, "long", CALLS, trace=1),
            *(span for trace in (2, 3, 4) for span in session(A, "short", CALLS[:1], trace=trace)),
        ]
    )
    prediction = predict(run, read_probe(probe_sessions(A)))
    by_name = {frame.scenario: frame.ledger.model_time_ns for frame in run}

    assert prediction.model_time.value == pytest.approx((by_name["long"] + by_name["short"]) / 2, rel=1e-5)
    check = compare_prediction(prediction, run)
    assert [scenario.name for scenario in check.scenarios] == ["long", "short"]
    assert all(scenario.error == pytest.approx(0, abs=1e-5) for scenario in check.scenarios)


def test_noise_of_the_probe_is_in_the_interval() -> None:
    def probe(spread: float) -> Prediction:
        spans = [
            span
            for repeat, slower in enumerate((1.0 - spread, 1.0, 1.0 + spread))
            for index, length in enumerate(LENGTHS)
            for span in session(A, f"probe {length}", [Call(length, slower=slower)], trace=100 + 10 * repeat + index)
        ]
        return predict(run_sessions(A), read_probe(session_frames(spans)))

    calm, noisy = probe(0.0), probe(0.1)

    assert calm.model_time.high - calm.model_time.low < 1e-3 * calm.model_time.value
    assert noisy.model_time.value == pytest.approx(calm.model_time.value, rel=0.01)
    assert noisy.model_time.high - noisy.model_time.low > 0.05 * noisy.model_time.value


def test_a_misfit_is_in_the_interval() -> None:
    lengths = {64: 1.0, 256: 1.5, 1000: 1.0, 4001: 1.6}
    spans = [
        span
        for index, (length, slower) in enumerate(lengths.items())
        for span in session(A, f"probe {length}", [Call(length, slower=slower)], trace=100 + index)
    ]
    prediction = predict(run_sessions(A), read_probe(session_frames(spans)))

    assert prediction.model_time.high > 1.2 * prediction.model_time.value


def test_leaving_steps_out_of_a_run_that_follows_the_form() -> None:
    parts = leave_one_out(run_sessions(replace(A, wait_per_prompt_token=0.0), [*CALLS, Call(3300, 3000), Call(2000)]))

    assert [part.name for part in parts] == [f"fix, step {number}" for number in range(1, 7)]
    assert all(part.error == pytest.approx(0, abs=1e-3) for part in parts)


def test_leaving_scenarios_out() -> None:
    spans = [
        span
        for trace, calls in enumerate((CALLS, (*CALLS, Call(3300, 3000)), (Call(500), Call(900, 500), Call(4000))), 1)
        for span in session(A, f"scenario {trace}", calls, trace=trace)
    ]
    parts = leave_one_out(session_frames(spans))

    assert [part.name for part in parts] == ["scenario 1", "scenario 2", "scenario 3"]
    assert all(abs(part.error) < 0.01 for part in parts)


def test_one_call_leaves_nothing_out() -> None:
    assert leave_one_out(run_sessions(A, CALLS[:1])) == []


def test_a_measured_run_of_another_length_is_said() -> None:
    prediction = predict(run_sessions(A), read_probe(probe_sessions(A)))
    longer = [Call(call.prompt, call.shared, 2 * call.output - 1) for call in CALLS]
    check = compare_prediction(prediction, run_sessions(A, longer))

    assert any("--output-factor 1.98" in caution for caution in check.cautions)


def test_runs_without_a_common_scenario_are_refused() -> None:
    with pytest.raises(InputError, match=r"no scenario .* in common: fix here, other there"):
        in_common(run_sessions(A), run_sessions(A, scenario="other"))
    both = session_frames([*session(A, "fix", CALLS, trace=1), *session(A, "other", CALLS, trace=2)])
    here, there = in_common(run_sessions(A), both)
    assert {frame.scenario for frame in (*here, *there)} == {"fix"}


def test_another_model_counts_tokens_otherwise() -> None:
    named = {semconv.REQUEST_MODEL: "other-7b"}
    run = session_frames(session(A, "fix", CALLS, call_attributes=named))
    cautions = predict(run, read_probe(probe_sessions(A))).cautions

    assert any(caution.startswith("The run asked for other-7b, the probe for m:") for caution in cautions)
    assert not any(
        "asked for" in caution for caution in predict(run_sessions(A), read_probe(probe_sessions(A))).cautions
    )


def test_a_run_without_completed_sessions_is_refused() -> None:
    failed = session_frames(session(A, "fix", CALLS, root_attributes={semconv.OUTCOME: "failed"}))
    with pytest.raises(InputError, match="nothing to predict"):
        predict(failed, read_probe(probe_sessions(A)))


def test_a_probe_without_usage_is_refused() -> None:
    blind = session_frames(session(A, "probe", [Call(64)], call_attributes={semconv.INPUT_TOKENS: "unknown"}))
    with pytest.raises(InputError, match="include_usage"):
        read_probe(blind)
