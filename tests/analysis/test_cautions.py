"""Each caution: when it is given, when it isn't, and what it says to do."""

from __future__ import annotations

from typing import Any

import pytest
from handwritten import MS, Trace, add_call

from agentprof import semconv
from agentprof.analysis.cautions import session_cautions

REPLAYED = {semconv.MODE: "scripted", semconv.OUTCOME: "completed", semconv.LENGTH: "forced", semconv.CACHE: "isolated"}


def cautions(
    calls: list[dict[str, Any]],
    *,
    session: dict[str, Any] | None = None,
    has_warmup: bool = True,
    checks_passed: bool = True,
    spare_ms: float = 0,
) -> list[str]:
    """The cautions of a session whose calls carry these attributes beside the usual ones, 101 ms each."""
    trace = Trace()
    end = 101 * len(calls) + spare_ms
    root = trace.add(None, "invoke_agent fix", 0, end, REPLAYED | (session or {}))
    for number, attributes in enumerate(calls):
        step = trace.add(root, f"step {number + 1}", 101 * number, 101 * number + 101)
        add_call(trace, step, 101 * number, attributes, first=101 * number + 50, last=101 * number + 100)
    trace.add(None, "checks", end, end + 1, {semconv.CHECKS_PASSED: checks_passed})
    return session_cautions(trace.session(), has_warmup=has_warmup)


def test_a_session_without_fault_has_none() -> None:
    assert cautions([{}, {}]) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"session": {semconv.OUTCOME: "timed_out", semconv.OUTCOME_REASON: "limit 10 m"}}, "timed_out (limit 10 m)"),
        ({"checks_passed": False}, "Checks failed"),
        ({"has_warmup": False}, "--warmup 1"),
        ({"spare_ms": 3}, "2.9 % of the time is unattributed"),
        ({"session": {semconv.LAG_P99_NS: 5_200_000}}, "5.2 ms at p99 (limit 5 ms)"),
    ],
)
def test_on_the_session(arguments: dict[str, Any], words: str) -> None:
    (caution,) = cautions([{}], **arguments)
    assert words in caution


def test_on_the_tools() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 400, REPLAYED)
    step = trace.add(root, "step 1", 0, 400)
    add_call(trace, step, 0, first=50, last=99)
    named = {semconv.TOOL_NAME: "edit_file"}
    trace.add(step, "execute_tool edit_file", 100, 200, named, error="the old text does not occur")
    trace.add(step, "execute_tool bash", 200, 300, {semconv.EXIT_CODE: 1})
    trace.add(step, "execute_tool bash", 300, 400, {semconv.TIMED_OUT: True}, error="stopped at the time limit")
    assert session_cautions(trace.session(), has_warmup=True) == [
        "1 of 3 tool calls failed; the first, edit_file: the old text does not occur",
        "1 of 3 tool calls were stopped at limits.tool: their time is the limit's.",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"spare_ms": 1},
        {"session": {semconv.LAG_P99_NS: 5_000_000}},
        {"has_warmup": False, "session": {semconv.WARMUP: True}},
    ],
)
def test_limits_are_not_cautions_yet(arguments: dict[str, Any]) -> None:
    assert cautions([{}], **arguments) == []


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([{semconv.OUTPUT_TOKENS_SOURCE: "counted"}, {}], "1 of 2 calls rest on counted"),
        ([{semconv.FLAGS: ["estimated_tokens"]}], "1 of 1 call rest on counted"),
        ([{semconv.FLAGS: ["buffered"]}, {}], "1 of 2 calls arrived buffered"),
        ([{semconv.FLAGS: ["bursts:65"]}, {semconv.FLAGS: ["late_delta"]}], "2 of 2 calls were held back"),
        (
            [
                {},
                {
                    semconv.FLAGS: ["short_of_forced_length"],
                    semconv.FORCED_TOKENS: 128,
                    semconv.OUTPUT_TOKENS: 37,
                },
            ],
            "37 of 128 tokens in step 2",
        ),
        ([{semconv.DRAFT_TOKENS: 30}], "acceptance isn't representative"),
        (
            [{semconv.PREFILL_NS: 30 * MS, semconv.QUEUE_NS: 0}, {semconv.QUEUE_NS: 0}],
            "1 of 2 calls reported no prefill",
        ),
        ([{semconv.PREFILL_NS: 60 * MS}], "exceed the wait they lie in for 1 of 1 call, by up to 12.0 ms"),
        ([{semconv.CACHED_TOKENS: 60, semconv.INPUT_TOKENS: 1000}], "60 of the first call's 1,000 prompt tokens"),
        ([{semconv.ERROR_KIND: "truncated"}, {}], "1 of 2 calls failed (truncated)"),
    ],
)
def test_on_the_calls(calls: list[dict[str, Any]], words: str) -> None:
    (caution,) = cautions(calls)
    assert words in caution


@pytest.mark.parametrize(
    "attributes",
    [
        {semconv.RTT_NS: 200 * MS},  # an estimate that is too long is cut without a word
        {semconv.PREFILL_NS: 48 * MS + 900_000},  # clocks may differ by that much
        {semconv.CACHED_TOKENS: 16, semconv.INPUT_TOKENS: 100},  # a few template tokens are normal
        {semconv.CACHED_TOKENS: 50, semconv.INPUT_TOKENS: 1000},
    ],
)
def test_what_is_normal_is_no_caution(attributes: dict[str, Any]) -> None:
    assert cautions([attributes]) == []


def test_drafts_of_natural_length_and_a_shared_cache_are_fine() -> None:
    attributes = {semconv.DRAFT_TOKENS: 30, semconv.CACHED_TOKENS: 900, semconv.INPUT_TOKENS: 1000}
    session = {semconv.LENGTH: "free", semconv.CACHE: "production"}
    assert cautions([attributes], session=session) == []


def test_only_the_first_call_must_find_an_isolated_cache_empty() -> None:
    assert cautions([{}, {semconv.CACHED_TOKENS: 900, semconv.INPUT_TOKENS: 1000}]) == []


def test_an_imported_session_needs_no_warm_up() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent real", 0, 101)
    add_call(trace, root, 0, first=50, last=100)
    assert session_cautions(trace.session(), has_warmup=False) == []
