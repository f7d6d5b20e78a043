"""What the simulated server tells of a request: usage, vLLM's `metrics`, llama.cpp's `timings`, error bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentprof.serve.sim.profile import Engine, Gateway, Report


@dataclass(slots=True)
class Account:
    """Counts and stamps of one request while it runs. Stamps are monotonic nanoseconds, 0 until reached.

    decode_steps and the drafts don't include the prefill, which brings the first token.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    decode_steps: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    queue_start_ns: int = 0
    queue_end_ns: int = 0
    prefill_end_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0


def usage(account: Account) -> dict[str, Any]:
    """The usage object with its details."""
    details: dict[str, Any] = {
        "prompt_tokens": account.prompt_tokens,
        "completion_tokens": account.output_tokens,
        "total_tokens": account.prompt_tokens + account.output_tokens,
        "prompt_tokens_details": {"cached_tokens": account.cached_tokens},
    }
    if account.reasoning_tokens:
        details["completion_tokens_details"] = {"reasoning_tokens": account.reasoning_tokens}
    return details


def report(style: Report, account: Account) -> dict[str, Any]:
    """What goes beside the usage: `{"metrics": …}`, `{"timings": …}`, or nothing."""
    match style:
        case "metrics":
            return {"metrics": _metrics(account)}
        case "timings":
            return {"timings": _timings(account)}
        case _:
            return {}


def _metrics(account: Account) -> dict[str, Any]:
    prefill = account.prefill_end_ns - account.queue_end_ns
    generation = account.last_token_ns - account.first_token_ns
    gaps = account.output_tokens - 1
    metrics: dict[str, Any] = {
        "time_to_first_token_ms": prefill / 1e6,  # from scheduling: the queue isn't in it
        "generation_time_ms": generation / 1e6,
        "queue_time_ms": (account.queue_end_ns - account.queue_start_ns) / 1e6,
        "mean_itl_ms": generation / gaps / 1e6 if gaps > 0 else None,
        "tokens_per_second": account.output_tokens / (prefill + generation) * 1e9 if prefill + generation else None,
    }
    if account.draft_tokens:
        metrics["speculative_decoding"] = {
            "mean_acceptance_length": 1 + account.accepted_draft_tokens / account.decode_steps,
            "draft_acceptance_rate": account.accepted_draft_tokens / account.draft_tokens,
            "num_spec_steps": account.decode_steps,
            "num_accepted_draft_tokens": account.accepted_draft_tokens,
            "num_draft_tokens": account.draft_tokens,
        }
    return metrics


def _timings(account: Account) -> dict[str, Any]:
    prompt = account.prompt_tokens - account.cached_tokens
    prompt_ms = (account.prefill_end_ns - account.queue_end_ns) / 1e6
    predicted_ms = (account.last_token_ns - account.first_token_ns) / 1e6
    timings: dict[str, Any] = {
        "cache_n": account.cached_tokens,
        "prompt_n": prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(1, prompt),
        "prompt_per_second": prompt / prompt_ms * 1e3 if prompt_ms else None,
        "predicted_n": account.output_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / max(1, account.output_tokens),
        "predicted_per_second": account.output_tokens / predicted_ms * 1e3 if predicted_ms else None,
    }
    if account.draft_tokens:
        timings["draft_n"] = account.draft_tokens
        timings["draft_n_accepted"] = account.accepted_draft_tokens
    return timings


def gateway_headers(gateway: Gateway | None, overhead_ns: float) -> dict[str, str]:
    """The header with which the gateway tells its own time."""
    if gateway is None or gateway.header == "none":
        return {}
    milliseconds = f"{overhead_ns / 1e6:.3f}"
    if gateway.header == "litellm":
        return {"x-litellm-overhead-duration-ms": milliseconds}
    return {"Server-Timing": f"gateway;dur={milliseconds}"}


def error_body(status: int, kind: str, message: str, engine: Engine, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The error object of the engine."""
    if engine == "llama.cpp":
        types = {400: "invalid_request_error", 404: "not_found_error", 500: "server_error", 503: "unavailable_error"}
        kept = {key: value for key, value in extra.items() if key != "param"}
        own = kind if kind.islower() else types.get(status, "server_error")
        return {"error": {"code": status, "message": message, "type": own, **kept}}
    return {"error": {"message": message, "type": kind, "param": None, "code": status, **extra}}
