"""What the simulated model answers: lengths, kinds, scripts, tool calls, determinism."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_wire import TOOL, chat

from agentprof.serve.sim.profile import Profile
from agentprof.serve.sim.replies import Plan, plan_reply
from agentprof.serve.sim.requests import Refused, check_context, understand


def plan(body: dict[str, Any], seed: int = 0, **profile: Any) -> Plan:
    made = Profile.model_validate(profile)
    return plan_reply(understand(body, made.model, is_chat="messages" in body), made, seed)


@given(
    st.integers(1, 400),
    st.sampled_from([{"ignore_eos": True}, {"ignore_eos": None, "min_tokens": 400}]),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from(["", "none", "required"]),
)
def test_a_forced_length_is_exact(tokens: int, how: dict[str, Any], share: float, speculates: bool, tools: str) -> None:
    offered = {"tools": [TOOL], "tool_choice": tools} if tools else {}
    profile: dict[str, Any] = {"output": {"reasoning_share": share, "call_probability": 0.5}}
    if speculates:
        profile["speculation"] = {"draft_tokens": 4, "acceptance_length": 3}
    made = plan(chat(max_tokens=tokens, **how, **offered), **profile)
    assert len(made.pieces) == len(made.kinds) == sum(made.steps) == tokens
    assert made.steps[0] == 1
    assert made.kinds == "".join(sorted(made.kinds, key="rct".index))
    if not tools:
        assert made.finish == "length"


def test_drafts_are_accepted_less_in_chats_where_the_profile_says_so() -> None:
    asked = {"max_tokens": 1281, "ignore_eos": True}
    drafts: dict[str, Any] = {"draft_tokens": 7, "acceptance_length": 7.58, "chat_acceptance_length": 5}
    in_chat = plan(chat() | asked, speculation=drafts)
    elsewhere = plan({"prompt": "once upon", "stream": True} | asked, speculation=drafts)
    assert 1280 / (len(in_chat.steps) - 1) == pytest.approx(5, rel=0.02)
    assert 1280 / (len(elsewhere.steps) - 1) == pytest.approx(7.58, rel=0.02)


def test_equal_requests_get_equal_replies_and_another_seed_another() -> None:
    body = chat(ignore_eos=None, max_tokens=None)
    first, again, other = plan(body), plan(body), plan(body, seed=1)
    assert (first.pieces, first.steps) == (again.pieces, again.steps)
    assert first.pieces != other.pieces
    assert plan(body | {"seed": 5}).pieces != first.pieces
    streamed = plan(body | {"stream": False, "stream_options": None})
    assert streamed.pieces == first.pieces  # how it is sent doesn't change what is sent


def test_a_natural_length_is_within_its_bounds_and_stops() -> None:
    lengths = set()
    for number in range(30):
        made = plan(chat(f"Question {number}", ignore_eos=None, max_tokens=None), output={"tokens": [20, 30]})
        assert made.finish == "stop"
        lengths.add(len(made.pieces))
    assert lengths <= set(range(20, 31))
    assert len(lengths) > 3
    assert plan(chat(ignore_eos=None, max_tokens=15), output={"tokens": [20, 30]}).finish == "length"
    longer = plan(chat(ignore_eos=None, max_tokens=90, min_tokens=50), output={"tokens": [20, 30]})
    assert (len(longer.pieces), longer.finish) == (50, "stop")


def test_reasoning_is_a_share_or_a_count_and_can_be_switched_off() -> None:
    assert plan(chat(max_tokens=100), output={"reasoning_share": 0.8}).reasoning_tokens == 80
    assert plan(chat(max_tokens=100), output={"reasoning_tokens": 30}).reasoning_tokens == 30
    assert plan(chat(max_tokens=20), output={"reasoning_tokens": 30}).kinds == "r" * 20
    for off in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert plan(chat(max_tokens=100, **off), output={"reasoning_share": 0.8}).reasoning_tokens == 0


def test_a_script_is_followed_by_turn_and_by_what_was_said() -> None:
    replies = [
        {"turn": 0, "reasoning": "Run it.", "text": "Running.", "calls": [{"bash": {"command": "pytest -q"}}]},
        {"when": "passed", "text": "All tests pass."},
    ]
    natural = {"ignore_eos": None, "max_tokens": None, "tools": [TOOL]}
    first = plan(chat(**natural), replies=replies)
    assert (first.text("r"), first.text("c"), first.finish) == ("Run it.", "Running.", "tool_calls")
    assert [(call.name, json.loads(first.arguments(call))) for call in first.calls] == [
        ("bash", {"command": "pytest -q"})
    ]
    messages = [*chat()["messages"], {"role": "assistant", "content": "x"}, {"role": "tool", "content": "3 passed"}]
    assert plan(chat(**natural) | {"messages": messages}, replies=replies).text("c") == "All tests pass."
    messages[-1] = {"role": "tool", "content": "1 failed"}
    drawn = plan(chat(**natural) | {"messages": messages}, replies=replies)
    assert drawn.text("c") not in ("Running.", "All tests pass.")
    assert not plan(chat(**natural, tool_choice="none"), replies=replies).calls


def test_a_scripted_reply_is_padded_to_its_tokens() -> None:
    made = plan(chat(ignore_eos=None, max_tokens=None), replies=[{"text": "Short.", "tokens": 40}])
    assert len(made.pieces) == 40
    assert made.text("c").startswith("Short.")


def test_calls_are_made_where_asked_for_with_arguments_that_fit() -> None:
    body = chat(ignore_eos=None, max_tokens=None, tools=[TOOL])
    assert not plan(body).calls
    for choice in ("required", {"type": "function", "function": {"name": "bash"}}):
        made = plan(body | {"tool_choice": choice})
        [call] = made.calls
        arguments = json.loads(made.arguments(call))
        assert made.finish == "tool_calls"
        assert isinstance(arguments["command"], str)
        assert 2 <= arguments["times"] <= 5
    assert plan(body, output={"call_probability": 1.0}).calls
    two = [{"calls": [{"bash": {"command": "a"}}, {"bash": {"command": "b"}}, {"absent": {}}]}]
    assert [call.name for call in plan(body, replies=two).calls] == ["bash", "bash"]


def test_a_call_cut_by_the_limit_is_truncated_and_says_length() -> None:
    made = plan(chat(ignore_eos=None, max_tokens=6, tools=[TOOL], tool_choice="required"), output={"tokens": 1})
    assert made.finish == "length"
    assert len(made.pieces) == 6
    with pytest.raises(json.JSONDecodeError):
        json.loads(made.arguments(made.calls[-1]))


def test_the_context_limits_the_reply_where_no_limit_is_asked() -> None:
    body = chat(ignore_eos=True, max_tokens=None)
    made = plan(body, context_tokens=60)
    assert len(made.pieces) == 60 - len(understand(body, "simulated", is_chat=True).prompt)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (chat(model="gpt-9"), 404, "does not exist"),
        (chat(messages=[]), 400, "messages"),
        (chat(n=2), 400, "n=1"),
        (chat(max_tokens=0), 400, "at least 1, got 0"),
        (chat(max_tokens="many"), 400, "integer"),
        ({"model": "simulated", "prompt": ["a", "b"]}, 400, "one text"),
        ({"model": "simulated"}, 400, "prompt"),
    ],
)
def test_what_servers_refuse_is_refused(body: dict[str, Any], status: int, words: str) -> None:
    with pytest.raises(Refused) as caught:
        understand(body, "simulated", is_chat="messages" in body)
    assert caught.value.status == status
    assert words in caught.value.message


def test_the_context_error_is_the_engines_own() -> None:
    long = understand(chat("word " * 500, max_tokens=50), "simulated", is_chat=True)
    with pytest.raises(Refused, match=r"maximum context length is 400 tokens.*input tokens"):
        check_context(long, 400, "vllm")
    with pytest.raises(Refused, match=r"maximum context length is 520 tokens. However, you requested 55\d tokens"):
        check_context(long, 520, "vllm")
    check_context(long, 1000, "vllm")
    with pytest.raises(Refused, match="exceeds the available context size") as caught:
        check_context(long, 400, "llama.cpp")
    assert caught.value.kind == "exceed_context_size_error"
    assert caught.value.extra["n_ctx"] == 400
    check_context(long, 520, "llama.cpp")


def test_a_text_prompt_may_be_token_ids_of_any_model() -> None:
    asked = understand({"prompt": [5, 151_000, 99, 4], "max_tokens": 3}, "simulated", is_chat=False)
    assert len(asked.prompt) == 4
    assert understand({"prompt": "a b c"}, "simulated", is_chat=False).max_tokens == 16
