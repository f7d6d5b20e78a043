"""Streams that something along the way held back, as bytes with arrival times."""

from __future__ import annotations

import pytest
from timeline import DONE, Timeline, call, delta, finish, ns, text, tokens, usage

from agentprof.wire.figures import inter_chunk_ns


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

    def test_characters_decide_as_soon_as_one_count_lacks(self):
        stream = Timeline().at(3, text("a" * 90, usage=tokens(4)), finish("stop"), usage(5, 40), DONE)
        assert stream.figures().is_buffered

    def test_what_is_buffered_isn_t_split_though_more_followed(self):
        stream = Timeline().at(1, text("a", usage=tokens(90))).at(2, text("b", usage=tokens(95)))
        figures = stream.at(3, text("c", usage=tokens(100))).figures()
        assert figures.is_buffered
        assert inter_chunk_ns(stream.reply(), figures) == ()
        assert figures.decode_split_ns == {}


class TestLateDelta:
    """A long silence, then one large delivery, after a first token had come."""

    def test_a_late_large_delta_keeps_the_decode_time(self):
        stream = self.steady()
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

    def test_an_opening_word_and_then_everything(self):
        stream = Timeline().at(1, text("I'll")).at(12, call('{"a":"' + "x" * 900 + '"}', "write_file", "a"))
        assert "late_delta" in stream.at(12, finish("tool_calls"), usage(50, 240), DONE).figures().flags

    def test_a_delivery_over_several_reads(self):
        stream = self.steady()
        for i in range(3):
            stream.at(15 + i * 0.0004, call("x" * 600, "write_file", "a"))
        assert "late_delta" in stream.at(15.01, usage(50, 470)).figures().flags

    def test_a_large_delivery_without_a_silence_is_not_late(self):
        stream = Timeline().at(1, text("I'll")).at(1.1, text("x" * 400)).at(1.2, text(".")).at(1.3, usage(50, 101))
        assert "late_delta" not in stream.figures().flags

    def test_a_few_tokens_after_a_silence_are_not_late(self):
        assert "late_delta" not in self.steady().at(9, text("word" * 12), usage(50, 32)).figures().flags

    def test_a_large_delivery_in_a_slow_stream_is_not_late(self):
        stream = Timeline()
        for i in range(30):
            stream.at(1 + i * 0.5, text("word" * (40 if i == 20 else 1)))
        assert "late_delta" not in stream.at(17, usage(50, 69)).figures().flags

    @staticmethod
    def steady():
        stream = Timeline()
        for i in range(20):
            stream.at(1 + i * 0.02, text("word"))
        return stream


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
            ([60, 66, 63, 65, 3], "bursts:63"),
            ([7, 8, 9, 8, 8, 2], "bursts:8"),
            ([4] * 6, "bursts:4"),
        ],
    )
    def test_sizes_that_are_nearly_equal(self, sizes, flag):
        assert flag in self.bursts(sizes).flags

    def test_a_burst_over_several_reads(self):
        assert "bursts:12" in self.bursts([12] * 5, spread=0.0002).flags

    @pytest.mark.parametrize(
        "sizes", [[1] * 40, [2] * 20, [5, 40, 9, 70, 22], [30, 30], [4, 9, 6, 8, 5, 7], [3] * 9, [50, 58, 66] * 2]
    )
    def test_what_are_no_bursts(self, sizes):
        assert not [flag for flag in self.bursts(sizes).flags if flag.startswith("bursts")]

    def test_equal_reads_at_odd_times_are_no_bursts(self):
        stream = Timeline()
        for at in (1, 1.1, 3, 3.1, 9, 9.3, 20):
            stream.at(at, *[text("word")] * 10)
        assert stream.figures().flags == ("estimated_tokens", "no_usage")
