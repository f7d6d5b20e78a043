"""Times and token counts of streams as they come from real servers, as bytes with arrival times."""

from __future__ import annotations

import pytest
from timeline import DONE, START_NS, Timeline, call, delta, event, finish, ns, text, think, tokens, usage

from agentprof.records.call import ServerTimes, Usage
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


class TestUsage:
    """Output tokens are the server's last count that isn't null, reasoning included."""

    def test_reasoning_is_part_of_the_count(self):
        details = {"completion_tokens_details": {"reasoning_tokens": 80}}
        stream = (
            Timeline().at(1, think("a")).at(9, text("b")).at(11, text("c"), finish("stop"), usage(9, 100, **details))
        )
        figures = stream.figures()
        assert stream.reply().usage == Usage(prompt_tokens=9, output_tokens=100, reasoning_tokens=80)
        assert (figures.output_tokens, figures.decode_ns) == (100, ns(10))
        assert round(figures.decode_tok_s) == 10

    @pytest.mark.parametrize(
        ("counts", "right"),
        [((1, 4, 5, 99), 99), ((1, 4, None), 4), ((0, None, 12, None), 12)],
    )
    def test_the_last_count_that_is_not_null(self, counts, right):
        stream = Timeline()
        for i, count in enumerate(counts):
            stream.at(0.1 + i / 10, text("x", usage={"prompt_tokens": 3, "completion_tokens": count}))
        assert stream.figures().output_tokens == right

    def test_usage_null_on_every_chunk_but_the_last(self):
        stream = Timeline().at(0.1, text("a", usage=None)).at(0.2, text("b", usage=None), usage(2, 2))
        assert (stream.figures().output_tokens, stream.figures().is_estimated) == (2, False)

    def test_no_usage_is_counted_and_estimated(self):
        stream = Timeline().at(0.1, text("a")).at(0.2, text("b")).at(0.3, text("c"), finish("stop"), DONE)
        figures = stream.figures()
        assert (figures.output_tokens, figures.output_tokens_source, figures.is_estimated) == (3, "counted", True)
        assert figures.flags == ("estimated_tokens", "no_usage")

    def test_usage_of_zero_beside_tokens_is_no_count(self):
        stream = Timeline().at(0.1, text("a", usage=tokens(0))).at(0.2, text("b", usage=tokens(0)))
        figures = stream.figures()
        assert (figures.output_tokens, figures.output_tokens_source) == (2, "counted")
        assert [token_event.tokens for token_event in stream.reply().events] == [None, None]

    def test_usage_that_is_garbage_is_no_count(self):
        broken = {"prompt_tokens": -4, "completion_tokens": "12", "prompt_tokens_details": [1]}
        figures = Timeline().at(0.1, text("a", usage=broken)).at(0.2, text("b", usage=True)).figures()
        assert (figures.output_tokens, figures.output_tokens_source) == (2, "counted")

    def test_the_usage_chunk_after_the_finish_is_no_token(self):
        stream = Timeline().at(0.1, text("a")).at(0.2, text("b")).at(0.9, finish("stop"), usage(10, 50), DONE)
        figures = stream.figures()
        assert (figures.output_tokens, len(stream.reply().events)) == (50, 2)
        assert figures.last_token_ns == START_NS + ns(0.2)
        assert figures.tail_ns == ns(0.7)

    def test_a_usage_chunk_that_has_choices_is_no_token_either(self):
        late = event({"choices": [{"index": 0, "delta": {}}], "usage": tokens(50, 10)})
        stream = Timeline().at(0.1, text("a")).at(0.2, finish("stop")).at(0.9, late, DONE)
        assert len(stream.reply().events) == 1
        assert stream.figures().output_tokens == 50

    def test_usage_on_the_finish_chunk_is_no_token(self):
        stream = Timeline().at(0.1, text("a")).at(0.2, delta({}, "stop", usage=tokens(3)), DONE)
        assert len(stream.reply().events) == 1
        assert (stream.figures().output_tokens, stream.figures().tail_ns) == (3, ns(0.1))

    @pytest.mark.parametrize("ending", [b"", DONE])
    def test_finish_and_usage_without_any_content(self, ending):
        figures = Timeline().at(0.3, finish("stop"), usage(10, 50), ending).figures()
        assert (figures.output_tokens, figures.ttft_ns, figures.decode_ns, figures.tail_ns) == (50, None, None, None)

    def test_role_then_finish_has_no_first_token(self):
        stream = Timeline().at(0.1, delta({"role": "assistant"})).at(0.4, finish("stop"), usage(9, 1), DONE)
        figures = stream.figures()
        assert (figures.ttft_ns, figures.ttfo_ns, figures.output_tokens, figures.decode_ns) == (None, None, 1, None)
        assert figures.flags == ("no_token_events",)
        assert failure(stream.reply(), has_clean_eof=True) is None

    def test_one_token_event_has_a_decode_of_zero_and_no_rate(self):
        figures = Timeline().at(0.3, text("Yes")).at(0.4, finish("stop"), usage(9, 2), DONE).figures()
        assert (figures.decode_ns, figures.decode_tok_s, figures.peak_interval_tok_s) == (0, None, None)
        assert figures.tail_ns == ns(0.1)


class TestHeldBack:
    """A hop or a parser held tokens back: what can't be split isn't split."""

    def test_one_large_tool_delta_after_silence(self):
        arguments = '{"content":"' + "x" * 17_000 + '"}'
        stream = Timeline().at(0.05, delta({"role": "assistant"})).at(32.2, call(arguments, "write_file", "a"))
        stream.at(32.21, finish("tool_calls"), usage(124_000, 4_400), DONE)
        figures = stream.figures()
        assert figures.is_buffered
        assert (figures.decode_ns, figures.decode_tok_s, figures.peak_interval_tok_s) == (None, None, None)
        assert figures.decode_split_ns == {}
        assert figures.flags == ("buffered", "ttft_upper_bound", "estimated_tokens")
        assert inter_chunk_ns(stream.reply(), figures) == ()
        assert round(figures.output_tokens / 32.21, 1) == 136.6

    def test_the_same_with_a_growing_count_is_measured(self):
        stream = Timeline()
        for step in range(1, 441):
            stream.at(0.2 + step * 0.07 - 0.07, delta({}, usage=tokens(step * 10, 124_000)))
        stream.at(32.2, call('{"content":"' + "x" * 17_000 + '"}', "write_file", "a"))
        stream.at(32.21, finish("tool_calls"), usage(124_000, 4_400), DONE)
        figures = stream.figures()
        assert (figures.ttft_ns, figures.ttfo_ns) == (ns(0.2), ns(32.2))
        assert (figures.is_buffered, figures.decode_ns) == (False, ns(32.0))
        assert (figures.first_read_tokens, figures.is_estimated) == (10, False)
        assert figures.decode_split_ns == {"hidden": ns(439 * 0.07), "tool_call": ns(32.0) - ns(439 * 0.07)}
        assert figures.flags == ()

    def test_growth_after_the_finish_is_no_token(self):
        stream = (
            Timeline().at(0.1, text("a", usage=tokens(1))).at(0.2, finish("stop")).at(0.5, delta({}, usage=tokens(9)))
        )
        assert len(stream.reply().events) == 1

    def test_everything_in_one_chunk(self):
        content = "word " * 4_096
        stream = Timeline().at(71.022, text(content)).at(71.051, finish("stop"), usage(100, 4_096), DONE)
        figures = stream.figures()
        assert (figures.decode_ns, figures.ttft_ns, figures.tail_ns) == (None, ns(71.022), ns(0.029))
        assert round(figures.output_tokens / 71.051, 2) == 57.65

    def test_the_whole_stream_in_one_read(self):
        stream = Timeline().at(3.0, *[text(f"w{i} ", usage=tokens(i + 1)) for i in range(40)], finish("stop"), DONE)
        figures = stream.figures()
        assert (figures.is_buffered, figures.is_estimated, figures.decode_ns) == (True, False, None)
        assert figures.first_read_tokens == 40

    def test_a_flush_larger_than_the_sockets_buffer_is_one(self):
        part = [text("word ") for _ in range(1024)]
        stream = Timeline().at(71.02, *part).at(71.0205, *part).at(71.021, *part).at(71.0215, *part, usage(9, 4096))
        figures = stream.figures()
        assert (figures.is_buffered, figures.decode_ns) == (True, None)

    def test_fast_decoding_in_small_reads_is_no_flush(self):
        stream = Timeline()
        for step in range(64):
            stream.at(1 + step * 0.0005, *[text("word ")] * 8)
        assert stream.at(1.04, usage(9, 512)).figures().is_buffered is False

    @pytest.mark.parametrize(("first", "is_buffered"), [(90, True), (89, False)])
    def test_nine_tenths_of_the_tokens_is_the_limit(self, first, is_buffered):
        stream = Timeline().at(1, text("a", usage=tokens(first))).at(2, text("b" * 999, usage=tokens(100)))
        assert stream.figures().is_buffered is is_buffered
        assert stream.figures().is_estimated is False

    @pytest.mark.parametrize(("first", "is_buffered"), [(90, True), (89, False)])
    def test_nine_tenths_of_the_characters_where_counts_lack(self, first, is_buffered):
        stream = Timeline().at(1, text("a" * first)).at(2, text("b" * (100 - first)), usage(5, 20))
        assert stream.figures().is_buffered is is_buffered
        assert stream.figures().is_estimated

    def test_a_share_of_characters_is_an_estimate_even_with_an_event_per_token(self):
        stream = Timeline().at(1, *[text("ab")] * 18).at(2, text("c")).at(2.1, text("d"), usage(5, 20))
        figures = stream.figures()
        assert (figures.is_buffered, figures.is_estimated, figures.first_read_tokens) == (True, True, 18)

    @pytest.mark.parametrize(("output_tokens", "is_buffered"), [(16, False), (17, True)])
    def test_a_short_answer_may_fit_one_read(self, output_tokens, is_buffered):
        figures = Timeline().at(1, text("some short answer"), finish("stop"), usage(5, output_tokens), DONE).figures()
        assert figures.is_buffered is is_buffered
        assert figures.decode_ns == (None if is_buffered else 0)

    def test_a_late_large_delta_keeps_the_decode_time(self):
        stream = Timeline()
        for i in range(20):
            stream.at(1 + i * 0.02, text("word"))
        stream.at(15, call('{"content":"' + "x" * 1_600 + '"}', "write_file", "a"))
        stream.at(15, finish("tool_calls"), usage(50, 420), DONE)
        figures = stream.figures()
        assert (figures.decode_ns, figures.is_buffered) == (ns(14), False)
        assert figures.flags == ("estimated_tokens", "late_delta")
        assert figures.peak_interval_tok_s is None
        assert inter_chunk_ns(stream.reply(), figures) == ()

    def test_two_late_deltas_are_late_too(self):
        stream = Timeline().at(1, text("I'll")).at(12, call('{"a":"' + "x" * 900 + '"}', "write_file", "a"))
        stream.at(
            20, call('{"a":"' + "x" * 700 + '"}', "write_file", "b", 1), finish("tool_calls"), usage(50, 420), DONE
        )
        assert "late_delta" in stream.figures().flags

    def test_a_steady_slow_stream_is_not_late(self):
        stream = Timeline()
        for i in range(30):
            stream.at(1 + i * 0.5, text("word"))
        assert "late_delta" not in stream.figures().flags


class TestBursts:
    """Chunks in periodic bursts of equal size: a buffer along the way flushes when it is full."""

    @staticmethod
    def bursts(sizes, *, period=0.5, spread=0.0):
        stream = Timeline()
        for i, size in enumerate(sizes):
            if spread:
                for j in range(size):
                    stream.at(1 + i * period + j * spread, text("word"))
            else:
                stream.at(1 + i * period, *[text("word")] * size)
        return stream.figures()

    def test_65_chunks_a_burst(self):
        stream = Timeline()
        filler = {"system_fingerprint": "f" * 150}
        for i in range(4):
            stream.at(1 + i * 0.6, *[text("word", **filler)] * 65)
        stream.at(3.5, *[text("word", **filler)] * 20, finish("stop"), usage(9, 280), DONE)
        assert len(stream.body) > 64_000
        assert stream.figures().flags == ("bursts:65",)

    @pytest.mark.parametrize(
        ("sizes", "flag"),
        [
            ([65, 65, 65], "bursts:65"),
            ([64, 66, 65, 65, 3], "bursts:65"),
            ([1, 8, 8, 8, 8, 8, 5], "bursts:8"),
        ],
    )
    def test_sizes_that_are_nearly_equal(self, sizes, flag):
        assert flag in self.bursts(sizes).flags

    def test_a_burst_over_several_reads(self):
        assert "bursts:12" in self.bursts([12] * 5, spread=0.0002).flags

    @pytest.mark.parametrize("sizes", [[1] * 40, [2] * 20, [5, 40, 9, 70, 22], [30, 30], [4, 9, 6, 8, 5, 7]])
    def test_what_are_no_bursts(self, sizes):
        assert not [flag for flag in self.bursts(sizes).flags if flag.startswith("bursts")]

    def test_equal_reads_at_odd_times_are_no_bursts(self):
        stream = Timeline()
        for at in (1, 1.1, 3, 3.1, 9, 9.3, 20):
            stream.at(at, *[text("word")] * 10)
        assert stream.figures().flags == ("estimated_tokens", "no_usage")


class TestServerReports:
    """What servers say of their own time is kept beside the usage and never added to it."""

    def test_llama_cpp_timings(self):
        timings = {"prompt_n": 1, "prompt_ms": 14.5, "predicted_n": 5, "predicted_ms": 48.984}
        stream = Timeline().at(0.1, text("a")).at(0.2, text("b"))
        stream.at(0.2, finish("stop"), event({"choices": [], "usage": tokens(5, 15), "timings": timings}), DONE)
        reply = stream.reply()
        assert reply.usage == Usage(prompt_tokens=15, output_tokens=5, cached_tokens=14)
        assert reply.server_times == ServerTimes(
            "llama.cpp timings", prefill_ns=14_500_000, decode_ns=48_984_000, prefilled_tokens=1
        )
        assert stream.figures().output_tokens == 5
        assert round(stream.figures().output_tokens * 1e9 / reply.server_times.decode_ns, 1) == 102.1

    def test_llama_cpp_timings_with_cache_and_drafts(self):
        timings = {"cache_n": 236, "prompt_n": 1, "prompt_ms": 30.958, "predicted_ms": 661.064}
        drafts = {"draft_n": 40, "draft_n_accepted": 31}
        details = {"prompt_tokens_details": {"cached_tokens": 0}}
        last = event({"choices": [], "usage": {**tokens(35, 237), **details}, "timings": {**timings, **drafts}})
        reply = Timeline().at(0.1, text("a"), last).reply()
        assert reply.usage.cached_tokens == 0  # the usage has it: the report doesn't replace it
        assert reply.server_times == ServerTimes(
            "llama.cpp timings",
            prefill_ns=30_958_000,
            decode_ns=661_064_000,
            prefilled_tokens=1,
            cached_tokens=236,
            draft_tokens=40,
            accepted_draft_tokens=31,
        )

    def test_llama_cpp_cached_tokens_as_reported(self):
        last = event({"choices": [], "usage": tokens(3, 20), "timings": {"cache_n": 0, "prompt_n": 18}})
        assert Timeline().at(0.1, text("a"), last).reply().usage.cached_tokens == 0

    def test_timings_on_every_chunk_the_last_stands(self):
        stream = Timeline()
        for i in range(1, 4):
            stream.at(i / 10, text("a", timings={"prompt_n": 9, "predicted_n": i, "predicted_ms": i * 10.0}))
        reply = stream.reply()
        assert reply.server_times.decode_ns == 30_000_000
        assert reply.usage.output_tokens is None

    def test_vllm_metrics(self):
        metrics = {
            "time_to_first_token_ms": 80.25,
            "generation_time_ms": 400,
            "queue_time_ms": 12.5,
            "mean_itl_ms": 4.0,
        }
        speculative = {"num_spec_steps": 20, "num_draft_tokens": 140, "num_accepted_draft_tokens": 79}
        last = event({"choices": [], "usage": tokens(100), "metrics": {**metrics, "speculative_decoding": speculative}})
        assert Timeline().at(0.1, text("a"), last).reply().server_times == ServerTimes(
            "vllm metrics",
            queue_ns=12_500_000,
            prefill_ns=80_250_000,
            decode_ns=400_000_000,
            draft_tokens=140,
            accepted_draft_tokens=79,
            decode_steps=20,
        )

    def test_sglang_extension(self):
        details = {"spec_verify_ct": 20, "spec_num_proposed_drafts": 140, "spec_num_correct_drafts": 79}
        extension = {"spec_tokens_details": details, "cached_tokens_details": {"device": 30, "host": 2}}
        last = event({"choices": [], "usage": tokens(100), "sglext": extension})
        reply = Timeline().at(0.1, text("a"), last).reply()
        assert reply.server_times == ServerTimes(
            "sglang sglext", cached_tokens=32, draft_tokens=140, accepted_draft_tokens=79, decode_steps=20
        )
        assert reply.usage.cached_tokens == 32

    @pytest.mark.parametrize(
        "report",
        [{"timings": {}}, {"timings": {"prompt_ms": "x", "prompt_n": -1}}, {"metrics": [1]}, {"sglext": {"a": 1}}],
    )
    def test_a_report_without_figures_is_none(self, report):
        assert Timeline().at(0.1, text("a", **report)).reply().server_times is None


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
