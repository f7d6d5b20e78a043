"""Why an attempt failed, whether another one makes sense, and how long to wait before it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import httpx2
import openai

from agentprof.wire.transport import Exchange

_OVERFLOW = re.compile(
    r"context[ _](length|size|window)|maximum context|exceed_context|too many (input )?tokens|prompt is too long",
    re.IGNORECASE,
)
_RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_FIRST_BACKOFF_NS = 500_000_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a request is tried, and how long a server may ask us to wait (`Retry-After`) before we give up."""

    attempts: int = 3
    max_wait_ns: int = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one attempt failed. kind: a short word (docs/metrics.md). retry_after_ns: what the server asked for."""

    kind: str
    message: str
    is_retryable: bool
    retry_after_ns: int | None = None


def backoff_ns(failure: Failure, attempt: int, policy: RetryPolicy) -> int | None:
    """How long to wait before attempt `attempt + 1`; None when there is to be none.

    A server's Retry-After is obeyed up to the policy's cap; beyond it the call fails at once. Without one: half a
    second, doubled with each attempt.
    """
    if not failure.is_retryable or attempt >= policy.attempts:
        return None
    if failure.retry_after_ns is not None:
        return failure.retry_after_ns if failure.retry_after_ns <= policy.max_wait_ns else None
    return min(_FIRST_BACKOFF_NS << (attempt - 1), policy.max_wait_ns)


def classify(error: Exception, exchange: Exchange, address: str) -> Failure:
    """The failure behind an exception of the openai client or of our transport."""
    if isinstance(error, openai.APIStatusError):
        return _classify_status(error, address)
    cause: BaseException | None = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
    detail = str(cause or error) or type(error).__name__
    if isinstance(cause, httpx2.ConnectTimeout):
        return Failure("connect_timeout", f"no connection to {address} in time", is_retryable=True)
    if isinstance(cause, httpx2.ConnectError):
        return _classify_connect(detail, address)
    if exchange.reads:
        return Failure("truncated", f"{address} closed the connection in mid-stream", is_retryable=False)
    return Failure("disconnected", f"{address} closed the connection before any response ({detail})", is_retryable=True)


def _classify_connect(detail: str, address: str) -> Failure:
    lower = detail.lower()
    if "ssl" in lower or "certificate" in lower:
        return Failure("tls", f"TLS handshake with {address} failed: {detail}", is_retryable=False)
    if "name or service not known" in lower or "getaddrinfo" in lower or "domain name" in lower or "dns" in lower:
        return Failure("dns", f"the host name of {address} is unknown", is_retryable=False)
    return Failure("refused", f"connection refused at {address}", is_retryable=True)


def _classify_status(error: openai.APIStatusError, address: str) -> Failure:
    status, message = error.status_code, server_message(error)
    if status in {400, 413, 422} and _OVERFLOW.search(f"{error.body} {message}"):
        return Failure(
            "context_overflow", f"the prompt does not fit the model's context: {message}", is_retryable=False
        )
    kind = "loading" if status == 503 and "loading" in message.lower() else f"http_{status}"
    return Failure(
        kind,
        f"HTTP {status} from {address}: {message}",
        is_retryable=status in _RETRIED_STATUS,
        retry_after_ns=_retry_after_ns(error.response.headers.get("retry-after")),
    )


def server_message(error: openai.APIStatusError) -> str:
    """The server's own words, in one line of at most 300 characters."""
    body = error.body
    text: object = body
    if isinstance(body, dict):
        inner = body.get("error", body)
        text = inner.get("message", inner) if isinstance(inner, dict) else inner
    if text is None or text == "":
        text = error.response.reason_phrase or "no message"
    return " ".join(str(text).split())[:300]


def is_overflow(message: str) -> bool:
    """Whether a server's error message says that the prompt didn't fit the context."""
    return bool(_OVERFLOW.search(message))


def _retry_after_ns(value: str | None) -> int | None:
    try:
        seconds = float(value) if value else None
    except ValueError:  # an HTTP date: the clocks may differ, so the usual back-off serves better
        return None
    return round(seconds * 1e9) if seconds is not None and 0 <= seconds < 1e6 else None
