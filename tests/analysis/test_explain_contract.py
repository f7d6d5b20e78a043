"""`explain --json`: exact key sets, null where nothing was measured, and numbers that add up."""

from __future__ import annotations

import json

from handwritten import MS, Trace, add_call

from agentprof import semconv
from agentprof.analysis.explain import explain
from agentprof.analysis.ledger import LEDGER_ROWS

SESSION = {
    "scenario",
    "backend",
    "repetition",
    "warmup",
    "outcome",
    "checks_passed",
    "wall_ns",
    "model_time_ns",
    "output_tokens",
    "output_tokens_source",
    "ledger",
    "splits",
    "rates",
    "client_lag_p99_ns",
    "cautions",
    "calls",
}
CALL = {
    "step",
    "wall_ns",
    "pool_wait_ns",
    "connect_ns",
    "send_ns",
    "ttft_ns",
    "ttfo_ns",
    "first_event_ns",
    "decode_ns",
    "tail_ns",
    "retry_ns",
    "rtt_ns",
    "gateway_ns",
    "server",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "output_tokens_source",
    "reasoning_tokens",
    "first_read_tokens",
    "peak_interval_tok_s",
    "finish",
    "tool_calls",
    "attempts",
    "error",
    "flags",
}
SERVER = {
    "source",
    "queue_ns",
    "prefill_ns",
    "decode_ns",
    "prefilled_tokens",
    "draft_tokens",
    "accepted_draft_tokens",
    "decode_steps",
}


def explained() -> dict[str, object]:
    """A session of two calls, the second failed, as JSON gives it back."""
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 300, {semconv.REPETITION: 1, semconv.OUTCOME: "failed"})
    tools = json.dumps([{"name": "bash", "arguments": {"command": "ls"}}])
    add_call(trace, root, 0, {semconv.TOOL_CALLS: tools, semconv.FLAGS: ["no_done"]}, first=50, last=100)
    failure = {semconv.ERROR_KIND: "refused", semconv.ERROR_MESSAGE: "connection refused"}
    chat = trace.add(root, "chat small", 150, 250, failure, error="connection refused")
    trace.add(chat, "attempt 1", 150, 250, error="connection refused")
    result = json.loads(json.dumps(explain({"name": "r"}, trace.spans)))
    assert isinstance(result, dict)
    return result


def test_names_are_the_contract() -> None:
    result = explained()
    assert set(result) == {"format", "run", "sessions"}
    assert result["format"] == 1
    assert result["run"] == {"name": "r", "aggregate": []}
    (session,) = result["sessions"]  # type: ignore[misc]
    assert set(session) == SESSION
    assert tuple(session["ledger"]) == LEDGER_ROWS
    assert set(session["splits"]) == {"connect", "decode", "tool", "agent"}
    assert set(session["splits"]["connect"]) == {"pool_wait", "dns", "tcp", "tls"}
    assert set(session["splits"]["decode"]) == {"reasoning", "answer", "tool_call", "hidden"}
    assert set(session["splits"]["agent"]) == {"prepare", "parse", "dispatch"}
    assert set(session["rates"]) == {"decode", "call", "agent"}
    assert [set(call) for call in session["calls"]] == [CALL, CALL]
    assert [set(call["server"]) for call in session["calls"]] == [SERVER, SERVER]


def test_values_are_numbers_where_measured_and_null_where_not() -> None:
    (session,) = explained()["sessions"]  # type: ignore[misc]
    assert sum(ns for ns in session["ledger"].values() if ns is not None) == session["wall_ns"] == 300 * MS
    assert session["ledger"]["retry"] == 100 * MS
    assert session["ledger"]["queue"] is None
    assert (session["backend"], session["checks_passed"], session["client_lag_p99_ns"]) == (None, None, None)
    assert (session["repetition"], session["warmup"], session["outcome"]) == (1, False, "failed")
    good, failed = session["calls"]
    assert good["tool_calls"] == [{"name": "bash", "arguments": {"command": "ls"}}]
    assert (good["error"], good["flags"], good["pool_wait_ns"]) == (None, ["no_done"], None)
    assert failed["error"] == {"kind": "refused", "message": "connection refused"}
    assert (failed["retry_ns"], failed["ttft_ns"], failed["decode_ns"]) == (100 * MS, None, None)


def test_a_warm_up_of_the_same_scenario_and_backend_silences_its_caution() -> None:
    spans = []
    for number, warmup in enumerate([True, False, False], start=1):
        backend = "b" if number == 3 else "a"
        attributes = {semconv.BACKEND: backend, semconv.WARMUP: warmup, semconv.MODE: "live", semconv.SCENARIO: "fix"}
        trace = Trace(number)
        root = trace.add(None, "invoke_agent fix", number * 200, number * 200 + 101, attributes)
        add_call(trace, root, number * 200, first=number * 200 + 50, last=number * 200 + 100)
        spans += trace.spans
    sessions = explain({}, spans)["sessions"]
    assert [bool(session["cautions"]) for session in sessions] == [False, False, True]


def test_sessions_that_run_together_have_an_aggregate() -> None:
    spans = []
    for number in (1, 2):
        trace = Trace(number)
        root = trace.add(None, "invoke_agent fix", 0, 110, {semconv.BACKEND: "a"})
        add_call(trace, root, 0, first=50, last=100)
        spans += trace.spans
    (group,) = explain({}, spans)["run"]["aggregate"]
    assert group == {
        "backend": "a",
        "sessions": 2,
        "peak": 2,
        "wall_ns": 110 * MS,
        "output_tokens": 22,
        "tok_s": 200.0,
    }


def test_a_run_without_spans_has_no_sessions() -> None:
    assert explain({}, []) == {"format": 1, "run": {"aggregate": []}, "sessions": []}
