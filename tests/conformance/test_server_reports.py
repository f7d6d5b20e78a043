"""What servers report inside their streams, as bytes with arrival times."""

from __future__ import annotations

import pytest
from timeline import DONE, START_NS, Timeline, delta, event, finish, ns, text, think, tokens, usage

from agentprof.records.call import ServerTimes, Usage
from agentprof.wire.figures import failure


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

    def test_usage_beside_groqs_own_field(self):
        frame = event({"choices": [], "usage": tokens(7), "x_groq": {"id": "req_1"}})
        assert Timeline().at(0.1, text("Hi"), frame, DONE).reply().usage.output_tokens == 7

    def test_zero_tokens_without_any_event_is_the_servers_count(self):
        stream = Timeline().at(0.1, delta({"role": "assistant"})).at(0.2, finish("stop"), usage(9, 0), DONE)
        figures = stream.figures()
        assert (figures.output_tokens, figures.output_tokens_source) == (0, "server")
        assert figures.flags == ("no_token_events",)


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
        [
            {"timings": {}},
            {"timings": {"prompt_ms": "x", "prompt_n": -1}},
            {"metrics": [1]},
            {"sglext": {"a": 1}},
            {"sglext": {"cached_tokens_details": {"elsewhere": 3}}},
        ],
    )
    def test_a_report_without_figures_is_none(self, report):
        assert Timeline().at(0.1, text("a", **report)).reply().server_times is None

    def test_a_wait_in_the_queue_of_zero_is_a_wait(self):
        metrics = {"time_to_first_token_ms": 80.25, "generation_time_ms": 400, "queue_time_ms": 0}
        last = event({"choices": [], "usage": tokens(100), "metrics": metrics})
        assert Timeline().at(0.1, text("a"), last).reply().server_times == ServerTimes(
            "vllm metrics", queue_ns=0, prefill_ns=80_250_000, decode_ns=400_000_000
        )

    def test_empty_reports_after_a_full_one_change_nothing(self):
        stream = (
            Timeline().at(0.1, text("a", timings={"prompt_ms": 10.0})).at(0.2, text("b", timings=None, metrics=None))
        )
        assert stream.reply().server_times == ServerTimes("llama.cpp timings", prefill_ns=10_000_000)

    def test_more_tokens_prefilled_than_the_prompt_has_are_none_cached(self):
        last = event({"choices": [], "usage": tokens(3, 5), "timings": {"prompt_n": 6}})
        assert Timeline().at(0.1, text("a"), last).reply().usage.cached_tokens == 0

    def test_sglang_under_its_other_names(self):
        extension = {"spec_tokens_details": {"spec_draft_token_num": 140, "spec_accept_token_num": 79}}
        assert Timeline().at(0.1, text("a", sglext=extension)).reply().server_times == ServerTimes(
            "sglang sglext", draft_tokens=140, accepted_draft_tokens=79
        )
