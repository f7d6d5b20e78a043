"""Framing and shapes of streams as they come from real servers, as bytes with arrival times."""

from __future__ import annotations

import json

import pytest
from timeline import DONE, ENDING, HI, Timeline, call, delta, event, finish, kind_of, ns, text, think, usage

from agentprof.wire.assemble import Read, assemble


class TestKeepAlives:
    """Comments and pings are skipped, and counted."""

    @pytest.mark.parametrize(
        "frame",
        [
            b": OPENROUTER PROCESSING\n\n",
            b": ping\n\n",
            b":\n\n",
            b": ping - 2026-11-30 08:12:00.123456\r\n\r\n",
            b"event: ping\ndata:\n\n",
            b"event: ping\ndata: \n\n",
            b"event: ping\n\n",
            b'event: ping\ndata: {"type": "ping"}\n\n',
            b"event: keepalive\ndata: 2026-11-30T08:12:00Z\n\n",
            b"id: 41\n\n",
            b"retry: 3000\n\n",
            b"data:\n\n",
        ],
    )
    def test_skipped_and_counted(self, frame):
        stream = Timeline().at(0.1, frame).at(0.2, HI).at(0.3, frame, *ENDING)
        reply = stream.reply()
        assert (reply.content, reply.comments, reply.malformed) == ("Hi", 2, 0)
        assert stream.figures().first_event_ns == ns(0.2)
        assert stream.figures().flags == ()

    def test_after_an_id(self):
        stream = Timeline().at(
            0.1, b"id: 1\n: OPENROUTER PROCESSING\n\n", b"id: 2\nevent: ping\ndata:\n\n", b"id: 3\n" + HI
        )
        reply = stream.at(0.2, *ENDING).reply()
        assert (reply.content, reply.malformed) == ("Hi", 0)
        assert reply.comments == 3  # the comment, the event that held nothing else, and the ping

    def test_a_comment_inside_an_event(self):
        reply = Timeline().at(0.1, HI[:-1] + b": still here\n\n", *ENDING).reply()
        assert (reply.content, reply.comments) == ("Hi", 1)


class TestMalformedLines:
    """What can't be read is counted, and the stream goes on."""

    @pytest.mark.parametrize(
        "frame",
        [
            b"data: : OPENROUTER PROCESSING\n\n",
            b'data: {"choices": [{"delta"\n\n',
            b"data: [1, 2]\n\n",
            b"data: null\n\n",
            b'data: "text"\n\n',
            b"upstream says hello\n\n",
            b"data: \xff\xfe\n\n",
        ],
    )
    def test_one_more_malformed(self, frame):
        stream = Timeline().at(0.1, HI).at(0.2, frame).at(0.3, text(" there"), *ENDING)
        reply = stream.reply()
        assert (reply.content, reply.malformed, reply.finish, reply.has_done) == ("Hi there", 1, "stop", True)
        assert "malformed_lines" in stream.figures().flags
        assert kind_of(stream) is None

    @pytest.mark.parametrize(
        "chunk",
        [
            {"choices": None},
            {"choices": {}},
            {"choices": [None, 3, "x", []]},
            {"choices": [{"delta": None}]},
            {"choices": [{"delta": [1]}]},
            {"choices": [{"delta": {"content": 5, "reasoning": 7, "tool_calls": "x"}}]},
            {"choices": [{"delta": {"tool_calls": [None, {}, 4, {"function": None}]}}]},
            {"choices": [{"delta": {"content": {"a": 1}, "reasoning_content": {"b": []}}}], "usage": [1]},
            {"id": 5, "model": ["m"], "usage": {"completion_tokens": {}}, "timings": 3},
        ],
    )
    def test_fields_of_other_types(self, chunk):
        reply = Timeline().at(0.1, event(chunk), HI, *ENDING).reply()
        assert (reply.content, reply.malformed) == ("Hi", 0)

    def test_numbers_that_json_does_not_know(self):
        frame = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"top":-Infinity,"x":NaN}}]}\n\n'
        reply = Timeline().at(0.1, frame, *ENDING).reply()
        assert (reply.content, reply.malformed) == ("a", 0)

    def test_a_character_in_two_chunks(self):
        halves = [
            b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n'.replace(b"d83d", half)
            for half in (b"d83d", b"de00")
        ]
        reply = Timeline().at(0.1, halves[0]).at(0.2, halves[1], *ENDING).reply()
        assert reply.content == "\U0001f600"
        lone = Timeline().at(0.1, halves[0], *ENDING).reply()
        assert lone.content == "\ufffd"

    def test_bytes_that_are_not_utf8(self):
        frame = b'data: {"choices":[{"index":0,"delta":{"content":"caf\xe9"}}]}\n\n'
        reply = Timeline().at(0.1, frame, *ENDING).reply()
        assert (reply.content, reply.malformed) == ("caf\ufffd", 0)


class TestLineEnds:
    """CR, LF, CRLF, no space after the colon, several data lines: one event each."""

    @pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
    @pytest.mark.parametrize("prefix", [b"data:", b"data: ", b"\xef\xbb\xbfdata: "])
    def test_each_line_end(self, line_end, prefix):
        body = (prefix + HI[6:]).replace(b"\n", line_end)
        stream = Timeline().at(0.1, body).at(0.2, *[frame.replace(b"\n", line_end) for frame in (text("!"), *ENDING)])
        reply = stream.reply()
        assert (reply.content, len(reply.events), reply.malformed, reply.has_done) == ("Hi!", 2, 0, True)
        assert [token_event.read for token_event in reply.events] == [0, 1]

    def test_crlf_split_over_two_reads(self):
        body = HI.replace(b"\n", b"\r\n")
        stream = Timeline().at(0.1, body[:-1]).at(0.2, body[-1:] + text("!"), *ENDING)
        assert [token_event.read for token_event in stream.reply().events] == [0, 1]
        assert stream.figures().ttft_ns == ns(0.1)

    def test_an_event_has_the_stamp_of_the_read_that_completed_it(self):
        stream = (
            Timeline().at(0.1, HI[:10]).at(0.2, HI[10:-1]).at(0.3, HI[-1:] + text("!")[:-1]).at(0.4, b"\n", *ENDING)
        )
        assert (stream.figures().ttft_ns, stream.figures().decode_ns) == (ns(0.3), ns(0.1))

    def test_data_over_several_lines(self):
        payload = json.dumps({"choices": [{"index": 0, "delta": {"content": "Hi"}}]}, indent=1).encode()
        frame = b"".join(b"data: " + line + b"\n" for line in payload.splitlines()) + b"\n"
        reply = Timeline().at(0.1, frame, *ENDING).reply()
        assert (reply.content, len(reply.events), reply.malformed) == ("Hi", 1, 0)

    def test_no_blank_line_between_events(self):
        reply = Timeline().at(0.1, HI[:-1] + text("!")[:-1] + finish("stop")[:-1] + DONE).reply()
        assert (reply.content, reply.finish, reply.has_done, reply.malformed) == ("Hi!", "stop", True, 0)

    @pytest.mark.parametrize("ending", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n", b"data: [DONE] \n\n"])
    def test_done_without_its_blank_line(self, ending):
        assert Timeline().at(0.1, HI, finish("stop"), ending).reply().has_done

    def test_nothing_after_done_counts(self):
        reply = Timeline().at(0.1, HI, *ENDING).at(0.9, text(" more"), b"data: {\n\n").reply()
        assert (reply.content, len(reply.events), reply.malformed) == ("Hi", 1, 0)

    def test_split_at_any_byte(self):
        body = think("grüße 😀\u2028") + text("日本") + call('{"a":"é"}', "bash", "x") + b"".join(ENDING)
        body = body.replace(b"\n\n", b"\r\n\r\n", 2)
        whole = assemble(body, [Read(1, len(body))])
        assert whole.content == "日本"
        for cut in range(len(body) + 1):
            split = assemble(body, [Read(1, cut), Read(2, len(body))])
            assert (split.content, split.reasoning, split.tool_calls) == (
                whole.content,
                whole.reasoning,
                whole.tool_calls,
            )
            assert [(e.kind, e.chars) for e in split.events] == [(e.kind, e.chars) for e in whole.events]
            assert [e.at_ns for e in split.events] == sorted(e.at_ns for e in split.events)


class TestShapesOfServers:
    """Chunks that some servers shape in their own way."""

    def test_azure(self):
        first = event({"id": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
        last = event(
            {"id": "", "model": "", "choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}]}
        )
        role = delta({"role": "assistant", "content": ""})
        stream = (
            Timeline().at(0.1, first).at(0.2, role).at(0.3, HI).at(0.4, finish("stop"), usage(3, 1)).at(0.5, last, DONE)
        )
        reply, figures = stream.reply(), stream.figures()
        assert (len(reply.events), reply.malformed, reply.model, reply.response_id) == (1, 0, "m", "c1")
        assert (figures.first_event_ns, figures.ttft_ns, figures.tail_ns) == (ns(0.1), ns(0.3), ns(0.2))

    def test_azure_with_usage_growing_beside_the_filter_chunks(self):
        filters = event({"choices": [{"index": 0, "content_filter_results": {}}], "usage": {"completion_tokens": 3}})
        stream = Timeline().at(0.1, HI).at(0.2, filters).at(0.3, *ENDING)
        assert len(stream.reply().events) == 1

    def test_a_whole_completion_instead_of_a_stream(self):
        body = {
            "id": "c",
            "choices": [{"index": 0, "message": {"content": "Hi", "reasoning": "hm"}, "finish_reason": "stop"}],
        }
        body["usage"] = {"prompt_tokens": 5, "completion_tokens": 20}
        stream = Timeline().at(2.0, json.dumps(body, indent=2).encode())
        reply = stream.reply()
        assert (reply.content, reply.reasoning, reply.finish, reply.malformed) == ("Hi", "hm", "stop", 0)
        assert kind_of(stream) is None
        assert stream.figures().is_buffered

    def test_progress_of_the_prompt_is_no_token(self):
        progress = delta({"role": "assistant", "content": None}, prompt_progress={"total": 900, "processed": 512})
        assert Timeline().at(0.1, progress).at(0.2, HI, *ENDING).figures().ttft_ns == ns(0.2)

    def test_usage_inside_the_choice_or_under_another_name(self):
        inside = event(
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"completion_tokens": 7}}]}
        )
        groq = event({"choices": [], "x_groq": {"usage": {"prompt_tokens": 2, "completion_tokens": 7}}})
        renamed = event({"choices": [], "usage": {"input_tokens": 2, "output_tokens": 7, "cache_read_input_tokens": 1}})
        for frame in (inside, groq, renamed):
            assert Timeline().at(0.1, HI, frame, DONE).reply().usage.output_tokens == 7

    def test_of_several_choices_one_message_is_kept(self):
        both = event({"choices": [{"index": i, "delta": {"content": word}} for i, word in enumerate(("Hi", "Hello"))]})
        other = event({"choices": [{"index": 1, "delta": {"content": " you"}}]})
        reply = Timeline().at(0.1, both, other, *ENDING).reply()
        assert (reply.content, len(reply.events)) == ("Hi", 1)

    def test_a_stream_of_plain_completions(self):
        first, second = (
            event({"choices": [{"index": 0, "text": word, "finish_reason": None}]}) for word in ("Hi", " you")
        )
        reply = Timeline().at(0.1, first).at(0.2, second, finish("stop"), DONE).reply()
        assert (reply.content, len(reply.events)) == ("Hi you", 2)

    def test_a_refusal_is_an_answer(self):
        stream = Timeline().at(0.1, delta({"content": None, "refusal": "I can't."})).at(0.2, *ENDING)
        assert (stream.reply().content, stream.figures().ttfo_ns) == ("I can't.", ns(0.1))

    def test_without_reads_nothing_is_timed(self):
        reply = assemble(HI + b"".join(ENDING), [])
        assert (reply.content, reply.events, reply.first_event_ns) == ("Hi", (), None)
