"""Tools and tool calls of all shapes, through the real loop: what runs, what is measured, what the model is told."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from live_calls import stream
from live_sessions import Played, is_about, play, steps
from living import are_gone, with_argument
from scripted_server import Script, ScriptedServer
from timeline import DONE, call, delta, event, finish, text, tokens, usage

from agentprof import semconv

NAP = f"61.{uuid.uuid4().int % 10**9:09d}"
"""A number of seconds that no other process sleeps for."""


def talk(folder: Path, *commands: str, **changes: Any) -> Played:
    """A scripted session with one bash command a step."""
    played = play(ScriptedServer([stream()]), folder, turns=steps(*([command] for command in commands)), **changes)
    assert played.outcome.name == "completed"
    assert are_gone(lambda: with_argument(NAP))
    return played


class TestCommands:
    def test_what_is_left_in_the_background_does_not_prolong_a_call(self, tmp_path: Path) -> None:
        commands = (
            f"sleep {NAP} & echo ok",
            f"nohup sleep {NAP} > log 2>&1 & echo ok",
            f"(sleep {NAP}; echo late) | cat & echo ok",
            f"setsid sleep {NAP} & echo ok",
        )
        played = talk(tmp_path, *commands)
        assert played.outputs == ["ok\n[exit code 0]"] * 4
        assert [message["content"] for message in played.sent(4) if message["role"] == "tool"] == played.outputs
        for tool in played.named("execute_tool"):
            assert tool.duration_ns < 5e9
            assert tool.attributes[semconv.EXIT_CODE] == 0

    def test_at_its_limit_a_call_ends_with_all_that_it_started(self, tmp_path: Path) -> None:
        commands = [
            f"echo begun; bash -c 'bash -c \"sleep {NAP}; true\"; true'",
            f"echo begun; bash -c 'trap \"\" TERM INT; sleep {NAP}; sleep {NAP}'; sleep {NAP}",
            f"echo begun; setsid bash -c 'trap \"\" TERM; sleep {NAP}; sleep {NAP}' & wait",
        ]
        limits = {"session": "60s", "tool": "1s", "output_tokens": 16}
        played = play(ScriptedServer([stream()]), tmp_path, turns=steps(commands), limits=limits)
        assert played.outcome.name == "completed"
        assert are_gone(lambda: with_argument(NAP))
        assert [output.splitlines()[0] for output in played.outputs] == ["begun"] * 3
        for tool in played.named("execute_tool"):
            assert tool.attributes[semconv.TIMED_OUT] is True
            assert is_about(tool.duration_ns, 1.0, slack_s=0.5 + 1.0)  # half a second is meant
        assert is_about(played.ledger["tool"], 1.0, slack_s=3)

    def test_bytes_that_are_not_utf8(self, tmp_path: Path) -> None:
        played = talk(
            tmp_path, r"printf 'a\xff\xc3\xa9\n'", r"printf '\xfe\xfe\xfe' >&2", r"printf 'caf\xe9 '; printf '\xe2\x82'"
        )
        assert [output.split("\n")[0] for output in played.outputs] == ["a�é", "���", "caf� �"]
        sizes = [tool.attributes[semconv.OUTPUT_BYTES] for tool in played.named("execute_tool")]
        assert sizes == [5, 3, 7]
        assert "a�é" in played.requests[-1].body.decode()  # sent as text

    def test_much_output(self, tmp_path: Path) -> None:
        played = talk(
            tmp_path,
            "echo first; head -c 200000000 /dev/zero | tr '\\0' x; echo; echo last",
            "echo first >&2; yes | head -c 9000000 >&2; echo last >&2",
            "echo first; seq 300000; echo last; exit 3",
        )
        sizes = [tool.attributes[semconv.OUTPUT_BYTES] for tool in played.named("execute_tool")]
        lengths = sum(len(str(number)) + 1 for number in range(1, 300_001))
        assert sizes == [200_000_012, 9_000_011, lengths + 11]
        for tool, output, code in zip(played.named("execute_tool"), played.outputs, (0, 0, 3), strict=True):
            assert tool.attributes[semconv.TRUNCATED] is True
            assert tool.attributes[semconv.EXIT_CODE] == code
            assert len(output.encode()) <= 16_384
            assert output.startswith("first\n")
            assert output.endswith(f"\nlast\n[exit code {code}]")


LIVE: dict[str, Any] = {"mode": "live", "turns": [{"user": "Go."}], "tools": ["bash", "list_files", "read_file"]}


def ask(folder: Path, *frames: bytes, reason: str | None = "tool_calls", ends: bytes = DONE) -> Played:
    """A live session whose model sends these chunks and, where tools ran, then answers."""
    frames = (*frames, *([finish(reason)] if reason else []), usage(9, 20) + ends)
    calling: Script = stream(events=frames) if ends else [*stream(events=frames)[:-3], *stream(events=())[-1:]]
    return play(ScriptedServer([calling, stream()]), folder, **LIVE)


def remembered(played: Played) -> dict[str, Any]:
    """The assistant's turn as the second request sent it back."""
    (assistant,) = [message for message in played.sent(1) if message["role"] == "assistant"]
    return assistant


def echo(word: str) -> str:
    return json.dumps({"command": f"echo {word}"})


FIRST, SECOND = echo("one"), echo("two")
HALF = len(FIRST) // 2

CALLS: dict[str, tuple[list[bytes], list[str]]] = {
    "no index, known id": (
        [
            call(FIRST[:HALF], "bash", "a", None),
            call(SECOND[:HALF], "bash", "b", None),
            call(FIRST[HALF:], None, "a", None),
            call(SECOND[HALF:], None, "b", None),
        ],
        ["one", "two"],
    ),
    "no index, new id and name": ([call(FIRST, "bash", "a", None), call(SECOND, "bash", "b", None)], ["one", "two"]),
    "no index, neither": ([call(FIRST[:HALF], "bash", "a", None), call(FIRST[HALF:], index=None)], ["one"]),
    "no index, no id, two whole calls": (
        [call(FIRST, "bash", index=None), call(SECOND, "bash", index=None)],
        ["one", "two"],
    ),
    "each numbered 0": ([call(FIRST, "bash", "a", 0), call(SECOND, "bash", "b", 0)], ["one", "two"]),
    "name in each delta": (
        [call("", "bash", "a"), call(FIRST[:HALF], "bash", "a"), call(FIRST[HALF:], "bash", "a")],
        ["one"],
    ),
    "name in pieces": ([call(None, "ba", "a"), call(None, "sh"), call(FIRST)], ["one"]),
    "another id with an empty name each time": (
        [call("", "bash", "a"), call(FIRST[:HALF], "", "b"), call(FIRST[HALF:], "", "c")],
        ["one"],
    ),
    "empty content beside a full call": (
        [
            delta(
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"index": 0, "id": "a", "function": {"name": "bash", "arguments": FIRST}}],
                }
            )
        ],
        ["one"],
    ),
    "arguments as an object": ([call({"command": "echo one"}, "bash", "a")], ["one"]),
    "two finish chunks": ([call(FIRST, "bash", "a"), finish("tool_calls"), finish("stop")], ["one"]),
}


class TestCallsOfModels:
    @pytest.mark.parametrize("shape", CALLS)
    def test_each_call_runs_once(self, tmp_path: Path, shape: str) -> None:
        frames, words = CALLS[shape]
        played = ask(tmp_path, *frames)
        assert played.outcome.name == "completed"
        assert played.outputs == [f"{word}\n[exit code 0]" for word in words]
        assert [tool.attributes[semconv.TOOL_NAME] for tool in played.named("execute_tool")] == ["bash"] * len(words)
        told = [json.loads(made["function"]["arguments"]) for made in remembered(played)["tool_calls"]]
        assert told == [{"command": f"echo {word}"} for word in words]
        ids = [made["id"] for made in remembered(played)["tool_calls"]]
        assert len(set(ids)) == len(ids)
        assert [message["tool_call_id"] for message in played.sent(1) if message["role"] == "tool"] == ids
        assert [made["name"] for made in played.calls[0]["tool_calls"]] == ["bash"] * len(words)

    @pytest.mark.parametrize("order", ["text first", "calls first", "in one chunk"])
    def test_text_beside_calls_is_kept(self, tmp_path: Path, order: str) -> None:
        entry = {"index": 0, "id": "a", "function": {"name": "bash", "arguments": FIRST}}
        frames = {
            "text first": [text("I'll look."), call(FIRST, "bash", "a")],
            "calls first": [call(FIRST, "bash", "a"), text("I'll look.")],
            "in one chunk": [delta({"content": "I'll look.", "tool_calls": [entry]})],
        }[order]
        played = ask(tmp_path, *frames)
        assert (played.outcome.name, played.outputs) == ("completed", ["one\n[exit code 0]"])
        assert remembered(played)["content"] == "I'll look."
        assert len(remembered(played)["tool_calls"]) == 1

    @pytest.mark.parametrize("arguments", ["", None, "null", {}, "absent"])
    def test_no_arguments_are_an_empty_object(self, tmp_path: Path, arguments: Any) -> None:
        function = {"name": "list_files", "arguments": arguments}
        if arguments == "absent":
            del function["arguments"]
        played = ask(tmp_path, delta({"tool_calls": [{"index": 0, "id": "a", "function": function}]}))
        assert played.outcome.name == "completed"
        assert "notes.txt" in played.outputs[0]
        assert remembered(played)["tool_calls"][0]["function"] == {"name": "list_files", "arguments": "{}"}

    @pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", None])
    def test_whole_calls_run_whatever_the_finish_says(self, tmp_path: Path, reason: str | None) -> None:
        played = ask(tmp_path, call(FIRST[:HALF], "bash", "a"), call(FIRST[HALF:]), reason=reason)
        assert (played.outcome.name, played.outputs) == ("completed", ["one\n[exit code 0]"])

    @pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", None])
    @pytest.mark.parametrize("cut", [FIRST[:HALF], FIRST[:-1], "[1]", "echo one"])
    def test_cut_calls_do_not_run(self, tmp_path: Path, reason: str | None, cut: str) -> None:
        played = ask(tmp_path, call(FIRST, "bash", "a", 0), call(cut, "bash", "b", 1), reason=reason)
        assert played.outcome.name == "truncated_tool_call"
        assert not played.named("execute_tool")
        assert len(played.requests) == 1
        assert played.calls[0]["error"] is None
        assert played.explained["output_tokens"] == 20

    def test_a_stream_that_ends_inside_a_call_failed(self, tmp_path: Path) -> None:
        played = ask(tmp_path, call(FIRST[:HALF], "bash", "a"), reason=None, ends=b"")
        assert played.outcome.name == "failed"
        assert played.calls[0]["error"]["kind"] == "truncated"

    def test_mistakes_are_given_back(self, tmp_path: Path) -> None:
        frames = [
            call("{}", "rm_rf", "a", 0),
            call('{"cmd": "ls"}', "bash", "b", 1),
            call('{"path": "../x"}', "read_file", "c", 2),
        ]
        played = ask(tmp_path, *frames)
        assert played.outcome.name == "completed"
        assert [output.startswith("error: ") for output in played.outputs] == [True] * 3
        assert all(tool.error for tool in played.named("execute_tool"))


def test_a_withheld_call_is_not_split(tmp_path: Path) -> None:
    """A parser holds the call back whole: its generation is one row, in the session's ledger too."""
    arguments = json.dumps({"path": "notes.txt", "x": "y" * 17_000})
    whole = call(arguments, "read_file", "a") + finish("tool_calls") + event({"choices": [], "usage": tokens(4400, 9)})
    played = play(ScriptedServer([stream(first=0.2, events=[whole]), stream()]), tmp_path, **LIVE)
    first = played.calls[0]
    assert ("buffered" in first["flags"], first["decode_ns"], first["output_tokens"]) == (True, None, 4400)
    assert is_about(played.ledger["generation"], 0.2)
    assert any("arrived buffered" in caution for caution in played.explained["cautions"])
