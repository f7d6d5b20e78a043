"""Each rule of the ledger on a span tree written by hand, exact."""

from __future__ import annotations

import pytest
from handwritten import MS, Trace, add_call

from agentprof import semconv
from agentprof.analysis.ledger import LEDGER_ROWS, critical_path


def test_a_session_without_spans_is_unattributed() -> None:
    trace = Trace()
    trace.add(None, "invoke_agent fix", 0, 10)
    rows = trace.session().ledger.rows
    assert rows == dict.fromkeys(LEDGER_ROWS, 0) | {"unattributed": 10 * MS}


def test_the_last_finisher_of_parallel_tools_owns_the_time() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 12_000)
    step = trace.add(root, "step 1", 0, 12_000)
    trace.add(step, "execute_tool a", 0, 10_000)
    trace.add(step, "execute_tool b", 2_000, 12_000)
    assert trace.ledger_ms() == {"tool": 12_000}
    assert trace.session().ledger.splits["tool"] == {"b": 10_000 * MS, "a": 2_000 * MS}


def test_among_spans_that_outlast_the_cursor_the_last_finisher_owns_the_time() -> None:
    """When c starts at 80, a and b both run: b, which ends later, owns 10–80, and a what is before it."""
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 100)
    trace.add(root, "execute_tool a", 0, 90)
    trace.add(root, "execute_tool b", 10, 95)
    trace.add(root, "execute_tool c", 80, 100)
    assert trace.session().ledger.splits["tool"] == {"b": 70 * MS, "c": 20 * MS, "a": 10 * MS}


def test_every_leaf_goes_to_its_row() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 200)
    trace.add(root, "think", 0, 20)
    step = trace.add(root, "step 1", 20, 190)
    trace.add(step, "prepare", 20, 22)
    add_call(trace, step, 22, first=50, last=100)
    trace.add(step, "parse", 101, 103)
    trace.add(step, "dispatch", 103, 104)
    trace.add(step, "execute_tool bash", 104, 180)
    trace.add(step, "dispatch", 180, 182)
    assert trace.ledger_ms() == {
        "connect": 1,
        "network": 1,
        "first_token_wait": 26,
        "decode": 50,
        "tail": 1,
        "tool": 76,
        "agent": 7,
        "think": 20,
        "unattributed": 18,
    }
    splits = trace.session().ledger.splits
    assert splits["agent"] == {"dispatch": 3 * MS, "parse": 2 * MS, "prepare": 2 * MS}
    assert trace.session().ledger.model_time_ns == 79 * MS


def test_the_wait_is_split_into_what_was_reported() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 101)
    reported = {
        semconv.RTT_NS: 2 * MS,
        semconv.GATEWAY_NS: 3 * MS,
        semconv.QUEUE_NS: 10 * MS,
        semconv.PREFILL_NS: 20 * MS,
    }
    add_call(trace, root, 0, reported, first=50, last=100)
    assert trace.ledger_ms() == {
        "connect": 1,
        "network": 3,
        "gateway": 3,
        "queue": 10,
        "prefill": 20,
        "first_token_wait": 13,
        "decode": 50,
        "tail": 1,
    }


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({semconv.RTT_NS: 30 * MS, semconv.PREFILL_NS: 45 * MS}, {"network": 1 + 3, "prefill": 45}),
        ({semconv.QUEUE_NS: 30 * MS, semconv.PREFILL_NS: 500 * MS}, {"network": 1, "prefill": 48}),
        ({semconv.QUEUE_NS: -5, semconv.PREFILL_NS: 8 * MS}, {"network": 1, "prefill": 8, "first_token_wait": 40}),
    ],
)
def test_reported_times_never_exceed_the_wait(reported: dict[str, int], expected: dict[str, float]) -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 101)
    add_call(trace, root, 0, reported, first=50, last=100)
    assert trace.ledger_ms() == {"connect": 1, "decode": 50, "tail": 1} | expected


def test_a_wait_that_is_partly_off_the_path_keeps_its_place_in_time() -> None:
    """The wait of the second call, 10–60, holds queue 10–30 and prefill 30–55; a think span owns it from 40 on."""
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 100)
    chat = trace.add(root, "chat small", 10, 60, {semconv.QUEUE_NS: 20 * MS, semconv.PREFILL_NS: 25 * MS})
    trace.add(chat, "first_token_wait", 10, 60)
    trace.add(root, "think", 40, 100)
    assert trace.ledger_ms() == {"queue": 20, "prefill": 10, "think": 60, "unattributed": 10}


def test_what_no_call_reports_is_none_and_what_one_reports_is_a_number() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 202)
    add_call(trace, root, 0, first=50, last=100)
    rows = trace.session().ledger.rows
    assert [row for row in LEDGER_ROWS if rows[row] is None] == ["gateway", "queue", "prefill", "agent"]
    assert rows["first_token_wait"] == 48 * MS
    add_call(trace, root, 101, {semconv.QUEUE_NS: 0, semconv.PREFILL_NS: 5 * MS}, first=151, last=201)
    rows = trace.session().ledger.rows
    assert (rows["gateway"], rows["queue"], rows["prefill"]) == (None, 0, 5 * MS)


def test_network_is_none_without_a_round_trip_and_a_send() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 100)
    chat = trace.add(root, "chat small", 0, 100)
    trace.add(chat, "first_token_wait", 0, 40)
    trace.add(chat, "decode", 40, 100)
    rows = trace.session().ledger.rows
    assert (rows["network"], rows["connect"], rows["tail"], rows["generation"]) == (None, None, 0, 0)


def test_buffered_calls_leave_decode_and_prefill_unmeasured() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 102)
    chat = trace.add(root, "chat small", 0, 102, {semconv.FLAGS: ["buffered"], semconv.PREFILL_NS: 50 * MS})
    trace.add(chat, "connect", 0, 1)
    trace.add(chat, "send", 1, 2)
    trace.add(chat, "generation", 2, 100)
    trace.add(chat, "tail", 100, 102)
    rows = trace.session().ledger.rows
    assert rows["generation"] == 98 * MS
    assert [rows[row] for row in ("queue", "prefill", "first_token_wait", "decode")] == [None] * 4


def test_a_call_without_spans_below_is_unattributed_and_nothing_of_it_is_measured() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 100)
    trace.add(root, "chat small", 10, 90)
    rows = trace.session().ledger.rows
    assert rows["unattributed"] == 100 * MS
    assert [rows[row] for row in ("connect", "network", "first_token_wait", "decode", "generation", "tail")] == [
        None
    ] * 6


def test_failed_attempts_and_back_off_are_retry() -> None:
    """500 after .1 s, a wait of 2 s, then the first token at +.3."""
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 3_000)
    chat = trace.add(root, "chat small", 0, 3_000, {semconv.ATTEMPTS: 2, semconv.TTFT_NS: 300 * MS})
    failed = trace.add(chat, "attempt 1", 0, 100, error="HTTP 500")
    trace.add(failed, "connect", 0, 60)
    trace.add(failed, "first_token_wait", 60, 100)
    trace.add(chat, "backoff", 100, 2_100)
    good = trace.add(chat, "attempt 2", 2_100, 3_000)
    trace.add(good, "connect", 2_100, 2_110)
    trace.add(good, "send", 2_110, 2_120)
    trace.add(good, "first_token_wait", 2_120, 2_400)
    trace.add(good, "decode", 2_400, 2_990)
    trace.add(good, "tail", 2_990, 3_000)
    assert trace.ledger_ms() == {
        "connect": 10,
        "network": 10,
        "first_token_wait": 280,
        "decode": 590,
        "tail": 10,
        "retry": 2_100,
    }


def test_a_call_whose_every_attempt_failed_spent_nothing_elsewhere() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 100)
    chat = trace.add(root, "chat small", 0, 100, {semconv.ERROR_KIND: "refused"}, error="refused")
    trace.add(chat, "attempt 1", 0, 100, error="refused")
    rows = trace.session().ledger.rows
    assert (rows["retry"], rows["connect"], rows["decode"]) == (100 * MS, 0, 0)
    assert (rows["queue"], rows["prefill"]) == (None, None)


def test_overlapping_calls_share_the_time_by_the_last_finisher() -> None:
    """The first call's decode, 20–80, is owned up to 50, where the second call starts."""
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 120)
    first = trace.add(
        root,
        "chat small",
        0,
        80,
        {semconv.DECODE_REASONING_NS: 20 * MS, semconv.DECODE_ANSWER_NS: 40 * MS, semconv.TTFT_NS: 20 * MS},
    )
    trace.add(first, "first_token_wait", 0, 20)
    trace.add(first, "decode", 20, 80)
    second = trace.add(root, "chat small", 50, 120)
    trace.add(second, "generation", 50, 120)
    assert trace.ledger_ms() == {"first_token_wait": 20, "decode": 30, "generation": 70}
    assert trace.session().ledger.splits["decode"] == {
        "reasoning": 10 * MS,
        "answer": 20 * MS,
        "tool_call": 0,
        "hidden": 0,
    }


def test_connect_is_split_in_order_of_time() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 100)
    chat = trace.add(root, "chat small", 0, 100, {semconv.POOL_WAIT_NS: 10 * MS})
    phases = {semconv.DNS_NS: 5 * MS, semconv.TCP_NS: 6 * MS, semconv.TLS_NS: 7 * MS}
    trace.add(chat, "connect", 0, 30, phases)
    trace.add(chat, "generation", 30, 100)
    ledger = trace.session().ledger
    assert ledger.rows["connect"] == 30 * MS
    assert ledger.splits["connect"] == {"pool_wait": 10 * MS, "dns": 5 * MS, "tcp": 6 * MS, "tls": 7 * MS}


def test_splits_of_what_is_not_measured_are_none() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 100)
    add_call(trace, root, 0, first=50, last=98)
    splits = trace.session().ledger.splits
    assert splits["connect"] == {"pool_wait": None, "dns": 0, "tcp": 0, "tls": 0}
    assert splits["decode"] == {"reasoning": None, "answer": None, "tool_call": None, "hidden": None}
    assert splits["tool"] == {}


def test_children_are_clipped_to_their_parent() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 10, 100)
    step = trace.add(root, "step 1", 20, 60)
    trace.add(step, "execute_tool bash", 0, 150)
    trace.add(root, "execute_tool late", 90, 300)
    trace.add(root, "execute_tool elsewhere", 300, 400)
    assert trace.ledger_ms() == {"tool": 50, "unattributed": 40}
    assert trace.session().ledger.splits["tool"] == {"bash": 40 * MS, "late": 10 * MS}


def test_empty_and_backward_spans_own_nothing() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 100)
    trace.add(root, "execute_tool empty", 50, 50)
    trace.add(root, "execute_tool backward", 80, 20)
    trace.add(root, "execute_tool real", 40, 60)
    assert trace.ledger_ms() == {"tool": 20, "unattributed": 80}


def test_a_session_that_ends_before_it_starts_has_no_time() -> None:
    trace = Trace()
    trace.add(None, "invoke_agent fix", 100, 0)
    assert trace.session().wall_ns == 0
    assert trace.ledger_ms() == {}


def test_spans_of_servers_and_gateways_take_no_part() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 101)
    chat = add_call(trace, root, 0, first=50, last=100)
    alone = trace.ledger_ms()
    gateway = trace.add(chat, "litellm_request", 2, 101, kind="server")
    trace.add(gateway, "chat small", 3, 100, kind="client")
    server = trace.add(chat, "llm_request", 3, 99, kind="server")
    trace.add(server, "decode", 3, 99)
    trace.add(chat, "decode", 3, 99, kind="server")
    trace.add(root, "workflow", 0, 101)
    assert trace.ledger_ms() == alone
    assert len(trace.session().calls) == 1


def test_a_tool_owns_what_its_sub_agent_leaves() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent lead", 0, 100)
    tool = trace.add(root, "execute_tool task", 0, 100)
    agent = trace.add(tool, "invoke_agent helper", 10, 90)
    chat = trace.add(agent, "chat small", 20, 80)
    trace.add(chat, "generation", 20, 80)
    assert trace.ledger_ms() == {"generation": 60, "tool": 20, "unattributed": 20}
    assert len(trace.session().calls) == 1


def test_parallel_sub_agents_are_walked_from_the_last_finisher() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent lead", 0, 100)
    early = trace.add(root, "invoke_agent early", 0, 70)
    trace.add(early, "execute_tool a", 0, 70)
    late = trace.add(root, "invoke_agent late", 30, 100)
    trace.add(late, "think", 40, 100)
    assert trace.ledger_ms() == {"tool": 30, "think": 60, "unattributed": 10}


def test_the_path_covers_the_session_without_gap_or_overlap() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 100)
    trace.add(root, "execute_tool a", 10, 40)
    trace.add(root, "execute_tool b", 30, 60)
    path = critical_path(trace.session().tree)
    assert [(part.span.name, part.start_ns // MS, part.end_ns // MS) for part in path] == [
        ("invoke_agent fix", 0, 10),
        ("execute_tool a", 10, 30),
        ("execute_tool b", 30, 60),
        ("invoke_agent fix", 60, 100),
    ]


def test_spans_that_are_each_others_parents_end() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 10)
    step = trace.add(root, "step 1", 0, 10)
    trace.add(step, "execute_tool bash", 0, 10)
    looped = [span for span in trace.spans if span.ref != root]
    first, second = looped
    trace.spans[1] = type(first)(first.ref, second.ref, first.name, first.start_ns, first.end_ns)
    assert trace.ledger_ms() == {"unattributed": 10}


def test_a_session_below_its_own_child_ends() -> None:
    trace = Trace()
    root = trace.add(None, "invoke_agent fix", 0, 10)
    step = trace.add(root, "step 1", 0, 10)
    trace.add(step, "execute_tool bash", 0, 8)
    first = trace.spans[0]
    trace.spans[0] = type(first)(first.ref, step, first.name, first.start_ns, first.end_ns)
    assert trace.ledger_ms() == {"tool": 8, "unattributed": 2}
