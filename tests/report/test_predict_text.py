"""The text of probe and predict, from servers whose times are known."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from known_server import CALLS, Call, Server, probe_sessions, run_sessions, session

from agentprof.analysis.frames import session_frames
from agentprof.analysis.predict import predict
from agentprof.analysis.prediction_check import compare_prediction, leave_one_out
from agentprof.analysis.probe import read_probe
from agentprof.report.predict_text import Names, render_check, render_left_out, render_prediction
from agentprof.report.probe_text import render_probe

A = Server()
B = Server(connect=2.0, base=25.0, per_token=0.5, per_pair=3e-4, step=6.0, per_context_token=1e-3, tail=1.0)
NAMES = Names("runs/old", "new")


def line(text: str, start: str) -> str:
    return next(found for found in text.splitlines() if found.strip().startswith(start))


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"[-+]?\d[\d,]*\.?\d*", text)]


def test_a_probe_in_words() -> None:
    text = render_probe(read_probe(probe_sessions(A, repeats=2)), "new")

    assert text.startswith("new: 24 requests of 12 kinds, with 21 to 4,001 new prompt tokens and contexts up to 4,182")
    lengths = numbers(line(text, "prompt tokens"))
    assert lengths == [64, 256, 1024, 4161]
    # 1.5 to send, 40 + 0.2 u + 1e-4 u²/2 to prefill, 0.01 for each token of the prompt
    new = numbers(line(text, "TTFT, all new").partition(",")[2])
    assert new == pytest.approx([1.5 + 40 + 0.21 * n + 0.5e-4 * n * n for n in lengths], abs=0.06)
    assert numbers(line(text, "ms per token"))[1] == pytest.approx(10 + 2e-3 * 256, abs=0.06)
    assert "Prompt cache: yes." in text
    assert "Repeated requests differed (standard deviation): prefill 0.0 %, decode 0.0 %." in text
    assert "Drafts" not in text


def test_a_probe_of_a_server_that_drafts_and_keeps_no_cache() -> None:
    there = replace(A, has_cache=False, drafts_per_step=4, accepted_per_step=3, per_draft=0.5)
    text = render_probe(read_probe(probe_sessions(there)), "new")

    assert "Prompt cache: none" in text
    assert "Drafts: 4.00 tokens per decoding step of 4.00 drafted, on synthetic text." in text
    assert "No request was repeated." in text
    assert numbers(line(text, "ms per token"))[0] == pytest.approx((10 + 2e-3 * 64 + 4 * 0.5) / 4, abs=0.06)


def test_a_prediction_in_words() -> None:
    prediction = predict(run_sessions(A, tools_ms=(400.0, 600.0)), read_probe(probe_sessions(B)))
    text = render_prediction(prediction, replace(NAMES, benchmark_tok_s=192.4))

    rate = prediction.agent_tok_s
    assert f"{rate.value:.1f} agent tok/s ({rate.low:.1f}–{rate.high:.1f}), where its benchmark gives 192" in " ".join(
        text.split()
    )
    assert numbers(line(text, "decode"))[0] == pytest.approx(prediction.rows["decode"].value / 1e6, abs=0.06)
    assert line(text, "tool").endswith("as in the run")
    assert "gateway" in text
    assert line(text, "gateway").endswith("the probed backend doesn't measure it")
    rows = [numbers(found)[0] for found in text.splitlines() if re.match(r"  [a-z_]+ +[\d,]+\.\d ", found)]
    assert sum(rows) == pytest.approx(numbers(line(text, "in all"))[0], abs=0.5)
    assert all(len(found) <= 100 for found in text.splitlines())


def test_predicted_beside_measured() -> None:
    slower = replace(B, step=9.0)
    prediction = predict(run_sessions(A), read_probe(probe_sessions(B)))
    good = render_check(prediction, compare_prediction(prediction, run_sessions(B)), NAMES)
    bad = render_check(prediction, compare_prediction(prediction, run_sessions(slower)), NAMES)

    assert "0.0 % too" in good
    assert "inside the interval. No row is off by more than 10 % of it." in " ".join(good.split())
    assert "miss" not in good
    assert "too short, outside the interval. Off by more than 10 % of it: decode." in " ".join(bad.split())
    assert line(bad, "decode").endswith("miss")
    assert line(bad, "wall").endswith("outside")
    assert "outside\n" not in good
    assert "step 4" in good
    assert all(len(found) <= 100 for text in (good, bad) for found in text.splitlines())


def test_calls_outside_the_probed_range_are_marked() -> None:
    prediction = predict(run_sessions(A), read_probe(probe_sessions(A, lengths=(64, 256, 1000))))
    text = render_check(prediction, compare_prediction(prediction, run_sessions(A)), NAMES)

    assert line(text, "step 4").endswith("outside the probed range")
    assert not line(text, "step 1").endswith("outside the probed range")


def test_several_scenarios_are_named() -> None:
    run = session_frames([*session(A, "long", CALLS, trace=1), *session(A, "short", CALLS[:1], trace=2)])
    prediction = predict(run, read_probe(probe_sessions(B)))
    text = render_check(prediction, compare_prediction(prediction, run), NAMES)

    assert line(text, "model time of").split()[-1] == "error"
    assert "long, step 4" in text


def test_parts_left_out_in_a_sentence() -> None:
    parts = leave_one_out(run_sessions(replace(A, wait_per_prompt_token=0.0), [*CALLS, Call(3300, 3000), Call(2000)]))

    assert "each of 6 parts predicted from the others, typically 0.0 % off" in " ".join(render_left_out(parts).split())
    assert render_left_out([]) == ""
