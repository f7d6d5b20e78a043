"""Endings of streams, and errors in them, as they come from real servers, as bytes with arrival times."""

from __future__ import annotations

import json

import pytest
from timeline import DONE, ENDING, HI, Timeline, call, delta, event, finish, kind_of, text, usage

from agentprof.wire.figures import failure


class TestEndings:
    """Which streams are whole."""

    def test_finish_without_done_is_whole(self):
        stream = Timeline().at(0.1, HI, finish("stop"), usage(3, 1))
        assert kind_of(stream) is None
        assert stream.figures().flags == ("no_done",)

    def test_done_without_finish_is_whole_and_flagged(self):
        stream = Timeline().at(0.1, HI, usage(3, 1), DONE)
        assert kind_of(stream) is None
        assert stream.figures().flags == ("no_finish",)

    @pytest.mark.parametrize("reason", ["", None])
    def test_an_empty_finish_reason_is_none(self, reason):
        stream = Timeline().at(0.1, delta({"content": "Hi"}, reason))
        assert stream.reply().finish is None
        assert kind_of(stream) == "truncated"

    @pytest.mark.parametrize(
        "frames",
        [
            (HI,),
            (HI, usage(3, 1)),
            (HI, finish("stop")[:-20]),
            (HI, b"data: [DON"),
            (b": ping\n\n",),
            (b"",),
            (b"<html><body>502 Bad Gateway</body></html>",),
        ],
    )
    @pytest.mark.parametrize("has_clean_eof", [True, False])
    def test_neither_is_truncated(self, frames, has_clean_eof):
        assert kind_of(Timeline().at(0.1, *frames), has_clean_eof=has_clean_eof) == "truncated"

    def test_a_broken_connection_after_the_finish_is_whole(self):
        assert kind_of(Timeline().at(0.1, HI, finish("stop")), has_clean_eof=False) is None

    @pytest.mark.parametrize(("is_clean", "how"), [(False, "the connection broke"), (True, "the stream ended")])
    def test_the_message_says_how_far_it_came(self, is_clean, how):
        words, ping = Timeline().at(0.1, HI, text("!")).reply(), Timeline().at(0.1, b": ping\n\n").reply()
        end = f"{how} after 2 token events, with neither a finish reason nor [DONE]"
        assert failure(words, has_clean_eof=is_clean) == ("truncated", end)
        assert failure(ping, has_clean_eof=is_clean) == ("truncated", f"{how} without any event that could be read")

    @pytest.mark.parametrize("reason", ["error", "abort"])
    def test_a_finish_that_means_failure(self, reason):
        assert kind_of(Timeline().at(0.1, HI, finish(reason), DONE)) == "stream_error"

    def test_a_finish_reason_with_details(self):
        choice = {"index": 0, "delta": {}, "finish_reason": {"type": "stop", "matched": 7}}
        stream = Timeline().at(0.1, HI, event({"choices": [choice]}), usage(3, 1))
        assert stream.reply().finish == "stop"
        assert kind_of(stream) is None

    def test_two_finish_chunks(self):
        first, second = call('{"a":1}', "bash", "x"), finish("stop")
        reply = Timeline().at(0.1, first, finish("tool_calls"), second, DONE).reply()
        assert (reply.finish, len(reply.tool_calls)) == ("tool_calls", 1)

    @pytest.mark.parametrize(
        ("reasons", "right"),
        [
            (("stop", "tool_calls"), "tool_calls"),
            (("length", "stop"), "length"),
            (("length", "tool_calls"), "tool_calls"),
            (("tool_calls", "length"), "tool_calls"),
            (("function_call", "stop"), "function_call"),
            (("function_call", "length"), "function_call"),
            (("content_filter", "stop"), "content_filter"),
        ],
    )
    def test_the_finish_that_says_most_wins(self, reasons, right):
        reply = Timeline().at(0.1, call('{"a":1}', "bash", "x"), *[finish(reason) for reason in reasons], DONE).reply()
        assert (reply.finish, len(reply.tool_calls)) == (right, 1)

    def test_a_second_finish_that_repeats_the_call(self):
        entry = {"index": 0, "id": "x", "function": {"name": "bash", "arguments": '{"a":1}'}}
        frames = [delta({"tool_calls": [entry]}, reason) for reason in (None, "tool_calls", "stop")]
        reply = Timeline().at(0.1, *frames, DONE).reply()
        assert [(made.name, made.parsed) for made in reply.tool_calls] == [("bash", {"a": 1})]
        assert reply.finish == "tool_calls"


class TestErrorsUnderStatus200:
    """Errors inside the stream, or in its place."""

    @pytest.mark.parametrize(
        "frame",
        [
            event({"error": {"message": "CUDA out of memory", "type": "server_error", "code": 500}}),
            event({"error": "CUDA out of memory"}),
            event({"id": "c1", "choices": [], "error": {"message": "CUDA out of memory"}}),
            event({"object": "error", "message": "CUDA out of memory", "code": 400}),
            event({"choices": [{"index": 0, "delta": {}, "error": {"message": "CUDA out of memory"}}]}),
            b'event: error\ndata: {"message": "CUDA out of memory"}\n\n',
            b"event: error\ndata: CUDA out of memory\n\n",
            b'event: error\ndata: {"code": 500, "reason": "CUDA out of memory"}\n\n',
            b'error: {"code": 500, "message": "CUDA out of memory"}\n\n',
            b'{"error": {"message": "CUDA out of memory"}}\n',
            b'{"error": {"message": "CUDA out of memory"}}',
            b'{\n  "error": {\n    "message": "CUDA out of memory"\n  }\n}',
            b'[{"error": {"message": "CUDA out of memory"}}]',
            b'[{\n  "error": {\n    "message": "CUDA out of memory"\n  }\n}]\n',
            b'{"detail": "CUDA out of memory"}',
        ],
    )
    @pytest.mark.parametrize("before", [(), (HI,)])
    @pytest.mark.parametrize("after", [(), (b"\n\n", DONE)])
    def test_the_call_failed(self, frame, before, after):
        stream = Timeline().at(0.1, *before, frame, *after)
        kind, message = failure(stream.reply(), has_clean_eof=True)
        assert kind == "stream_error"
        assert "CUDA out of memory" in message
        assert "\n" not in message

    def test_the_first_error_stands(self):
        failed = event({"error": {"message": "CUDA out of memory"}})
        lost = b"event: error\ndata: lost\n\n"
        stream = Timeline().at(0.1, HI, failed, finish("stop"), event({"error": "worse"}), lost, DONE)
        assert stream.reply().error == "CUDA out of memory"
        assert kind_of(stream) == "stream_error"
        stream = Timeline().at(0.1, HI, b"event: error\ndata: out of memory\n\n", lost, DONE)
        assert stream.reply().error == "out of memory"

    def test_type_and_code_stand_behind_the_message(self):
        frame = event({"error": {"message": "busy\n now", "type": "overloaded", "code": 529, "param": None}})
        assert Timeline().at(0.1, frame).reply().error == "busy now (overloaded, 529)"

    @pytest.mark.parametrize(
        "error",
        [
            {
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
                "code": 400,
            },
            {"message": "This model's maximum context length is 32768 tokens.", "code": "context_length_exceeded"},
            {"message": "The input (9000 tokens) is longer than the model's context length (8192 tokens)."},
            {"message": "litellm.ContextWindowExceededError: prompt is too long"},
            "Context size has been exceeded.",
        ],
    )
    def test_context_overflow_is_recognised(self, error):
        assert kind_of(Timeline().at(0.1, event({"error": error}))) == "context_overflow"

    def test_rate_limits_are_no_context_overflow(self):
        error = {"message": "Rate limit reached: too many tokens per minute", "code": "rate_limit_exceeded"}
        assert kind_of(Timeline().at(0.1, event({"error": error}))) == "stream_error"

    @pytest.mark.parametrize("nothing", [None, {}, "", False])
    def test_no_error(self, nothing):
        stream = Timeline().at(0.1, text("Hi", error=nothing), delta({}, "stop", error=nothing), DONE)
        assert stream.reply().error is None
        assert kind_of(stream) is None

    @pytest.mark.parametrize(
        "frame", [event({"message": "still loading", "detail": "x"}), b'{"note": 1}\n\n', b"3\n", b"true\n", b'"x"\n']
    )
    def test_what_is_no_chunk_is_no_error(self, frame):
        stream = Timeline().at(0.1, HI, frame, *ENDING)
        assert stream.reply().content == "Hi"
        assert kind_of(stream) is None

    def test_a_message_beside_choices_is_no_error(self):
        choice = {"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice], "message": "ok"}).encode()
        assert kind_of(Timeline().at(0.1, body)) is None

    def test_an_answer_that_speaks_of_errors_is_none(self):
        stream = Timeline().at(0.1, text('{"error": {"message": "x"}}'), *ENDING)
        assert kind_of(stream) is None
