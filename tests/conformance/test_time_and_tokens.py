"""Times and token counts of streams as they come from real servers, as bytes with arrival times."""

from __future__ import annotations

import pytest
from timeline import DONE, START_NS, Timeline, call, delta, event, finish, ns, text, think, tokens, usage

from agentprof.wire.figures import failure, inter_chunk_ns, measure


class TestSeveralTokensPerChunk:
    """One chunk carries several tokens: the gap between chunks is not the time per token."""

    def test_without_counts_per_chunk_the_figures_are_estimates(self):
        stream = (
            Timeline().at(0.10, text("one two ")).at(0.14, text("six ten ")).at(0.18, text("end now."), usage(5, 12))
        )
        figures = stream.figures()
        assert (figures.output_tokens, figures.output_tokens_source) == (12, "server")
        assert inter_chunk_ns(stream.reply(), figures) == (ns(0.04), ns(0.04))
        assert figures.output_tokens / len(stream.reply().events) == 4
        assert figures.first_read_tokens == 1
        assert figures.is_estimated
        assert figures.decode_ns == ns(0.08)
        assert figures.decode_tok_s == pytest.approx(137.5)
        assert figures.peak_interval_tok_s >= figures.decode_tok_s

    def test_cumulative_usage_on_the_chunks_makes_them_exact(self):
        stream = (
            Timeline()
            .at(0.10, text("one two ", usage=tokens(4)))
            .at(0.14, text("six ten ", usage=tokens(8)))
            .at(0.18, text("end now.", usage=tokens(12)), usage(5, 12))
        )
        figures = stream.figures()
        assert [token_event.tokens for token_event in stream.reply().events] == [4, 4, 4]
        assert (figures.first_read_tokens, figures.is_estimated) == (4, False)
        assert figures.decode_tok_s == pytest.approx(100)
        assert figures.peak_interval_tok_s == pytest.approx(100)

    def test_token_ids_make_them_exact(self):
        def chunk(content: str, ids: list[int]) -> bytes:
            choice = {"index": 0, "delta": {"content": content}, "token_ids": ids}
            return event({"choices": [choice]})

        stream = (
            Timeline()
            .at(0.2, chunk("abc", [1, 2, 3]))
            .at(0.3, chunk("", [4, 5]))
            .at(0.4, chunk("de", [6]), finish("stop"), usage(5, 6))
        )
        figures = stream.figures()
        assert [(e.kind, e.tokens) for e in stream.reply().events] == [("content", 3), ("hidden", 2), ("content", 1)]
        assert (figures.first_read_tokens, figures.is_estimated) == (3, False)
        assert figures.decode_tok_s == pytest.approx(15)
        assert figures.decode_split_ns == {"hidden": ns(0.1), "content": ns(0.1)}

    def test_two_chunks_in_the_first_read_are_both_of_n1(self):
        stream = Timeline().at(0.1, text("a"), text("b")).at(0.2, text("c")).at(0.3, text("d"), usage(5, 4))
        figures = stream.figures()
        assert (figures.first_read_tokens, figures.is_estimated) == (2, False)
        assert figures.decode_tok_s == pytest.approx(10)
        assert inter_chunk_ns(stream.reply(), figures) == (ns(0.1), ns(0.1))

    def test_a_chunk_without_count_leaves_the_next_growth_open(self):
        stream = (
            Timeline()
            .at(0.1, text("a", usage=tokens(1)))
            .at(0.2, text("b"))
            .at(0.3, text("c", usage=tokens(5)))
            .at(0.4, text("d", usage=tokens(7)))
        )
        assert [token_event.tokens for token_event in stream.reply().events] == [1, None, None, 2]

    def test_token_ids_inside_the_delta(self):
        stream = (
            Timeline()
            .at(0.2, delta({"content": "abc", "token_ids": [1, 2, 3]}))
            .at(0.3, delta({"content": "", "token_ids": [4]}))
        )
        assert [(e.kind, e.tokens) for e in stream.reply().events] == [("content", 3), ("hidden", 1)]

    def test_token_ids_and_a_cumulative_count_are_of_the_same_tokens(self):
        first = event({"choices": [{"index": 0, "delta": {"content": "abc"}, "token_ids": [1, 2, 3]}]})
        stream = Timeline().at(0.2, first).at(0.3, text("de", usage=tokens(5))).at(0.4, delta({}, usage=tokens(5)))
        assert [token_event.tokens for token_event in stream.reply().events] == [3, 2]

    def test_a_count_that_falls_is_no_growth(self):
        stream = Timeline().at(0.1, text("a", usage=tokens(9))).at(0.2, text("b", usage=tokens(4)))
        assert [token_event.tokens for token_event in stream.reply().events] == [9, 0]

    def test_one_chunk_without_count_in_the_first_read_makes_n1_an_estimate(self):
        stream = Timeline().at(0.1, text("a", usage=tokens(1)), text("b")).at(0.2, text("c"))
        assert stream.at(0.3, text("d"), usage(5, 20)).figures().is_estimated


class TestFirstToken:
    """The role chunk, the first token and the first visible token are three moments."""

    def test_role_chunk_is_the_first_event_and_no_token(self):
        stream = (
            Timeline()
            .at(0.005, delta({"role": "assistant", "content": ""}))
            .at(0.214, text("Hi"))
            .at(0.234, text("!"), finish("stop"), usage(3, 2), DONE)
        )
        figures = stream.figures()
        assert (figures.first_event_ns, figures.ttft_ns, figures.ttfo_ns) == (ns(0.005), ns(0.214), ns(0.214))
        assert figures.first_token_ns == START_NS + ns(0.214)
        assert figures.last_token_ns == START_NS + ns(0.234)
        assert (figures.decode_ns, figures.first_read_tokens, figures.output_tokens) == (ns(0.020), 1, 2)
        assert figures.decode_tok_s == pytest.approx(1 / 0.020)
        assert figures.flags == ()

    @pytest.mark.parametrize(
        "opening",
        [
            {"role": "assistant"},
            {"role": "assistant", "content": None},
            {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []},
            {"role": "assistant", "content": None, "reasoning": None, "tool_calls": None, "refusal": None},
        ],
    )
    def test_no_kind_of_empty_opening_is_a_token(self, opening):
        figures = Timeline().at(0.01, delta(opening)).at(0.5, text("x"), finish("stop"), usage(1, 1)).figures()
        assert (figures.first_event_ns, figures.ttft_ns) == (ns(0.01), ns(0.5))

    def test_an_empty_opening_with_usage_of_zero_is_no_token(self):
        opening = delta({"role": "assistant", "content": ""}, usage=tokens(0))
        figures = Timeline().at(0.01, opening).at(0.5, text("x", usage=tokens(1))).figures()
        assert figures.ttft_ns == ns(0.5)
        assert figures.first_read_tokens == 1

    def test_keep_alives_are_no_first_event(self):
        figures = Timeline().at(0.1, b": ping\n\n").at(0.2, b"event: ping\ndata:\n\n").at(0.3, text("x")).figures()
        assert (figures.first_event_ns, figures.ttft_ns) == (ns(0.3), ns(0.3))

    @pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
    def test_reasoning_is_a_token_and_not_visible(self, field):
        stream = Timeline().at(1.175, think("Let", field)).at(183.581, text("The")).at(192.851, text(" end"))
        stream.at(192.851, finish("stop"), usage(10, 13_228), DONE)
        figures = stream.figures()
        assert (figures.ttft_ns, figures.ttfo_ns) == (ns(1.175), ns(183.581))
        assert round(figures.decode_tok_s, 1) == 69.0
        assert figures.decode_split_ns == {"content": ns(192.851 - 1.175)}

    def test_reasoning_in_both_fields_counts_once(self):
        stream = Timeline().at(0.1, delta({"reasoning": "ab", "reasoning_content": "ab"})).at(0.2, text("c"))
        reply = stream.reply()
        assert reply.reasoning == "ab"
        assert [(token_event.kind, token_event.chars) for token_event in reply.events] == [
            ("reasoning", 2),
            ("content", 1),
        ]

    @pytest.mark.parametrize(
        "fields",
        [
            {"reasoning": {"content": "ab"}},
            {"reasoning": ["a", {"text": "b"}]},
            {"reasoning_details": [{"type": "reasoning.text", "text": "ab"}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "ab"}]}]},
        ],
    )
    def test_reasoning_as_object_or_list(self, fields):
        reply = Timeline().at(0.1, delta(fields)).reply()
        assert (reply.reasoning, reply.content) == ("ab", "")
        assert [token_event.kind for token_event in reply.events] == ["reasoning"]

    def test_reasoning_alone_cut_by_length(self):
        stream = Timeline().at(0.4, think("hm")).at(0.9, think("mm")).at(0.9, finish("length"), usage(4, 2), DONE)
        figures = stream.figures()
        assert (figures.ttft_ns, figures.ttfo_ns, figures.decode_ns) == (ns(0.4), None, ns(0.5))
        assert figures.flags == ("length_cut",)
        assert failure(stream.reply(), has_clean_eof=True) is None

    def test_a_tool_call_is_visible(self):
        stream = (
            Timeline().at(0.4, think("hm")).at(0.9, call("{", "bash", "a")).at(1.0, call("}"), finish("tool_calls"))
        )
        figures = stream.figures()
        assert (figures.ttft_ns, figures.ttfo_ns) == (ns(0.4), ns(0.9))
        assert figures.decode_split_ns == {"tool_call": ns(0.6)}

    def test_a_chunk_that_ends_reasoning_and_begins_the_answer_is_visible(self):
        stream = Timeline().at(0.1, think("a")).at(0.2, delta({"reasoning": "b", "content": "c"})).at(0.3, text("d"))
        figures = stream.figures()
        assert figures.ttfo_ns == ns(0.2)
        assert stream.reply().events[1].chars == 2

    @pytest.mark.parametrize("more", [{"reasoning_content": None}, {"reasoning": ""}])
    def test_reasoning_among_the_content_beside_an_empty_field(self, more):
        reply = Timeline().at(0.1, delta({"content": [{"type": "thinking", "thinking": "ab"}], **more})).reply()
        assert (reply.reasoning, reply.content) == ("ab", "")

    def test_content_in_parts_of_several_kinds(self):
        parts = [{"type": "reasoning", "text": "ab"}, "cd", {"type": "text", "text": "ef"}]
        reply = Timeline().at(0.1, delta({"content": parts})).reply()
        assert (reply.reasoning, reply.content) == ("ab", "cdef")


class TestForcedLength:
    """A length that the server was told to write, and didn't."""

    def test_37_of_128(self):
        stream = Timeline().at(0.1, text("a")).at(0.46, text("b"), finish("stop"), usage(5, 37), DONE)
        figures = stream.figures(forced_tokens=128)
        assert (figures.output_tokens, figures.flags) == (37, ("estimated_tokens", "short_of_forced_length"))
        assert figures.decode_tok_s == pytest.approx(100)

    def test_length_kept_is_no_flag(self):
        stream = Timeline().at(0.1, text("a")).at(0.2, text("b"), finish("length"), usage(5, 2), DONE)
        assert stream.figures(forced_tokens=2).flags == ()

    def test_counted_events_cannot_tell(self):
        stream = Timeline().at(0.1, text("several tokens")).at(0.2, text("in one"), finish("length"), DONE)
        assert "short_of_forced_length" not in stream.figures(forced_tokens=8).flags


class TestSeveralCalls:
    """Figures over several calls rest on each call's own."""

    def test_calls_that_break_in_mid_stream_are_failures(self):
        whole = Timeline().at(0.1, text("a")).at(0.2, text("b"), finish("stop"), usage(5, 20), DONE)
        broken = Timeline().at(0.1, text("a")).at(0.2, text("b"))
        streams = [whole] * 7 + [broken] * 3
        outcomes = [failure(stream.reply(), has_clean_eof=False) for stream in streams]
        good = [stream.figures() for stream, failed in zip(streams, outcomes, strict=True) if failed is None]
        assert (len(good), sum(figures.output_tokens for figures in good)) == (7, 140)
        assert [failed[0] for failed in outcomes if failed] == ["truncated"] * 3

    @pytest.mark.parametrize("pool_wait", [0, 0.7, 12.5])
    def test_the_wait_for_a_connection_is_not_in_ttft(self, pool_wait):
        stream = Timeline().at(pool_wait + 0.3, text("a")).at(pool_wait + 0.4, text("b"), finish("stop"), DONE)
        attempt_ns = START_NS + ns(pool_wait)
        figures = measure(stream.reply(), start_ns=attempt_ns, end_ns=stream.reads[-1].at_ns, forced_tokens=None)
        assert (figures.ttft_ns, figures.first_event_ns, figures.decode_ns) == (ns(0.3), ns(0.3), ns(0.1))

    def test_rates_by_name(self):
        stream = Timeline()
        for i in range(100):
            stream.at(2 + i * 2 / 99, text("word"))
        stream.at(4, finish("stop"), usage(50, 100), DONE)
        figures = stream.figures()
        wall_s, tool_s = 4, 6
        assert figures.ttft_ns == ns(2)
        assert figures.decode_tok_s == pytest.approx(49.5)
        assert figures.output_tokens / wall_s == 25
        assert figures.output_tokens / (wall_s + tool_s) == 10


class TestPeakInterval:
    """The best window of at most one second is never below the mean."""

    def test_the_best_second_of_a_longer_decode(self):
        stream = Timeline()
        for i in range(11):
            stream.at(1 + i * 0.2, text("a", usage=tokens(1 + i)))
        for i in range(10):
            stream.at(3.1 + i * 0.1, text("a", usage=tokens(12 + i)))
        assert stream.figures().peak_interval_tok_s == pytest.approx(10)
        assert stream.figures().decode_tok_s == pytest.approx(20 / 3)

    def test_tokens_at_both_ends_and_none_between(self):
        stream = Timeline().at(1, text("a", usage=tokens(1))).at(1.1, text("a", usage=tokens(11)))
        stream.at(2.4, text("a", usage=tokens(12))).at(2.5, text("a", usage=tokens(21)))
        assert stream.figures().decode_tok_s == pytest.approx(20 / 1.5)
        assert stream.figures().peak_interval_tok_s == pytest.approx(20 / 1.5)

    def test_a_window_holds_no_token_of_the_first_read(self):
        stream = Timeline().at(1, text("a", usage=tokens(50))).at(1.5, text("b", usage=tokens(60)))
        assert stream.figures().peak_interval_tok_s == pytest.approx(20)

    def test_tokens_without_counts_are_shared_by_characters(self):
        stream = Timeline().at(1, text("a"))
        for i, size in enumerate((10, 10, 1, 1), start=1):
            stream.at(1 + i * 0.5, text("x" * size))
        figures = stream.at(3, usage(5, 23)).figures()
        assert figures.decode_tok_s == pytest.approx(11)
        assert figures.peak_interval_tok_s == pytest.approx(20)
