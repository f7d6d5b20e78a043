"""What each server wants to be asked, and what tells the servers apart.

The wire speaks the OpenAI API; a dialect adds the fields that make a server count exactly, force a length or isolate
its prefix cache, and reads the allow-listed timing headers that gateways add.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentprof.records.backend import Engine, Fingerprint
from agentprof.records.call import ChatRequest

TIMING_HEADERS = (
    "server-timing",
    "x-litellm-overhead-duration-ms",
    "x-litellm-response-duration-ms",
    "x-envoy-upstream-service-time",
)
"""The only response headers that are ever stored."""

ENGINES_WITH_CACHE_SALT: frozenset[Engine] = frozenset({"vllm"})

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"?')


def request_fields(engine: Engine, request: ChatRequest) -> dict[str, Any]:
    """The fields beyond the OpenAI API's that go into one request's body.

    A forced length is asked for with what the engine honours: `ignore_eos` everywhere, `min_tokens` beside it in vLLM
    and SGLang. A plain OpenAI endpoint or a gateway refuses unknown fields, so there nothing is added: a length that
    wasn't honoured is flagged by the call.
    """
    fields: dict[str, Any] = {}
    if request.forced_tokens is not None and engine in {"vllm", "sglang", "llama.cpp"}:
        fields["ignore_eos"] = True
        if engine != "llama.cpp":
            fields["min_tokens"] = request.forced_tokens
    if engine == "vllm":
        fields["return_token_ids"] = True
        if request.cache_salt is not None:
            fields["cache_salt"] = request.cache_salt
    return {**fields, **request.extra_body}


def stream_options(engine: Engine) -> dict[str, Any]:
    """Usage at the end of the stream, and on each chunk where the engine offers it."""
    options: dict[str, Any] = {"include_usage": True}
    if engine in {"vllm", "sglang"}:
        options["continuous_usage_stats"] = True
    return options


def identify(answers: Mapping[str, Any]) -> Fingerprint:
    """The engine behind a base URL, from what its side endpoints answered.

    answers: decoded JSON by path (`/props`, `/version`, `/server_info`, `/v1/models`, `/health/readiness`); a path
    that answered anything but 200 with JSON is absent.
    """
    if isinstance(props := answers.get("/props"), dict) and "default_generation_settings" in props:
        return _identify_llama_cpp(props, answers.get("/v1/models"))
    if isinstance(info := answers.get("/server_info"), dict) and "model_path" in info:
        kept = {key: info[key] for key in _SGLANG_SETTINGS if isinstance(info.get(key), (str, int, float, bool))}
        return Fingerprint("sglang", _text(info.get("version")), kept)
    if isinstance(ready := answers.get("/health/readiness"), dict) and "litellm_version" in ready:
        return Fingerprint("litellm", _text(ready["litellm_version"]))
    if isinstance(version := answers.get("/version"), dict) and isinstance(version.get("version"), str):
        settings = _served_model(answers.get("/v1/models"), ("root", "max_model_len"))
        return Fingerprint("vllm", version["version"], settings)
    return Fingerprint("openai", None, _served_model(answers.get("/v1/models"), ("owned_by",)))


_SGLANG_SETTINGS = (
    "model_path",
    "quantization",
    "kv_cache_dtype",
    "context_length",
    "tp_size",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_num_draft_tokens",
    "attention_backend",
    "disable_radix_cache",
    "mem_fraction_static",
)


def _identify_llama_cpp(props: Mapping[str, Any], models: object) -> Fingerprint:
    settings: dict[str, str | int | float | bool] = {}
    for name, key in (("model_file", "model_path"), ("slots", "total_slots")):
        if isinstance(value := props.get(key), (str, int)):
            settings[name] = value.rsplit("/", 1)[-1] if isinstance(value, str) else value
    generation = props["default_generation_settings"]
    if isinstance(generation, dict) and isinstance(context := generation.get("n_ctx"), int):
        settings["context_tokens"] = context
    settings.update(_served_model(models, ()))
    return Fingerprint("llama.cpp", _text(props.get("build_info")), settings)


def _served_model(models: object, keys: tuple[str, ...]) -> dict[str, str | int | float | bool]:
    data = models.get("data") if isinstance(models, dict) else None
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
    kept = {key: first[key] for key in keys if isinstance(first.get(key), (str, int, float, bool))}
    meta = first.get("meta")
    if isinstance(meta, dict):
        kept.update({key: meta[key] for key in ("n_params", "size", "n_ctx_train") if isinstance(meta.get(key), int)})
    return kept


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def timing_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed headers of a response; names in lower case."""
    return {name: headers[name] for name in TIMING_HEADERS if name in headers}


def gateway_ns(headers: Mapping[str, str]) -> int | None:
    """Time that a gateway says it spent on the request itself, before the response's headers; None if none says.

    Sources: LiteLLM's overhead header, and `Server-Timing` entries named gateway or proxy.
    """
    overhead = _milliseconds(headers.get("x-litellm-overhead-duration-ms"))
    if overhead is not None:
        return overhead
    timings = server_timing_ns(headers)
    known = [timings[name] for name in ("gateway", "proxy") if name in timings]
    return sum(known) if known else None


def server_timing_ns(headers: Mapping[str, str]) -> dict[str, int]:
    """The durations of a `Server-Timing` header, in nanoseconds by lower-case name; of equal names the last."""
    found: dict[str, int] = {}
    for item in _QUOTED.sub(_without_separators, headers.get("server-timing", "")).split(","):
        name, *parameters = item.split(";")
        for parameter in parameters:
            key, _, text = parameter.partition("=")
            if key.strip().lower() == "dur" and (ns := _milliseconds(text.strip().strip('"'))) is not None:
                found[name.strip().lower()] = ns
    return found


def _without_separators(quoted: re.Match[str]) -> str:
    return quoted[0].replace(",", " ").replace(";", " ")


def _milliseconds(text: str | None) -> int | None:
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return round(value * 1e6) if value is not None and 0 <= value < 1e9 else None
