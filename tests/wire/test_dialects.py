"""What each engine is asked for, how it is recognised, and what timing headers tell."""

from __future__ import annotations

import time

import pytest

from agentprof.records.call import ChatRequest
from agentprof.wire.dialects import (
    gateway_ns,
    identify,
    request_fields,
    server_timing_ns,
    stream_options,
    timing_headers,
)

FORCED = ChatRequest((), (), 64, forced_tokens=7, cache_salt="salt", extra_body={"top_k": 1})
FREE = ChatRequest((), (), 64)


class TestRequestFields:
    @pytest.mark.parametrize(
        ("engine", "fields"),
        [
            ("vllm", {"ignore_eos": True, "min_tokens": 7, "return_token_ids": True, "cache_salt": "salt", "top_k": 1}),
            ("sglang", {"ignore_eos": True, "min_tokens": 7, "top_k": 1}),
            ("llama.cpp", {"ignore_eos": True, "top_k": 1}),
            ("litellm", {"top_k": 1}),
            ("openai", {"top_k": 1}),
        ],
    )
    def test_forced_length_and_isolated_cache(self, engine, fields):
        assert request_fields(engine, FORCED) == fields

    @pytest.mark.parametrize(
        ("engine", "fields"),
        [("vllm", {"return_token_ids": True}), ("sglang", {}), ("llama.cpp", {}), ("litellm", {}), ("openai", {})],
    )
    def test_nothing_forced(self, engine, fields):
        assert request_fields(engine, FREE) == fields

    def test_what_a_request_says_itself_wins(self):
        request = ChatRequest((), (), 64, forced_tokens=7, extra_body={"min_tokens": 1, "return_token_ids": False})
        assert request_fields("vllm", request) == {"ignore_eos": True, "min_tokens": 1, "return_token_ids": False}

    @pytest.mark.parametrize("engine", ["vllm", "sglang"])
    def test_usage_on_each_chunk(self, engine):
        assert stream_options(engine) == {"include_usage": True, "continuous_usage_stats": True}

    @pytest.mark.parametrize("engine", ["llama.cpp", "litellm", "openai"])
    def test_usage_at_the_end(self, engine):
        assert stream_options(engine) == {"include_usage": True}


PROPS = {
    "default_generation_settings": {"n_ctx": 4096},
    "total_slots": 2,
    "model_path": "/models/tiny.gguf",
    "build_info": "b9000-abc",
}


class TestIdentify:
    def test_llama_cpp(self):
        models = {"data": [{"id": "x", "meta": {"n_params": 135, "size": 99, "n_ctx_train": 8192, "vocab": "no"}}]}
        found = identify({"/props": PROPS, "/v1/models": models, "/version": {"version": "0.32"}})
        assert (found.engine, found.version) == ("llama.cpp", "b9000-abc")
        assert found.settings == {
            "model_file": "tiny.gguf",
            "slots": 2,
            "context_tokens": 4096,
            "n_params": 135,
            "size": 99,
            "n_ctx_train": 8192,
        }

    def test_vllm(self):
        models = {"data": [{"id": "q", "root": "org/q", "max_model_len": 32768, "owned_by": "vllm"}]}
        found = identify({"/version": {"version": "0.33.1"}, "/v1/models": models})
        assert (found.engine, found.version) == ("vllm", "0.33.1")
        assert found.settings == {"root": "org/q", "max_model_len": 32768}

    def test_sglang_keeps_no_secret(self):
        info = {"version": "0.5.23", "model_path": "org/q", "tp_size": 2, "api_key": "secret", "quantization": None}
        found = identify({"/server_info": info})
        assert (found.engine, found.version) == ("sglang", "0.5.23")
        assert found.settings == {"model_path": "org/q", "tp_size": 2}

    def test_litellm(self):
        found = identify({"/health/readiness": {"litellm_version": "1.108.0"}, "/v1/models": {"data": []}})
        assert (found.engine, found.version) == ("litellm", "1.108.0")

    def test_anything_else(self):
        found = identify({"/v1/models": {"data": [{"owned_by": "someone"}]}})
        assert (found.engine, found.version, found.settings) == ("openai", None, {"owned_by": "someone"})

    @pytest.mark.parametrize(
        "models", [None, [], {}, {"data": None}, {"data": []}, {"data": ["x"]}, {"data": [{}]}, "x"]
    )
    @pytest.mark.parametrize("props", [None, [], {}, {"default_generation_settings": None}])
    def test_strange_answers(self, props, models):
        answers = {"/props": props, "/v1/models": models, "/version": {"version": 3}, "/server_info": [1]}
        assert identify(answers).engine in {"openai", "llama.cpp"}


class TestTimingHeaders:
    def test_only_listed_ones_are_kept(self):
        headers = {"server-timing": "a;dur=1", "set-cookie": "secret", "x-litellm-overhead-duration-ms": "3"}
        assert timing_headers(headers) == {"server-timing": "a;dur=1", "x-litellm-overhead-duration-ms": "3"}

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("", {}),
            ("queue;dur=12.5", {"queue": 12_500_000}),
            ("a;dur=1, b;dur=2,c", {"a": 1_000_000, "b": 2_000_000}),
            ("Gateway ; desc=x ; dur = 3", {"gateway": 3_000_000}),
            ('cache;desc="a, b; dur=9";dur=4', {"cache": 4_000_000}),
            ('a;desc="say \\"hi\\", x;dur=7";dur=5', {"a": 5_000_000}),
            ('a;dur="6"', {"a": 6_000_000}),
            ("a;DUR=6", {"a": 6_000_000}),
            ("a;dur=1, a;dur=2", {"a": 2_000_000}),
            ("a;dur=-1, b;dur=x, c;dur=nan, d;dur=inf, e;dur=", {}),
            (";;;,,,", {}),
            ('a;desc="open, b;dur=1', {}),
        ],
    )
    def test_server_timing(self, value, expected):
        assert server_timing_ns({"server-timing": value}) == expected

    def test_a_hostile_header_takes_no_time(self):
        started = time.perf_counter()
        for text in ("a" * 60_000, '"' * 60_000, ',"' * 30_000, "\\" * 60_000, "a;" * 30_000):
            server_timing_ns({"server-timing": text})
        assert time.perf_counter() - started < 1

    @pytest.mark.parametrize(
        ("headers", "expected"),
        [
            ({}, None),
            ({"x-litellm-overhead-duration-ms": "2.5"}, 2_500_000),
            ({"x-litellm-overhead-duration-ms": "None"}, None),
            ({"x-litellm-overhead-duration-ms": "-3"}, None),
            ({"server-timing": "gateway;dur=1, proxy;dur=2, queue;dur=9"}, 3_000_000),
            ({"x-litellm-overhead-duration-ms": "4", "server-timing": "proxy;dur=2"}, 4_000_000),
            ({"server-timing": "queue;dur=9"}, None),
        ],
    )
    def test_the_gateways_own_time(self, headers, expected):
        assert gateway_ns(headers) == expected
