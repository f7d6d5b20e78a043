"""Each fault of the simulated server, as a raw client meets it."""

from __future__ import annotations

import socket
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sim_wire import MS, Answer, ask, chat, connect, get, receive, send, serving

from agentprof.serve.sim.faults import choose_fault
from agentprof.serve.sim.profile import Fault, Profile

WHOLE = chat(stream=False, stream_options=None)


def fault(kind: str, **more: Any) -> dict[str, Any]:
    return {"faults": [{"kind": kind, "requests": [1]} | more]}


@pytest.mark.parametrize(
    ("status", "retry_after", "kind"),
    [(500, None, "InternalServerError"), (503, 2, "ServiceUnavailableError"), (429, "3600", "RateLimitError")],
)
def test_an_http_error_with_retry_after(tmp_path: Path, status: int, retry_after: Any, kind: str) -> None:
    with serving(tmp_path, **fault("http", status=status, retry_after=retry_after)) as server:
        failed, fine = ask(server, chat()), ask(server, chat())
        first, second = server.truth(2)
    assert (failed.status, fine.status) == (status, 200)
    assert failed.headers.get("retry-after") == (None if retry_after is None else str(retry_after))
    assert failed.json["error"]["type"] == kind
    assert failed.json["error"]["code"] == status
    assert (first.status, first.fault, first.output_tokens) == (status, f"http_{status}", 0)
    assert (second.status, second.fault) == (200, "")


def test_loading_answers_503_for_the_first_requests(tmp_path: Path) -> None:
    with serving(tmp_path, engine="llama.cpp", faults=[{"kind": "loading", "first": 2}]) as server:
        health = [get(server, "/health").status]
        answers = [ask(server, chat()) for _ in range(3)]
        health.append(get(server, "/health").status)
        faults = [truth.fault for truth in server.truth(3)]
    assert [answer.status for answer in answers] == [503, 503, 200]
    assert answers[0].json == {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    assert faults == ["loading", "loading", ""]
    assert health == [503, 200]


def test_loading_can_last_for_a_time(tmp_path: Path) -> None:
    with serving(tmp_path, time_scale=100, faults=[{"kind": "loading", "until": "40s"}]) as server:
        assert ask(server, chat()).status == 503
        statuses = []
        while not statuses or statuses[-1] == 503:
            statuses.append(ask(server, chat()).status)
    assert statuses[-1] == 200


@pytest.mark.parametrize("body", [chat(), WHOLE], ids=["stream", "whole"])
def test_a_dropped_connection_says_nothing(tmp_path: Path, body: dict[str, Any]) -> None:
    with serving(tmp_path, **fault("drop")) as server:
        dropped, fine = ask(server, body), ask(server, body)
        first = server.truth(2)[0]
    assert dropped.raw == b""
    assert fine.status == 200
    assert (first.fault, first.status, first.disconnected_ns) == ("drop", 0, 0)


def test_a_stream_breaks_off_after_so_many_tokens(tmp_path: Path) -> None:
    with serving(tmp_path, **fault("disconnect", after_tokens=5)) as server:
        broken, fine = ask(server, chat()), ask(server, chat())
        first = server.truth(2)[0]
    assert not broken.is_whole
    assert not broken.finishes
    assert sum("content" in delta and delta["content"] != "" for delta in broken.deltas) == 5
    assert sum(chunk.tokens for chunk in first.chunks) == 5
    assert (first.fault, first.disconnected_ns) == ("disconnect", 0)
    assert fine.is_whole


def test_a_whole_answer_breaks_off_before_it_begins(tmp_path: Path) -> None:
    with serving(tmp_path, **fault("disconnect", after_tokens=5)) as server:
        assert ask(server, WHOLE).raw == b""


def test_a_broken_stream_frees_its_slot(tmp_path: Path) -> None:
    with serving(tmp_path, slots=1, **fault("disconnect", after_tokens=3)) as server:
        ask(server, chat())
        assert ask(server, chat()).is_whole


@pytest.mark.parametrize("after", [0, 4])
def test_a_stall_holds_the_stream_for_its_duration(tmp_path: Path, after: int) -> None:
    with serving(tmp_path, **fault("stall", after_tokens=after, duration="300ms")) as server:
        answer = ask(server, chat())
        [truth] = server.truth(1)
    assert answer.is_whole
    assert answer.usage["completion_tokens"] == 12
    stamps = [truth.prefill_start_ns] + [chunk.at_ns for chunk in truth.token_chunks]
    gaps = [after_ns - before_ns for before_ns, after_ns in pairwise(stamps)]
    assert gaps.index(max(gaps)) == after
    assert max(gaps) >= 300 * MS
    assert truth.fault == "stall"


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    with serving(tmp_path, **fault("hang")) as server:
        with connect(server) as open_socket:
            send(open_socket, "POST", "/v1/chat/completions", chat())
            open_socket.settimeout(0.3)
            with pytest.raises(TimeoutError):
                open_socket.recv(1)
        assert ask(server, chat()).status == 200
        truths = {truth.number: truth for truth in server.truth(2)}
    assert truths[1].fault == "hang"
    assert truths[1].disconnected_ns - truths[1].body_ns >= 250 * MS
    assert truths[1].status == 0


def test_a_malformed_line_stands_in_the_stream_once(tmp_path: Path) -> None:
    with serving(tmp_path, **fault("malformed", after_tokens=2)) as server:
        answer = ask(server, chat())
        whole = ask(server, chat())
        first = server.truth(2)[0]
    broken = [event for event in answer.events if isinstance(event, str) and "DONE" not in event]
    assert len(broken) == 1
    assert answer.text == whole.text
    assert [chunk.kind for chunk in first.chunks][:5] == ["o", "c", "c", "m", "c"]
    with serving(tmp_path, **fault("malformed")) as server, pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        assert ask(server, WHOLE).json


def test_an_error_event_inside_a_200(tmp_path: Path) -> None:
    with serving(tmp_path, **fault("error_event", after_tokens=3)) as server:
        answer = ask(server, chat())
        [truth] = server.truth(1)
    assert answer.status == 200
    assert answer.is_whole
    assert answer.events[-2]["error"]["code"] == 500
    assert "".join(chunk.kind for chunk in truth.chunks) == "occced"
    assert not answer.finishes
    with serving(tmp_path, **fault("error_event", after_tokens=3)) as server:
        assert ask(server, WHOLE).status == 500


def test_a_fault_that_is_never_reached_did_not_happen(tmp_path: Path) -> None:
    with serving(tmp_path, **fault("disconnect", after_tokens=500)) as server:
        assert ask(server, chat()).is_whole
        assert server.truth(1)[0].fault == ""


def test_faults_are_drawn_by_seed_and_number_at_their_rate() -> None:
    faults = (Fault(kind="drop", rate=0.2), Fault(kind="http", requests=(3,)))

    def drawn(seed: int) -> list[str]:
        found = [choose_fault(faults, seed, number, age_ns=1e12) for number in range(1, 1001)]
        return [one.kind if one else "" for one in found]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 150 < drawn(1).count("drop") < 250
    assert {drawn(seed)[2] for seed in range(20)} == {"drop", "http"}


def test_a_cut_request_is_nobodys_error(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with connect(server) as open_socket:
            open_socket.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            open_socket.shutdown(socket.SHUT_WR)
            assert isinstance(receive(open_socket, 0), Answer)
        assert ask(server, chat()).is_whole


def test_a_profile_without_faults_has_none() -> None:
    assert choose_fault(Profile().faults, 0, 1, 0.0) is None
