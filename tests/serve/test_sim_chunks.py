"""Chunk shapes, byte by byte, without a server."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from agentprof.serve.sim.chunks import Frame, Heading, Shaper
from agentprof.serve.sim.profile import Profile
from agentprof.serve.sim.replies import Plan, PlannedCall
from agentprof.serve.sim.requests import understand
from agentprof.serve.sim.tokens import call_token, token_id

HEADING = Heading("chatcmpl-1", 1700000000, "simulated", "")
CALL = [call_token("bash"), '{"', "a", '": ', "1", "}"]
PLAN = Plan(
    pieces=[" Th", "ink", " Yes", ".", *CALL],
    kinds="rrcctttttt",
    calls=(PlannedCall("call_1", "bash", 4, 10),),
    steps=[1, 3, 2, 4],
    finish="tool_calls",
    random=Random(0),
)
TEXT = Plan([" One", " two", " three", " four"], "cccc", (), [1, 2, 1], "stop", Random(0))


def frames(plan: Plan = PLAN, body: dict[str, Any] | None = None, path: str = "chat", **stream: Any) -> list[Frame]:
    asked_body = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi"} | (body or {})
    asked = understand(asked_body, "simulated", is_chat=path == "chat")
    profile = Profile.model_validate({"stream": stream})
    ending = ({"prompt_tokens": 4, "completion_tokens": len(plan.pieces)}, {"timings": {"prompt_n": 4}})
    shaper = Shaper(plan, asked, profile.stream, profile.reasoning_field, HEADING, lambda: ending)
    found, at = shaper.open(), 0
    for length in plan.steps:
        found += shaper.step(at, at + length)
        at += length
    return found + shaper.finish()


def kinds(found: list[Frame]) -> str:
    return "".join(frame.kind for frame in found)


def parse(frame: Frame) -> Any:
    assert frame.data.startswith(b"data: ")
    assert frame.data.endswith(b"\n\n")
    return json.loads(frame.data[6:])


def deltas(found: list[Frame]) -> list[dict[str, Any]]:
    return [parse(frame)["choices"][0]["delta"] for frame in found if frame.kind in "rcthof"]


def test_the_exact_bytes_of_a_plain_stream() -> None:
    head = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"simulated",'
    tail = b',"logprobs":null,"finish_reason":null}]}\n\n'
    assert [frame.data for frame in frames(TEXT)] == [
        head + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""}' + tail,
        head + b'"choices":[{"index":0,"delta":{"content":" One"}' + tail,
        head + b'"choices":[{"index":0,"delta":{"content":" two three"}' + tail,
        head + b'"choices":[{"index":0,"delta":{"content":" four"}' + tail,
        head
        + b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"timings":{"prompt_n":4}}\n\n',
        b"data: [DONE]\n\n",
    ]


def test_one_chunk_a_step_split_where_the_kind_changes() -> None:
    found = frames()
    assert [(frame.kind, frame.tokens) for frame in found] == [
        ("o", 0), ("r", 1), ("r", 1), ("c", 2), ("t", 2), ("t", 4), ("f", 0), ("d", 0)
    ]  # fmt: skip
    assert deltas(found)[1:4] == [{"reasoning": " Th"}, {"reasoning": "ink"}, {"content": " Yes."}]
    first, second = (delta["tool_calls"][0] for delta in deltas(found)[4:6])
    assert first == {
        "index": 0, "id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"'}
    }  # fmt: skip
    assert second == {"index": 0, "function": {"arguments": 'a": 1}'}}


def test_one_chunk_a_token() -> None:
    found = frames(tokens_per_chunk="token")
    assert [frame.tokens for frame in found if frame.tokens] == [1] * 10
    assert deltas(found)[5]["tool_calls"][0]["function"] == {"name": "bash", "arguments": ""}


def test_a_fixed_number_of_tokens_a_chunk_crosses_steps() -> None:
    found = frames(TEXT, tokens_per_chunk=3)
    assert [(parse(frame)["choices"][0]["delta"].get("content"), frame.tokens) for frame in found if frame.tokens] == [
        (" One two three", 3),
        (" four", 1),
    ]


@pytest.mark.parametrize(
    ("role", "expected"),
    [("first_token", "occcfd"), ("at_once", "occcfd"), ("merged", "cccfd"), ("none", "cccfd")],
)
def test_role_styles(role: str, expected: str) -> None:
    found = frames(TEXT, role=role)
    assert kinds(found) == expected
    spoken = [delta.get("role") for delta in deltas(found)]
    assert spoken.count("assistant") == (0 if role == "none" else 1)
    if role == "merged":
        assert deltas(found)[0] == {"role": "assistant", "content": " One"}


def test_the_role_goes_at_once_or_with_the_first_token() -> None:
    asked = understand({"messages": [{"role": "user", "content": "Hi"}]}, "simulated", is_chat=True)
    for role, at_open in (("at_once", "o"), ("first_token", "")):
        stream = Profile.model_validate({"stream": {"role": role}}).stream
        shaper = Shaper(TEXT, asked, stream, "reasoning", HEADING, lambda: ({}, {}))
        assert kinds(shaper.open()) == at_open
        assert kinds(shaper.step(0, 1)) == ("c" if at_open else "oc")


def test_a_withheld_call_comes_whole_and_late() -> None:
    found = frames(tool_calls="whole")
    assert [(frame.kind, frame.tokens) for frame in found][3:] == [("c", 2), ("t", 6), ("f", 0), ("d", 0)]
    assert deltas(found)[4]["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"a": 1}'}


@pytest.mark.parametrize("how", [{"stream": {"empty_deltas": True}}, {"body": {"return_token_ids": True}}])
def test_withheld_steps_can_show_themselves_empty(how: dict[str, Any]) -> None:
    found = frames(body=how.get("body"), tool_calls="whole", usage="every_chunk", **how.get("stream", {}))
    assert [(frame.kind, frame.tokens) for frame in found][4:6] == [("h", 2), ("t", 4)]
    hidden = parse(found[4])
    assert hidden["choices"][0]["delta"] == {}
    assert hidden["usage"]["completion_tokens"] == 6
    assert parse(found[5])["usage"]["completion_tokens"] == 10


def test_token_ids_go_with_every_chunk_and_are_the_tokens() -> None:
    found = frames(body={"return_token_ids": True})
    ids = [number for frame in found if frame.tokens for number in parse(frame)["choices"][0]["token_ids"]]
    assert ids == [token_id(piece) for piece in PLAN.pieces]
    assert len(parse(found[0])["prompt_token_ids"]) == 4


@pytest.mark.parametrize(
    ("usage", "options", "expected"),
    [
        ("requested", {}, "occcfd"),
        ("requested", {"include_usage": True}, "occcfud"),
        ("final", {}, "occcfud"),
        ("none", {"include_usage": True}, "occcfd"),
        ("last_chunk", {}, "occcfd"),
    ],
)
def test_usage_styles(usage: str, options: dict[str, Any], expected: str) -> None:
    found = frames(TEXT, body={"stream_options": options}, usage=usage)
    assert kinds(found) == expected
    told = [(frame.kind, parse(frame)["usage"]) for frame in found[:-1] if "usage" in parse(frame)]
    wanted = {"u": "u", "none": "", "last_chunk": "f"}.get(usage, "u" if "u" in expected else "")
    assert [kind for kind, _ in told] == list(wanted)
    if "u" in expected:
        assert parse(found[-2])["choices"] == []


def test_the_report_stands_beside_the_usage_or_on_the_last_chunk() -> None:
    assert "timings" in parse(frames(TEXT, usage="final")[-2])
    assert "timings" in parse(frames(TEXT, usage="last_chunk")[-2])
    assert "timings" in parse(frames(TEXT, usage="none")[-2])
    assert "timings" in parse(frames(TEXT, usage="none", finish="last_token")[-2])


def test_usage_on_every_chunk_grows_and_ends_in_a_usage_chunk() -> None:
    asked = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    for found in (frames(TEXT, usage="every_chunk"), frames(TEXT, body=asked)):
        counts = [parse(frame)["usage"]["completion_tokens"] for frame in found[:-1]]
        assert counts == [0, 1, 3, 4, 4, 4]


@pytest.mark.parametrize(
    ("finish", "expected", "reasons"),
    [
        ("own_chunk", "orrcttfd", ["tool_calls"]),
        ("last_token", "orrcttd", ["tool_calls"]),
        ("twice", "orrcttffd", ["tool_calls", "stop"]),
        ("none", "orrcttd", []),
    ],
)
def test_finish_styles(finish: str, expected: str, reasons: list[str]) -> None:
    found = frames(finish=finish)
    assert kinds(found) == expected
    told = [parse(frame)["choices"][0]["finish_reason"] for frame in found[:-1]]
    assert [reason for reason in told if reason] == reasons


def test_done_may_be_missing() -> None:
    assert frames(TEXT)[-1].data == b"data: [DONE]\n\n"
    assert kinds(frames(TEXT, done=False)) == "occcf"


def test_the_reasoning_key_can_be_named() -> None:
    assert deltas(frames(reasoning_field="reasoning_content"))[1] == {"reasoning_content": " Th"}


def test_text_completions_carry_text() -> None:
    found = frames(TEXT, path="text", usage="final")
    assert kinds(found) == "cccfud"
    choices = [parse(frame)["choices"] for frame in found[:-1]]
    assert [choice[0]["text"] for choice in choices[:-1]] == [" One", " two three", " four", ""]
    assert choices[-1] == []
    assert parse(found[0])["object"] == "text_completion"


def test_a_reply_without_tokens_still_has_role_and_finish() -> None:
    empty = Plan([], "", (), [], "stop", Random(0))
    for finish in ("own_chunk", "last_token"):
        assert kinds(frames(empty, finish=finish)) == "ofd"


def test_two_calls_have_two_indices() -> None:
    calls = (PlannedCall("call_1", "bash", 0, 6), PlannedCall("call_2", "bash", 6, 12))
    plan = Plan(CALL * 2, "t" * 12, calls, [1, 11], "tool_calls", Random(0))
    for style in ("streamed", "whole"):
        parts = [delta["tool_calls"][0] for delta in deltas(frames(plan, tool_calls=style)) if "tool_calls" in delta]
        texts = ["".join(p["function"]["arguments"] for p in parts if p["index"] == number) for number in (0, 1)]
        assert texts == ['{"a": 1}', '{"a": 1}']
        assert [part["id"] for part in parts if "id" in part] == ["call_1", "call_2"]
