"""Tool calls of streams as they come from real servers, as bytes with arrival times."""

from __future__ import annotations

import json

import pytest
from timeline import DONE, Timeline, call, delta, event, finish, ns, text, usage

from agentprof.records.call import Reply, ToolCall
from agentprof.wire.figures import are_calls_whole


def reply_to(*frames: bytes, reason: str | None = "tool_calls") -> Reply:
    stream = Timeline()
    for i, frame in enumerate(frames):
        stream.at(0.1 + i / 100, frame)
    return stream.at(2, *([finish(reason)] if reason else []), DONE).reply()


def made(reply: Reply) -> list[tuple[str, str, str]]:
    return [(tool_call.id, tool_call.name, tool_call.arguments) for tool_call in reply.tool_calls]


class TestWhichCall:
    """Which call a delta belongs to."""

    def test_by_index(self):
        reply = reply_to(
            call("", "bash", "a", 0),
            call('{"x":', index=0),
            call("", "search", "b", 1),
            call("1}", index=0),
            call('{"y":2}', index=1),
        )
        assert made(reply) == [("a", "bash", '{"x":1}'), ("b", "search", '{"y":2}')]
        assert [tool_call.parsed for tool_call in reply.tool_calls] == [{"x": 1}, {"y": 2}]

    def test_no_index_known_id(self):
        reply = reply_to(
            call('{"x":', "bash", "a", None),
            call('{"y":', "search", "b", None),
            call("1}", None, "a", None),
            call("2}", None, "b", None),
        )
        assert made(reply) == [("a", "bash", '{"x":1}'), ("b", "search", '{"y":2}')]

    def test_no_index_new_id_and_name(self):
        reply = reply_to(
            call('{"x":1}', "bash", "a", None), call('{"x":1}', "bash", "b", None), call("{}", "list_files", "c", None)
        )
        assert made(reply) == [("a", "bash", '{"x":1}'), ("b", "bash", '{"x":1}'), ("c", "list_files", "{}")]

    def test_no_index_neither(self):
        reply = reply_to(
            call('{"x":', "bash", "a", None), call("1", index=None), call("}", None, "new-each-time", None)
        )
        assert made(reply) == [("a", "bash", '{"x":1}')]

    def test_whole_calls_without_any_id(self):
        entries = [
            {"function": {"name": name, "arguments": {"n": i}}} for i, name in enumerate(("bash", "bash", "search"))
        ]
        one_chunk = reply_to(delta({"tool_calls": entries}))
        three_chunks = reply_to(*[delta({"tool_calls": [entry]}) for entry in entries])
        right = [("call_0", "bash", '{"n":0}'), ("call_1", "bash", '{"n":1}'), ("call_2", "search", '{"n":2}')]
        assert made(one_chunk) == made(three_chunks) == right

    def test_every_call_numbered_0(self):
        reply = reply_to(
            call('{"x":1}', "bash", "a", 0), call('{"x":2}', "bash", "b", 0), call('{"y":3}', "search", "c", 0)
        )
        assert made(reply) == [("a", "bash", '{"x":1}'), ("b", "bash", '{"x":2}'), ("c", "search", '{"y":3}')]

    def test_every_call_numbered_0_in_pieces(self):
        reply = reply_to(
            call("", "bash", "a", 0),
            call('{"x":', index=0),
            call("1}", index=0),
            call("", "search", "b", 0),
            call('{"y":2}', index=0),
        )
        assert made(reply) == [("a", "bash", '{"x":1}'), ("b", "search", '{"y":2}')]

    def test_index_only_from_the_second_delta_on(self):
        for known_id in (None, "a"):
            reply = reply_to(call('{"x":', "bash", "a", None), call("1}", None, known_id, 0))
            assert made(reply) == [("a", "bash", '{"x":1}')]

    def test_one_name_in_each_piece_without_id_or_index(self):
        reply = reply_to(*[call(piece, "bash", None, None) for piece in ('{"x":', "1", "}")])
        assert made(reply) == [("call_0", "bash", '{"x":1}')]

    @pytest.mark.parametrize("call_id", [None, "a"])
    def test_white_space_after_a_whole_call_belongs_to_it(self, call_id):
        reply = reply_to(call('{"x":1}', "bash", call_id, None), call("\n", None, call_id, None))
        assert made(reply) == [(call_id or "call_0", "bash", '{"x":1}\n')]

    @pytest.mark.parametrize("index", [0, None])
    def test_white_space_after_a_whole_call_doesn_t_take_in_the_next(self, index):
        reply = reply_to(
            call('{"x":1}', "bash", "a", index), call("\n", index=index), call('{"x":2}', "bash", "b", index)
        )
        assert made(reply) == [("a", "bash", '{"x":1}\n'), ("b", "bash", '{"x":2}')]

    def test_a_name_alone_after_a_whole_call_repeats_it(self):
        reply = reply_to(call('{"x":1}', "bash", None, None), call("\n", index=None), call(None, "bash", None, None))
        assert made(reply) == [("call_0", "bash", '{"x":1}\n')]

    def test_an_id_first_its_name_later(self):
        reply = reply_to(call('{"x":1}', "bash", "a", 0), call(None, None, "b", 1), call('{"y":2}', "search", None, 1))
        assert made(reply) == [("a", "bash", '{"x":1}'), ("b", "search", '{"y":2}')]

    def test_the_first_index_is_not_0(self):
        assert made(reply_to(call('{"x":', "bash", "a", 3), call("1}", index=3))) == [("a", "bash", '{"x":1}')]

    @pytest.mark.parametrize("index", ["0", 0, None, True, -1, 1.5, {}])
    def test_index_of_any_type(self, index):
        frames = [
            delta({"tool_calls": [{"index": index, **fields}]})
            for fields in (
                {"id": "a", "function": {"name": "bash", "arguments": '{"x":'}},
                {"function": {"arguments": "1}"}},
            )
        ]
        assert made(reply_to(*frames)) == [("a", "bash", '{"x":1}')]

    def test_whole_calls_that_share_one_id(self):
        frames = [call(arguments, "bash", "same", None) for arguments in ('{"x":1}', '{"x":2}')]
        assert [tool_call.parsed for tool_call in reply_to(*frames).tool_calls] == [{"x": 1}, {"x": 2}]

    def test_legacy_function_call(self):
        frames = [
            delta({"function_call": fields}) for fields in ({"name": "bash", "arguments": ""}, {"arguments": '{"x":1}'})
        ]
        assert made(reply_to(*frames, reason="function_call")) == [("call_0", "bash", '{"x":1}')]


class TestNames:
    """One call, one name."""

    def test_repeated_in_each_delta(self):
        reply = reply_to(call("", "bash", "a"), call('{"x":', "bash", "a"), call("1}", "bash", "a"))
        assert made(reply) == [("a", "bash", '{"x":1}')]

    def test_repeated_with_another_id_each_time(self):
        reply = reply_to(call("", "bash", "a"), call('{"x":', "bash", "b"), call("1}", "bash", "c"))
        assert made(reply) == [("a", "bash", '{"x":1}')]

    def test_repeated_without_index(self):
        reply = reply_to(call('{"x":', "bash", "a", None), call("1", "bash", "a", None), call("}", "bash", "a", None))
        assert made(reply) == [("a", "bash", '{"x":1}')]

    @pytest.mark.parametrize(
        "pieces", [("read_", "file"), ("r", "ead", "_file"), ("read", "read_file"), ("read_file", "read_file")]
    )
    def test_split_or_repeated_before_the_arguments(self, pieces):
        frames = [call(None, piece, "a" if i == 0 else None) for i, piece in enumerate(pieces)]
        assert made(reply_to(*frames, call('{"path":"a"}'))) == [("a", "read_file", '{"path":"a"}')]

    def test_the_last_piece_repeated_once_the_arguments_began(self):
        reply = reply_to(call(None, "read_", "a"), call("", "file"), call('{"path":'), call('"a"}', "file"))
        assert made(reply) == [("a", "read_file", '{"path":"a"}')]

    @pytest.mark.parametrize("name", ["", None])
    @pytest.mark.parametrize("index", [0, None])
    def test_ids_that_change_with_an_empty_name(self, name, index):
        reply = reply_to(call("", "bash", "a", index), call('{"x":', name, "b", index), call("1}", name, "c", index))
        assert made(reply) == [("a", "bash", '{"x":1}')]

    def test_an_empty_id_after_the_first(self):
        reply = reply_to(call("", "bash", "a"), call('{"x":', "", ""), call("1}", "", ""))
        assert made(reply) == [("a", "bash", '{"x":1}')]

    def test_the_name_comes_after_the_arguments_began(self):
        assert made(reply_to(call('{"x":', None, "a"), call("1}", "bash"))) == [("a", "bash", '{"x":1}')]

    def test_two_calls_of_one_name(self):
        reply = reply_to(call('{"x":1}', "bash", "a", 0), call('{"x":2}', "bash", "b", 1))
        assert made(reply) == [("a", "bash", '{"x":1}'), ("b", "bash", '{"x":2}')]


class TestContentBesideCalls:
    """Text and calls in one message: both are kept, and the call counts as one."""

    def test_empty_content_beside_full_calls(self):
        entry = {"index": 0, "id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"x":1}'}}
        stream = Timeline().at(0.3, delta({"role": "assistant", "content": "", "tool_calls": [entry]}))
        stream.at(0.4, finish("tool_calls"), usage(9, 12), DONE)
        reply = stream.reply()
        assert (reply.content, made(reply)) == ("", [("a", "bash", '{"x":1}')])
        assert [token_event.kind for token_event in reply.events] == ["tool_call"]
        assert stream.figures().ttfo_ns == ns(0.3)

    def test_text_then_calls(self):
        reply = reply_to(text("I'll look. "), call("", "bash", "a"), call('{"x":1}'))
        assert (reply.content, made(reply)) == ("I'll look. ", [("a", "bash", '{"x":1}')])
        assert [token_event.kind for token_event in reply.events] == ["content", "tool_call", "tool_call"]

    def test_text_and_call_in_one_chunk(self):
        entry = {"index": 0, "id": "a", "function": {"name": "bash", "arguments": '{"x":1}'}}
        reply = reply_to(delta({"content": "Look:", "tool_calls": [entry]}))
        assert (reply.content, made(reply)) == ("Look:", [("a", "bash", '{"x":1}')])
        assert [(token_event.kind, token_event.chars) for token_event in reply.events] == [("tool_call", 5 + 4 + 7)]

    def test_three_calls_in_one_chunk(self):
        entries = [{"index": i, "id": f"{i}", "function": {"name": "bash", "arguments": '{"x":1}'}} for i in range(3)]
        reply = reply_to(delta({"tool_calls": entries}))
        assert [token_event.chars for token_event in reply.events] == [3 * (4 + 7)]

    def test_a_call_in_both_fields_is_one(self):
        function = {"name": "bash", "arguments": '{"x":1}'}
        entry = {"index": 0, "id": "a", "function": function}
        assert made(reply_to(delta({"tool_calls": [entry], "function_call": function}))) == [("a", "bash", '{"x":1}')]

    @pytest.mark.parametrize(
        "calls", [[], None, [{}], [{"index": 0, "function": None}], [{"index": 0, "type": "function", "id": ""}]]
    )
    def test_no_calls_beside_text(self, calls):
        reply = reply_to(delta({"content": "Hi", "tool_calls": calls}), reason="stop")
        assert (reply.content, reply.tool_calls) == ("Hi", ())
        assert [token_event.kind for token_event in reply.events] == ["content"]
        assert are_calls_whole(reply)


class TestArguments:
    """Arguments are JSON text of an object, whatever the server made of them."""

    @pytest.mark.parametrize("arguments", ["", None, "null", " ", {}, "{}"])
    def test_none_at_all(self, arguments):
        entry = {"index": 0, "id": "a", "function": {"name": "list_files", "arguments": arguments}}
        reply = reply_to(delta({"tool_calls": [entry]}))
        assert reply.tool_calls == (ToolCall("a", "list_files", "{}", {}),)
        assert are_calls_whole(reply)

    def test_absent(self):
        entry = {"index": 0, "id": "a", "function": {"name": "list_files"}}
        assert reply_to(delta({"tool_calls": [entry]})).tool_calls == (ToolCall("a", "list_files", "{}", {}),)

    def test_an_object(self):
        entry = {"index": 0, "id": "a", "function": {"name": "bash", "arguments": {"command": "grüße", "n": [1, None]}}}
        (tool_call,) = reply_to(delta({"tool_calls": [entry]})).tool_calls
        assert tool_call.parsed == json.loads(tool_call.arguments) == {"command": "grüße", "n": [1, None]}

    def test_what_came_so_far_in_each_delta(self):
        frames = [
            delta({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "bash", "arguments": arguments}}]})
            for arguments in ({"x": 1}, {"x": 1, "y": 2}, '{"x":1,"y":2}')
        ]
        assert made(reply_to(*frames)) == [("a", "bash", '{"x":1,"y":2}')]

    def test_encoded_twice(self):
        (tool_call,) = reply_to(call(json.dumps('{"x":1}'), "bash", "a")).tool_calls
        assert (tool_call.arguments, tool_call.parsed) == ('{"x":1}', {"x": 1})

    @pytest.mark.parametrize("arguments", ["[1]", "3", '"x"', "{'x': 1}", '{"x":', '{"x":1}}', "[" * 2000])
    def test_what_is_no_object(self, arguments):
        reply = reply_to(call(arguments, "bash", "a"))
        assert reply.tool_calls == (ToolCall("a", "bash", arguments, None),)
        assert not are_calls_whole(reply)

    def test_many_pieces(self):
        arguments = json.dumps({"content": 'ä\n"😀' * 500})
        pieces = [arguments[i : i + 3] for i in range(0, len(arguments), 3)]
        reply = reply_to(call("", "write_file", "a"), *[call(piece) for piece in pieces])
        assert reply.tool_calls[0].parsed == json.loads(arguments)
        assert sum(token_event.chars for token_event in reply.events) == len("write_file") + len(arguments)


class TestWhole:
    """Tools run only if the calls are whole and their arguments parse."""

    @pytest.mark.parametrize("reason", ["tool_calls", "stop", None, "length", "function_call", "content_filter"])
    def test_whole_calls_whatever_the_finish_says(self, reason):
        assert are_calls_whole(reply_to(call('{"x":', "bash", "a"), call("1}"), reason=reason))

    @pytest.mark.parametrize("reason", ["tool_calls", "stop", None, "length"])
    @pytest.mark.parametrize("cut", ['{"x":', '{"x": "abc', '{"x": 1, "y"', "{"])
    def test_cut_arguments_whatever_the_finish_says(self, reason, cut):
        assert not are_calls_whole(reply_to(call('{"x":1}', "bash", "a", 0), call(cut, "bash", "b", 1), reason=reason))

    def test_cut_before_the_arguments(self):
        assert not are_calls_whole(reply_to(call('{"x":1}', "bash", "a", 0), call("", "bash", "b", 1), reason="length"))
        assert are_calls_whole(reply_to(call('{"x":1}', "bash", "a", 0), call("", "list_files", "b", 1)))

    def test_no_name(self):
        assert not are_calls_whole(reply_to(call('{"x":1}', None, "a")))

    def test_a_finish_of_stop_beside_calls_is_kept_as_sent(self):
        reply = reply_to(call('{"x":1}', "bash", "a"), reason="stop")
        assert reply.finish == "stop"

    def test_a_length_beside_calls_then_usage(self):
        stream = Timeline().at(0.1, call('{"command":"pyt', "bash", "a")).at(0.2, finish("tool_calls"))
        stream.at(0.2, event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 64}}), DONE)
        assert (stream.reply().finish, are_calls_whole(stream.reply())) == ("tool_calls", False)
