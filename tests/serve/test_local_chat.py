"""What the embedded engine answers: tools, forced length, prompt cache. All on the real model."""

from __future__ import annotations

import http.client
import json
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest

from agentprof.serve.local import EngineOptions, LocalEngine, start_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine"), pytest.mark.usefixtures("_engine_installed")]

Json = dict[str, Any]


def request(engine: LocalEngine, method: str, path: str, body: Json | None = None) -> bytes:
    address = urlsplit(engine.base_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        return answer
    finally:
        connection.close()


def complete(engine: LocalEngine, messages: list[Json], **more: Any) -> Json:
    body = {"model": engine.model, "messages": messages, "temperature": 0, "max_tokens": 4} | more
    return json.loads(request(engine, "POST", "/v1/chat/completions", body))


def stream(engine: LocalEngine, messages: list[Json], **more: Any) -> list[Json]:
    body = {"model": engine.model, "messages": messages, "temperature": 0, "stream": True} | more
    body |= {"stream_options": {"include_usage": True}}
    lines = request(engine, "POST", "/v1/chat/completions", body).split(b"\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def render(engine: LocalEngine, messages: list[Json], tools: list[Json]) -> str:
    body = {"messages": messages, "tools": tools}
    return str(json.loads(request(engine, "POST", "/apply-template", body))["prompt"])


def tool(name: str, parameter: str) -> Json:
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": f"{name} it", "parameters": parameters}}


def calls(*wanted: tuple[str, str, Json], content: str | None = None, **more: Any) -> Json:
    made = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for id_, name, arguments in wanted
    ]
    return {"role": "assistant", "content": content, "tool_calls": made} | more


def result(id_: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": id_, "content": text}


TOOLS = [tool("read_file", "path"), tool("bash", "command"), tool("search", "pattern")]
SYSTEM = {"role": "system", "content": "You are a coding agent. Work in small steps."}
HISTORY = [
    SYSTEM,
    {"role": "user", "content": "Fix the failing test."},
    calls(("a", "bash", {"command": "pytest -q"}), content="Run it.", reasoning_content="See what fails first."),
    result("a", "1 failed: test_leap"),
    calls(("b", "read_file", {"path": "leap.py"}), ("c", "search", {"pattern": "is_leap"})),
    result("b", "def is_leap(y): return y % 4 == 0"),
    result("c", "leap.py:1: is_leap"),
]
EXAMPLES = [
    SYSTEM,
    {"role": "user", "content": "Read the file leap.py."},
    calls(("a", "read_file", {"path": "leap.py"})),
    result("a", "def is_leap(y): return y % 4 == 0"),
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Run the command ls."},
    calls(("b", "bash", {"command": "ls"})),
    result("b", "leap.py test_leap.py"),
    {"role": "assistant", "content": "Done."},
]
ENDS = [2, 4, 7]
"""Where the assistant speaks next: after the user, one result, two results of parallel calls."""


def test_history_renders_tools_calls_results_and_reasoning(engine: LocalEngine) -> None:
    prompt = render(engine, HISTORY, TOOLS)
    for piece in (
        "<|im_start|>system\nYou are a coding agent. Work in small steps.\n\n",
        '{"name": "search", "description": "search it", "parameters": {"type": "object"',
        "<|im_start|>assistant\n<think>\nSee what fails first.\n</think>\n\nRun it.\n<tool_call>\n"
        '{"name": "bash", "arguments": {"command": "pytest -q"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n1 failed: test_leap<|im_end|>\n",
        '<|im_start|>assistant\n<tool_call>\n{"name": "read_file", "arguments": {"path": "leap.py"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "search", "arguments": {"pattern": "is_leap"}}\n</tool_call><|im_end|>\n',
        "<|im_start|>tool\nleap.py:1: is_leap<|im_end|>\n",
    ):
        assert piece in prompt
    assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_longer_history_only_appends(engine: LocalEngine) -> None:
    prompts = [render(engine, HISTORY[:end], TOOLS) for end in ENDS]
    for shorter, longer in pairwise(prompts):
        assert longer.startswith(shorter)


def test_sessions_share_the_text_before_the_user_speaks(engine: LocalEngine) -> None:
    first, second = (render(engine, [SYSTEM, {"role": "user", "content": text}], TOOLS) for text in ("ALPHA", "BETA"))
    head = first[: first.index("ALPHA")]
    assert head.endswith("</tool_call><|im_end|>\n<|im_start|>user\n")
    assert second.startswith(head)


def test_messages_without_system_tools_or_plain_content(engine: LocalEngine) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    assert render(engine, [parts], []) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    empty = calls(("a", "bash", {}), content="")
    assert '{"name": "bash", "arguments": {}}' in render(engine, [parts, empty, result("a", "")], TOOLS)


def test_each_turn_finds_the_turn_before_in_the_cache(engine: LocalEngine) -> None:
    answers = [complete(engine, HISTORY[:end], tools=TOOLS, tool_choice="none") for end in ENDS]
    prompts = [answer["usage"]["prompt_tokens"] for answer in answers]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert [answer["timings"]["cache_n"] for answer in answers] == cached
    assert [a["timings"]["cache_n"] + a["timings"]["prompt_n"] for a in answers] == prompts
    for before, found in zip(prompts, cached[1:], strict=False):
        assert found >= before - 1  # the prompt's last token is always computed again


def test_forced_length_is_exact_and_streams_one_event_a_token(engine: LocalEngine) -> None:
    # The answer begins with "<tool_call>": nothing of it may be held back.
    events = stream(engine, HISTORY, tools=TOOLS, tool_choice="none", ignore_eos=True, max_tokens=24)
    texts = [event["choices"][0]["delta"].get("content") for event in events if event["choices"]]
    assert len([text for text in texts if text]) == 24
    assert "".join(text for text in texts if text).startswith("<tool_call>")
    assert events[-1]["usage"]["completion_tokens"] == 24
    auto = complete(engine, HISTORY, tools=TOOLS, tool_choice="auto", max_tokens=1)
    assert events[-1]["usage"]["prompt_tokens"] == auto["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("asked", "name", "arguments"),
    [
        ("Read the file setup.py.", "read_file", {"path": "setup.py"}),
        ("Run the command pwd.", "bash", {"command": "pwd"}),
        ("Search for century.", "search", {"pattern": "century"}),
    ],
)
def test_auto_parses_the_model_s_own_call(engine: LocalEngine, asked: str, name: str, arguments: Json) -> None:
    messages = [*EXAMPLES, {"role": "user", "content": asked}]
    events = stream(engine, messages, tools=TOOLS, tool_choice="auto", max_tokens=64)
    choices = [event["choices"][0] for event in events if event["choices"]]
    deltas = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert [delta["name"] for delta in deltas if "name" in delta] == [name]
    assert json.loads("".join(delta["arguments"] for delta in deltas)) == arguments
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_sessions_that_take_turns_keep_their_history(engine: LocalEngine) -> None:
    head = {"role": "system", "content": "Be brief. " * 12}
    sessions = [[head, {"role": "user", "content": word * 8}] for word in ("apple ", "river ", "stone ")]
    prompts = [complete(engine, session)["usage"]["prompt_tokens"] for session in sessions]
    for session, prompt_tokens in zip(sessions, prompts, strict=True):
        more = [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
        assert complete(engine, session + more)["timings"]["cache_n"] >= prompt_tokens - 1


def test_more_context_than_the_model_was_trained_on_is_not_promised() -> None:
    with start_engine(EngineOptions(threads=1, context_tokens=9000)) as other:
        assert other.context_tokens == 8192


def test_context_is_for_each_slot() -> None:
    with start_engine(EngineOptions(threads=1, slots=3, context_tokens=512, alias="tiny")) as other:
        properties = json.loads(request(other, "GET", "/props"))
        models = json.loads(request(other, "GET", "/v1/models"))["data"]
    assert properties["total_slots"] == 3
    assert properties["default_generation_settings"]["n_ctx"] == 512
    assert other.context_tokens == 512
    assert [model["id"] for model in models] == [other.model] == ["tiny"]


@pytest.mark.parametrize("speculation", ["ngram-simple", "ngram-mod", "ngram-cache"])
def test_speculation_and_no_prompt_cache_take_effect(engine: LocalEngine, speculation: str) -> None:
    messages = [{"role": "user", "content": "Repeat this: " + "the cat sat on the mat. " * 6}]
    more = {"max_tokens": 48, "ignore_eos": True}
    assert "draft_n" not in complete(engine, messages, **more)["timings"]
    assert complete(engine, messages)["timings"]["cache_n"] > 0
    options = EngineOptions(threads=1, context_tokens=1024, has_prompt_cache=False, speculation=speculation)
    with start_engine(options) as other:
        answer = complete(other, messages, **more)
        again = complete(other, messages)
    assert answer["timings"]["draft_n"] >= answer["timings"]["draft_n_accepted"] > 0
    assert answer["usage"]["completion_tokens"] == 48
    assert again["timings"]["cache_n"] == again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
