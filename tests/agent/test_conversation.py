"""What is sent: nonces and their places, the recorded and the generated history, call ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_scenarios import make_scenario

from agentprof.agent.conversation import Conversation, make_nonce, scripted_calls
from agentprof.records.call import CallResult, Reply, ToolCall, Usage
from agentprof.records.scenario import Scenario

NONCE = make_nonce("seed", "tiny", 1)


def conversation(scenario: Scenario, nonce: str = NONCE, cache: Any = None, *, salt: bool = False) -> Conversation:
    return Conversation(scenario, nonce, cache or scenario.cache, has_cache_salt=salt)


def reply(content: str = "", reasoning: str = "", calls: tuple[ToolCall, ...] = ()) -> CallResult:
    assembled = Reply(content, reasoning, calls, "stop", Usage(), None, (), None, True, 0, 0, None, None, None)
    return CallResult(assembled, 8, False, 0, ())


def test_nonces_have_one_length_and_depend_on_every_part() -> None:
    nonces = {make_nonce("seed", "tiny", number, is_warmup) for number in range(200) for is_warmup in (True, False)}
    assert len(nonces) == 400
    assert {len(nonce) for nonce in nonces} == {12}
    assert all(nonce.isdecimal() for nonce in nonces)
    assert make_nonce("a", "b") == make_nonce("a", "b") != make_nonce("ab", "")


def test_production_marks_the_head_of_the_first_user_message_and_nothing_else(tmp_path: Path) -> None:
    scenario = make_scenario(tmp_path)
    one, two = conversation(scenario, "1" * 12), conversation(scenario, "2" * 12)
    for each in (one, two):
        each.add_user("Fix it.")
        each.add_user("And now?")
    assert one.tools == two.tools
    assert one.messages[0] == two.messages[0] == {"role": "system", "content": scenario.system_text}
    assert one.messages[1] == {"role": "user", "content": f"[session {'1' * 12}]\n\nFix it."}
    assert one.messages[2] == two.messages[2] == {"role": "user", "content": "And now?"}
    assert one.request(8).cache_salt is None


def test_isolated_marks_system_prompt_and_first_tool(tmp_path: Path) -> None:
    scenario = make_scenario(tmp_path)
    mine = conversation(scenario, cache="isolated")
    mine.add_user("Fix it.")
    assert mine.messages[0]["content"] == f"[session {NONCE}] {scenario.system_text}"
    descriptions = [tool["function"]["description"] for tool in mine.tools]
    assert [text.startswith(f"[session {NONCE}] ") for text in descriptions] == [True, False]
    assert mine.messages[1]["content"] == "Fix it."
    assert mine.request(8).cache_salt is None


def test_isolated_uses_the_cache_salt_where_there_is_one(tmp_path: Path) -> None:
    mine = conversation(make_scenario(tmp_path), cache="isolated", salt=True)
    mine.add_user("Fix it.")
    assert NONCE not in str((mine.messages, mine.tools))
    assert mine.request(8).cache_salt == NONCE


def test_shared_has_no_nonce(tmp_path: Path) -> None:
    mine = conversation(make_scenario(tmp_path), cache="shared", salt=True)
    mine.add_user("Fix it.")
    assert NONCE not in str((mine.messages, mine.tools, mine.request(8).cache_salt))


def test_call_ids_are_equal_in_every_session_and_unique_within(tmp_path: Path) -> None:
    step = make_scenario(tmp_path).turns[0].steps[0]
    calls = scripted_calls(step, 3)
    assert calls == scripted_calls(step, 3)
    assert [call.id for call in calls] == ["call_003_0", "call_003_1"]
    assert calls[0].id != scripted_calls(step, 4)[0].id
    assert calls[0].arguments == '{"command": "cat notes.txt"}'


def test_recorded_history_is_the_script_whatever_the_model_wrote(tmp_path: Path) -> None:
    scenario = make_scenario(tmp_path)
    first, last = scenario.turns[0].steps
    mine = conversation(scenario)
    invented = ToolCall("x", "bash", "{}", {})
    mine.add_scripted(first, scripted_calls(first, 1), reply("mumble", "hm", (invented,)))
    mine.add_scripted(last, (), reply("mumble"))
    assert mine.messages[1]["content"] == ""
    assert [call["function"]["name"] for call in mine.messages[1]["tool_calls"]] == ["bash", "read_file"]
    assert mine.messages[2] == {"role": "assistant", "content": "They hold one line."}


def test_generated_history_is_what_the_server_wrote_with_the_scripted_calls(tmp_path: Path) -> None:
    scenario = make_scenario(tmp_path, history="generated", reasoning="echo")
    first = scenario.turns[0].steps[0]
    mine = conversation(scenario)
    mine.add_scripted(first, scripted_calls(first, 1), reply("mumble", "hm"))
    message = mine.messages[1]
    assert (message["content"], message["reasoning_content"]) == ("mumble", "hm")
    assert [call["id"] for call in message["tool_calls"]] == ["call_001_0", "call_001_1"]


@pytest.mark.parametrize(("reasoning", "expected"), [("echo", "Look first."), ("drop", None)])
def test_reasoning_is_sent_back_or_dropped(tmp_path: Path, reasoning: str, expected: str | None) -> None:
    scenario = make_scenario(tmp_path, reasoning=reasoning)
    first, last = scenario.turns[0].steps
    mine = conversation(scenario)
    mine.add_scripted(first, scripted_calls(first, 1), reply())
    mine.add_scripted(last, (), reply())
    assert mine.messages[1].get("reasoning_content") == expected
    assert "reasoning_content" not in mine.messages[2]  # a step without reasoning has none to echo


def test_a_request_is_not_changed_by_what_comes_after_it(tmp_path: Path) -> None:
    mine = conversation(make_scenario(tmp_path))
    mine.add_user("Fix it.")
    request = mine.request(8)
    mine.add_tool_output(ToolCall("call_1", "bash", "{}", {}), "done")
    assert len(request.messages) == 2
    assert mine.messages[-1] == {"role": "tool", "tool_call_id": "call_1", "content": "done"}


def test_the_request_carries_sampling_and_both_lengths(tmp_path: Path) -> None:
    mine = conversation(make_scenario(tmp_path, sampling={"temperature": 0.5, "seed": 3}))
    forced, free = mine.request(8), mine.request(None)
    assert (forced.forced_tokens, forced.max_tokens, forced.temperature, forced.seed) == (8, 16, 0.5, 3)
    assert free.forced_tokens is None


def test_an_empty_argument_text_is_sent_as_an_empty_object(tmp_path: Path) -> None:
    mine = conversation(make_scenario(tmp_path, mode="live"))
    mine.add_reply(reply("", "", (ToolCall("c", "bash", "", {}),)))
    assert mine.messages[-1]["tool_calls"][0]["function"]["arguments"] == "{}"
