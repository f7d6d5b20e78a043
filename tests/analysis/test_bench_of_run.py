"""A benchmark out of the spans of a bench run; figures worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from bridging import milliseconds
from handwritten import MS, Trace, add_call

from agentprof import semconv
from agentprof.analysis.bench import benchmark_of_run, spread
from agentprof.analysis.frames import SessionFrame
from agentprof.errors import InputError
from agentprof.records.benchmark import TTFT_DEFINITION

FACTS = {
    "name": "bench-new",
    "command": "bench",
    "agentprof_version": "0.1.0",
    "options": {"concurrency": 1, "seed": 7},
    "backends": {
        "new": {
            "model": "qwen",
            "base_url": "http://a/v1",
            "labels": {"kernel": "marlin"},
            "fingerprint": {"engine": "vllm", "version": "1", "settings": {}},
        }
    },
}


def request(number: int, start: float, *, first: float, last: float, root: Any = None, **figures: Any) -> SessionFrame:
    """One request as a session: `invoke_agent bench`, a step, a call."""
    trace = Trace(number)
    attributes = {semconv.OUTCOME: "completed", semconv.BACKEND: "new"} | (root or {})
    session = trace.add(None, "invoke_agent bench", start, last + 1, attributes)
    step = trace.add(session, "step 1", start, last + 1)
    add_call(trace, step, start, figures, first=first, last=last)
    return trace.session()


def three() -> list[SessionFrame]:
    """A warm-up, then waits of 50 and 70 ms, decodes of 100 and 120 ms for 10 tokens after the first each."""
    return [
        request(1, 0, first=900, last=999, root={semconv.WARMUP: True}),
        request(2, 1000, first=1050, last=1150),
        request(3, 1151, first=1221, last=1341),
    ]


def test_means_over_requests() -> None:
    found = benchmark_of_run(FACTS, three())
    assert found.output_length.value == 11
    assert found.ttft_ns.value == 60 * MS
    assert found.tpot_ns.value == 11 * MS
    assert found.price_ns == (milliseconds(60) + 11 * milliseconds(10)) / 11
    assert found.request_latency_ns.value == 170 * MS
    assert found.throughput_tok_s.value == Fraction(22_000, 342)
    assert (found.completed.value, found.failed.value, found.concurrency.value, found.seed.value) == (2, 0, 1, 7)
    assert found.ttft_definition == TTFT_DEFINITION
    assert (found.backend, found.model, found.address) == ("new", "qwen", "http://a/v1")
    assert found.fingerprint == FACTS["backends"]["new"]["fingerprint"]  # type: ignore[index]
    assert found.labels == {"kernel": "marlin"}
    assert found.cautions == ()


def test_spread_of_rates() -> None:
    decode = benchmark_of_run(FACTS, three()).spreads["decode"]
    assert (decode.count, decode.max) == (2, pytest.approx(100))
    assert decode.min == pytest.approx(1000 / 12)
    assert decode.median == decode.mean == pytest.approx((100 + 1000 / 12) / 2)
    assert decode.std == pytest.approx((100 - 1000 / 12) / 2**0.5)
    assert spread([5.0]).std is None


def test_acceptance_and_cache_are_ratios_of_sums() -> None:
    drafts = {semconv.DRAFT_TOKENS: 20, semconv.ACCEPTED_TOKENS: 9, semconv.DECODE_STEPS: 2}
    cache = {semconv.INPUT_TOKENS: 1000, semconv.CACHED_TOKENS: 8}
    more = {semconv.DRAFT_TOKENS: 40, semconv.ACCEPTED_TOKENS: 6, semconv.DECODE_STEPS: 5}
    sessions = [
        request(1, 0, first=50, last=150, **drafts, **cache),
        request(2, 200, first=250, last=350, **more, **(cache | {semconv.CACHED_TOKENS: 0})),
    ]
    found = benchmark_of_run(FACTS, sessions)
    assert found.acceptance_length.value == Fraction(22, 7)
    assert found.acceptance_rate.value == Fraction(15, 60)
    assert found.cached_tokens.value == 8
    assert found.hit_rate.value == Fraction(8, 2000)
    assert found.input_tokens.value == 2000
    assert not any("cache" in caution for caution in found.cautions)


def test_parts_of_the_wait_that_every_request_reports() -> None:
    both = {semconv.PREFILL_NS: 30 * MS}
    sessions = [
        request(1, 0, first=50, last=150, **both, **{semconv.QUEUE_NS: 5 * MS}),
        request(2, 200, first=270, last=350, **both),
    ]
    parts = benchmark_of_run(FACTS, sessions).wait_parts_ns
    assert parts["prefill"] == 30 * MS
    assert parts["connect"] == parts["network"] == 1 * MS
    assert "queue" not in parts


def test_cached_prompts_and_short_requests_are_cautions() -> None:
    figures = {
        semconv.INPUT_TOKENS: 1000,
        semconv.CACHED_TOKENS: 900,
        semconv.FLAGS: ["short_of_forced_length"],
        semconv.FORCED_TOKENS: 1024,
    }
    found = benchmark_of_run(FACTS, [request(1, 0, first=50, last=150, **figures)])
    assert any("90 % of the benchmark's prompt tokens" in caution for caution in found.cautions)
    assert any("1 of 1 requests ended short" in caution for caution in found.cautions)


def test_buffered_requests_leave_only_their_latency() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent bench", 0, 200, {semconv.BACKEND: "new"})
    figures = {semconv.OUTPUT_TOKENS: 20, semconv.FLAGS: ["buffered"], semconv.TTFT_NS: 190 * MS}
    chat = trace.add(root, "chat small", 0, 200, figures, kind="client")
    trace.add(chat, "connect", 0, 10)
    trace.add(chat, "generation", 10, 190)
    trace.add(chat, "tail", 190, 200)
    found = benchmark_of_run(FACTS, [trace.session()])
    assert not found.is_split
    assert found.price_ns == Fraction(190, 20) * MS
    assert any("buffered" in caution for caution in found.cautions)


def test_failed_requests_are_counted_and_left_out() -> None:
    sessions = [*three(), request(4, 2000, first=2001, last=2002, root={semconv.OUTCOME: "failed"})]
    found = benchmark_of_run(FACTS, sessions)
    assert (found.completed.value, found.failed.value) == (2, 1)
    assert found.ttft_ns.value == 60 * MS
    assert any("1 of 3 requests failed" in caution for caution in found.cautions)


def test_counted_tokens_make_estimates() -> None:
    counted = {semconv.OUTPUT_TOKENS_SOURCE: "counted"}
    found = benchmark_of_run(FACTS, [request(1, 0, first=50, last=150, **counted)])
    assert found.tpot_ns.provenance == found.output_length.provenance == "estimated"
    assert found.ttft_ns.provenance == "measured"


def test_no_request_completed() -> None:
    with pytest.raises(InputError, match="bench-new: no request completed"):
        benchmark_of_run(FACTS, three()[:1])


def test_no_tokens() -> None:
    with pytest.raises(InputError, match="brought no tokens"):
        benchmark_of_run(FACTS, [request(1, 0, first=50, last=150, **{semconv.OUTPUT_TOKENS: 0})])


def test_several_backends_need_a_name() -> None:
    sessions = [*three(), request(9, 0, first=10, last=20, root={semconv.BACKEND: "old"})]
    with pytest.raises(InputError, match="several backends: new, old"):
        benchmark_of_run(FACTS, sessions)
    assert benchmark_of_run(FACTS, sessions, backend="old").ttft_ns.value == 10 * MS


def test_several_groups_need_a_name_and_have_their_own_concurrency() -> None:
    groups = {"questions-1": {"prompts": "questions", "concurrency": 1}, "questions-8": {"concurrency": 8}}
    facts = FACTS | {"scenarios": groups, "options": {"concurrency": 8}}
    sessions = [
        request(number, 0, first=number * 10, last=99, root={semconv.SCENARIO: group})
        for number, group in enumerate(groups, start=1)
    ]
    with pytest.raises(InputError, match=r"several groups\. Name one: .*#questions-1, .*#questions-8"):
        benchmark_of_run(facts, sessions)
    with pytest.raises(InputError, match=r"holds no group 8\. Name one: .*#questions-1, .*#questions-8"):
        benchmark_of_run(facts, sessions, group="8")
    found = benchmark_of_run(facts, sessions, group="questions-1")
    assert (found.concurrency.value, found.ttft_ns.value) == (1, 10 * MS)
    assert (found.prompts, found.is_length_forced) == ("questions", False)


def test_forced_length_is_kept() -> None:
    assert benchmark_of_run(FACTS, [request(1, 0, first=5, last=9, root={semconv.LENGTH: "forced"})]).is_length_forced
