"""Benchmarks of another backend are refused unless forced; what doesn't match is said."""

from __future__ import annotations

from typing import Any

import pytest
from bridging import raw, session_root
from handwritten import Trace, add_call

from agentprof import semconv
from agentprof.analysis.bridge import Bridge, build_bridge
from agentprof.analysis.bridge_json import bridge_json
from agentprof.errors import InputError
from agentprof.records.benchmark import ABSENT, derived, measured
from agentprof.report.bridge_html import bridge_html
from agentprof.report.bridge_text import render_bridge

FINGERPRINT = {"engine": "vllm", "version": "0.33.0", "settings": {"root": "qwen", "max_model_len": 131072}}


def run_of(**changes: Any) -> dict[str, Any]:
    about = {"model": "qwen", "labels": {"kernel": "marlin"}, "base_url": "http://a/v1", "fingerprint": FINGERPRINT}
    return {"backends": {"new": about | changes}}


def own(**changes: Any) -> Any:
    return raw(
        **({
            "model": "qwen",
            "labels": {"kernel": "marlin"},
            "address": "http://a/v1",
            "fingerprint": FINGERPRINT,
        } | changes)
    )  # fmt: skip


def bridge_of(benchmark: Any, run: dict[str, Any] | None = None, *, is_forced: bool = False, **root: Any) -> Bridge:
    trace = Trace()
    add_call(trace, session_root(trace, 101, **{semconv.BACKEND: "new", **root}), 0, first=60, last=100)
    return build_bridge([trace.session()], benchmark, run=run, is_forced=is_forced)


def test_the_same_backend_needs_no_caution() -> None:
    bridge = bridge_of(own(), run_of())
    assert bridge.mismatch == ()
    assert bridge.cautions == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"fingerprint": FINGERPRINT | {"version": "0.32.0"}},
            "version is 0.33.0 in the benchmark and 0.32.0 in the run",
        ),
        (
            {"fingerprint": FINGERPRINT | {"settings": {"root": "qwen"}}},
            "max_model_len is 131072 in the benchmark and not known in the run",
        ),
        ({"labels": {"kernel": "triton"}}, "label kernel is marlin in the benchmark and triton in the run"),
        ({"model": "other"}, "model is qwen in the benchmark and other in the run"),
    ],
)
def test_another_backend_is_refused_with_what_differs(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        bridge_of(own(), run_of(**changes))
    assert expected in str(caught.value)
    assert "force" in str(caught.value)


def test_forced_is_said_on_every_output() -> None:
    bridge = bridge_of(own(), run_of(model="other"), is_forced=True)
    difference = "model is qwen in the benchmark and other in the run"
    assert bridge.mismatch == (difference,)
    assert bridge.cautions[0].startswith("FORCED")
    assert render_bridge(bridge).startswith("FORCED")
    assert bridge_json(bridge)["mismatch"] == [difference]
    assert 'class="forced"' in bridge_html(bridge)


def test_forcing_what_matches_changes_nothing() -> None:
    assert bridge_of(own(), run_of(), is_forced=True) == bridge_of(own(), run_of())


@pytest.mark.parametrize(
    ("theirs", "ours", "is_same"),
    [
        ("Qwen/Qwen3.8-27B", "qwen3.8-27b", True),
        ("qwen3.8-27b", "Qwen3.8-27B-FP8", True),
        ("/models/Qwen3.8-27B/", "qwen3.8-27b", True),
        ("llama ?B Q4_1", "qwen3.8-27b", False),
        ("smollm2-135m", "qwen3.8-27b", False),
    ],
)
def test_an_imported_benchmark_is_checked_by_the_models_name(theirs: str, ours: str, is_same: bool) -> None:
    imported = raw(model=theirs, tool="vllm bench serve")
    if is_same:
        bridge = bridge_of(imported, run_of(model=ours))
        assert any("by the model's name alone" in caution for caution in bridge.cautions)
    else:
        with pytest.raises(InputError, match="another backend"):
            bridge_of(imported, run_of(model=ours))


def test_without_facts_the_calls_name_the_model() -> None:
    with pytest.raises(InputError, match="model is qwen in the benchmark and small in the run"):
        bridge_of(raw(model="qwen"))
    assert bridge_of(raw(model="small")).mismatch == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"ttft_definition": "first chunk"},
            "TTFT isn't the same thing on both sides: agentprof bench takes the first",
        ),
        ({"concurrency": measured(8)}, "Concurrency differs: 8 at once in the benchmark, 1 in the run"),
        ({"concurrency": ABSENT}, "doesn't say how many requests ran at once"),
        ({"hit_rate": ABSENT, "seed": measured(7)}, "cache state isn't known (seed 7)"),
        (
            {"hit_rate": derived(measured(1).value, "x"), "tool": "sglang"},
            "100 % of the benchmark's prompt tokens came",
        ),
        ({"throughput_tok_s": measured(30)}, "its throughput is 30"),
        ({"acceptance_length": measured(4)}, "Acceptance isn't representative in the benchmark, whose text is usually"),
        ({"acceptance_length": measured(4), "prompts": "random"}, "in the benchmark, whose text is random."),
        ({"acceptance_length": measured(4), "is_length_forced": True}, "whose text is forced in length."),
        ({"address": "http://gateway/v1"}, "taken at http://gateway/v1 and the run at http://a/v1"),
        ({"cautions": ("its own caution",)}, "its own caution"),
    ],
)
def test_cautions(changes: dict[str, Any], expected: str) -> None:
    assert any(expected in caution for caution in bridge_of(own(**changes), run_of()).cautions)


@pytest.mark.parametrize(
    ("backend", "address", "is_told"),
    [
        ("new", "http://a:8001/v1", False),
        ("direct", "http://a:8001/v1", True),
        ("new", "http://b/v1", True),
        ("direct", "http://a/v1", False),
    ],
)
def test_a_new_port_of_the_same_backend_is_no_other_route(backend: str, address: str, *, is_told: bool) -> None:
    bridge = bridge_of(own(backend=backend, address=address), run_of())
    assert any("what lies between them" in caution for caution in bridge.cautions) == is_told


def test_acceptance_is_unrepresentative_on_both_sides() -> None:
    trace = Trace()
    drafts = {semconv.DRAFT_TOKENS: 20, semconv.ACCEPTED_TOKENS: 9}
    add_call(trace, session_root(trace, 101, **{semconv.LENGTH: "forced"}), 0, drafts, first=60, last=100)
    bridge = build_bridge([trace.session()], raw(acceptance_length=measured(4)))
    assert any("on both sides" in caution for caution in bridge.cautions)
    alone = build_bridge([trace.session()], raw())
    assert any("in the run, whose text is forced in length" in caution for caution in alone.cautions)


def test_drafts_that_only_the_run_has_may_be_another_configuration() -> None:
    trace = Trace()
    drafts = {semconv.DRAFT_TOKENS: 20, semconv.ACCEPTED_TOKENS: 9}
    add_call(trace, session_root(trace, 101), 0, drafts, first=60, last=100)
    for known, is_told in ((own(), True), (own(acceptance_length=measured(4)), False)):
        cautions = build_bridge([trace.session()], known, is_forced=True).cautions
        assert any("another configuration?" in caution for caution in cautions) == is_told


def test_acceptance_on_questions_is_representative() -> None:
    questions = own(acceptance_length=measured(4), prompts="questions", is_length_forced=False)
    assert bridge_of(questions, run_of()).cautions == ()
