"""What servers report inside the stream: token counts, and their own times.

Every value is checked: what isn't a count or a duration is taken as not reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentprof.records.call import ServerTimes, Usage

LLAMA_CPP = "llama.cpp timings"
VLLM = "vllm metrics"
SGLANG = "sglang sglext"
REPORT_KEYS = ("timings", "metrics", "sglext")
"""Keys of a chunk that hold a server's report on its own work."""

_MAX_COUNT = 10**12
_OUTPUT_KEYS = ("completion_tokens", "output_tokens")
_PROMPT_KEYS = ("prompt_tokens", "input_tokens")
_PROMPT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")
_CACHED_KEYS = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")


class UsageReader:
    """Folds the `usage` objects of a stream: for each count the last one that isn't null stands."""

    __slots__ = ("_rest", "cached_tokens", "output_tokens", "prompt_tokens", "reasoning_tokens")

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self._rest: str | None = None  # the last object less what grows from chunk to chunk

    def read(self, raw: Mapping[str, Any]) -> int | None:
        """Take one `usage` object; its own output tokens, None where it gives none."""
        others = dict(raw)
        others.pop("total_tokens", None)
        output, rest = count(others.pop("completion_tokens", None)), _text(others)
        if output is not None and rest is not None and rest == self._rest:
            self.output_tokens = output
            return output
        self._rest = rest
        if output is None:
            output = _first_count(raw, _OUTPUT_KEYS)
        if output is not None:
            self.output_tokens = output
        if (prompt := _first_count(raw, _PROMPT_KEYS)) is not None:
            self.prompt_tokens = prompt
        if (cached := _detail(raw, _PROMPT_DETAILS, "cached_tokens")) is None:
            cached = _first_count(raw, _CACHED_KEYS)
        if cached is not None:
            self.cached_tokens = cached
        if (reasoning := _detail(raw, _OUTPUT_DETAILS, "reasoning_tokens")) is None:
            reasoning = count(raw.get("reasoning_tokens"))
        if reasoning is not None:
            self.reasoning_tokens = reasoning
        return output

    def usage(self, times: ServerTimes | None) -> Usage:
        """The counts so far.

        Where `usage` has no cached tokens they come from the server's report: as reported, else prompt tokens less
        those that were prefilled. Nothing else of a report enters: it speaks of the same tokens again.
        """
        cached = self.cached_tokens
        if cached is None and times is not None:
            cached = times.cached_tokens
            if cached is None and self.prompt_tokens is not None and times.prefilled_tokens is not None:
                cached = max(0, self.prompt_tokens - times.prefilled_tokens)
        return Usage(self.prompt_tokens, self.output_tokens, cached, self.reasoning_tokens)


def read_server_times(chunk: Mapping[str, Any]) -> ServerTimes | None:
    """A chunk's report on the server's own work; None where it holds none that can be read."""
    times = None
    if isinstance(raw := chunk.get("timings"), Mapping):
        times = _read_llama_cpp(raw)
    elif isinstance(raw := chunk.get("metrics"), Mapping):
        times = _read_vllm(raw)
    elif isinstance(raw := chunk.get("sglext"), Mapping):
        times = _read_sglang(raw)
    return None if times is None or times == ServerTimes(times.source) else times


def _read_llama_cpp(raw: Mapping[str, Any]) -> ServerTimes:
    """llama.cpp's `timings`. `prompt_n` counts prefilled tokens only, cached ones are in `cache_n`."""
    return ServerTimes(
        LLAMA_CPP,
        prefill_ns=_ms_to_ns(raw.get("prompt_ms")),
        decode_ns=_ms_to_ns(raw.get("predicted_ms")),
        prefilled_tokens=count(raw.get("prompt_n")),
        cached_tokens=count(raw.get("cache_n")),
        draft_tokens=count(raw.get("draft_n")),
        accepted_draft_tokens=count(raw.get("draft_n_accepted")),
    )


def _read_vllm(raw: Mapping[str, Any]) -> ServerTimes:
    """vLLM's `metrics`. Its time to first token starts at scheduling, so it is prefill with the first step."""
    times = ServerTimes(
        VLLM,
        queue_ns=_ms_to_ns(raw.get("queue_time_ms")),
        prefill_ns=_ms_to_ns(raw.get("time_to_first_token_ms")),
        decode_ns=_ms_to_ns(raw.get("generation_time_ms")),
    )
    if not isinstance(speculative := raw.get("speculative_decoding"), Mapping):
        return times
    return replace(
        times,
        draft_tokens=count(speculative.get("num_draft_tokens")),
        accepted_draft_tokens=count(speculative.get("num_accepted_draft_tokens")),
        decode_steps=count(speculative.get("num_spec_steps")),
    )


def _read_sglang(raw: Mapping[str, Any]) -> ServerTimes:
    """SGLang's `sglext`: drafts and verify steps, and cached tokens by where they lay."""
    cached = None
    if isinstance(details := raw.get("cached_tokens_details"), Mapping):
        places = [tokens for key in ("device", "host", "storage") if (tokens := count(details.get(key))) is not None]
        cached = sum(places) if places else None
    speculative = raw.get("spec_tokens_details")
    if not isinstance(speculative, Mapping):
        speculative = {}
    return ServerTimes(
        SGLANG,
        cached_tokens=cached,
        draft_tokens=_first_count(speculative, ("spec_num_proposed_drafts", "spec_draft_token_num")),
        accepted_draft_tokens=_first_count(speculative, ("spec_num_correct_drafts", "spec_accept_token_num")),
        decode_steps=count(speculative.get("spec_verify_ct")),
    )


def count(value: object) -> int | None:
    """A token count: a whole number from 0 to 10¹²; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT:
        return value
    return None


def _ms_to_ns(value: object) -> int | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT:
        return round(value * 1_000_000)
    return None


def _text(raw: Mapping[str, Any]) -> str | None:
    """An object as text, in which True isn't 1; None where it is nested too deeply."""
    try:
        return repr(raw)
    except RecursionError:
        return None


def _first_count(raw: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        if (found := count(raw.get(key))) is not None:
            return found
    return None


def _detail(raw: Mapping[str, Any], places: tuple[str, ...], key: str) -> int | None:
    for place in places:
        if isinstance(details := raw.get(place), Mapping):
            return count(details.get(key))
    return None
