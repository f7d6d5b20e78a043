"""Why an attempt failed, whether another one makes sense, and how long to wait before it."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit, urlunsplit

import httpx2
import openai

from agentprof.wire.exchange import MAX_BODY_BYTES, Exchange
from agentprof.wire.stream_errors import is_context_overflow, one_line
from agentprof.wire.transport import HandshakeError, NotHttpError, UnknownHostError, UnreadableError

_RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_OVERFLOW_STATUS = frozenset({400, 413, 422, 500})
_FIRST_BACKOFF_NS = 500_000_000
_MAX_MESSAGE_CHARS = 300
_MAX_STREAM_CHARS = 1100  # what a stream says of itself, and our own words before it
_MAX_SECONDS = 1e9
_NOT_SHOWN = re.compile(r"<(script|style|head)\b.*?</\1\s*>|<[^>]*>", re.IGNORECASE | re.DOTALL)


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


def last_words(failure: Failure, attempts: int, policy: RetryPolicy) -> str:
    """The message of a call that failed for good, saying what became of its retries."""
    asked_ns = failure.retry_after_ns
    if failure.is_retryable and asked_ns is not None and asked_ns > policy.max_wait_ns:
        return (
            f"{failure.message} (it asks to wait {asked_ns / 1e9:,.0f} s; "
            f"no more than {policy.max_wait_ns / 1e9:g} s are waited)"
        )
    return failure.message if attempts == 1 else f"{failure.message} (after {attempts} attempts)"


def classify(error: Exception, exchange: Exchange, address: str, key: str | None = None) -> Failure:
    """The failure behind an exception of the openai client or of our transport. `key` is blotted out of messages."""
    if isinstance(error, openai.APIStatusError):
        return without_key(_classify_status(error, address, key), key)
    return without_key(_classify_exchange(error, exchange, address), key)


def _classify_exchange(error: Exception, exchange: Exchange, address: str) -> Failure:
    cause: BaseException | None = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
    detail = str(cause or error) or type(error).__name__
    match cause:
        case httpx2.ConnectTimeout():
            return Failure("connect_timeout", f"no connection to {address} in time", is_retryable=True)
        case HandshakeError():
            return Failure("tls", f"TLS handshake with {address} failed: {detail}", is_retryable=False)
        case UnknownHostError():
            return _classify_lookup(cause, detail, address)
        case httpx2.ConnectError():
            return _classify_connect(cause, detail, address)
        case NotHttpError():
            message = f"what came back from {address} is not HTTP; is base_url's scheme (http or https) right?"
            return Failure("not_http", message, is_retryable=False)
        case UnreadableError():
            message = (
                f"{address} answered with a body that can't be unpacked: an encoding not asked for, or broken chunks"
            )
            return Failure("unreadable", message, is_retryable=False)
    before = "any response" if exchange.answered_ns is None else "its response's headers were whole"
    return Failure("disconnected", f"{address} closed the connection before {before} ({detail})", is_retryable=True)


def classify_stream(failure: tuple[str, str], exchange: Exchange, address: str, key: str | None = None) -> Failure:
    """The failure of a response under HTTP 200; `failure` is what its events say of themselves."""
    kind, message = failure
    media_type = exchange.headers.get("content-type", "").split(";")[0].strip().lower()
    if exchange.is_too_large:
        kind = "too_large"
        message = f"{address} sent more than {MAX_BODY_BYTES // 2**20} MiB, which is no chat completion"
    elif kind == "truncated" and media_type == "text/html":
        kind = "not_a_stream"
        message = f"{address} answered with a web page, not with a stream; is base_url right (it usually ends in /v1)?"
    shown = without_key(Failure(kind, message, is_retryable=False), key)
    return replace(shown, message=_cut(shown.message, _MAX_STREAM_CHARS))


def without_key(failure: Failure, key: str | None) -> Failure:
    """The failure with the API key blotted out of its message: some servers repeat what they were sent."""
    return replace(failure, message=_blot(failure.message, key))


def _blot(text: str, key: str | None) -> str:
    return text.replace(key, "[key]") if key else text


def _classify_lookup(cause: BaseException, detail: str, address: str) -> Failure:
    is_temporary = _errno(cause) == socket.EAI_AGAIN
    return Failure("dns", f"the host name of {address} can't be looked up: {detail}", is_retryable=is_temporary)


def _classify_connect(cause: BaseException, detail: str, address: str) -> Failure:
    reason: BaseException | None = cause
    while reason is not None and not isinstance(reason, ConnectionRefusedError):
        reason = reason.__cause__
    if reason is not None:
        return Failure("refused", f"connection refused at {address}", is_retryable=True)
    return Failure("unreachable", f"no connection to {address}: {detail}", is_retryable=True)


def _errno(error: BaseException | None) -> int | None:
    """The system's error number, of the first exception in the chain of causes that has one."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        error = error.__cause__
    return None


def _classify_status(error: openai.APIStatusError, address: str, key: str | None) -> Failure:
    status, message = error.status_code, server_message(error, key)
    if status in _OVERFLOW_STATUS and is_context_overflow(f"{error.body} {message}"):
        text = f"the prompt does not fit the model's context: {message}"
        return Failure("context_overflow", text, is_retryable=False)
    location = error.response.headers.get("location")
    if status in range(300, 400) and location:
        target = _cut(_blot(_place_of(location), key), _MAX_MESSAGE_CHARS)
        message = f"it redirects to {target}, which isn't followed; is base_url right?"
    return Failure(
        "loading" if status == 503 and "loading" in message.lower() else f"http_{status}",
        f"HTTP {status} from {address}: {message}",
        is_retryable=status in _RETRIED_STATUS,
        retry_after_ns=retry_after_ns(error.response.headers),
    )


def server_message(error: openai.APIStatusError, key: str | None = None) -> str:
    """The server's own words, in one line of at most 300 characters, the API key blotted out."""
    body = error.body
    if isinstance(body, dict):
        body = body.get("error") or body
    text = one_line(body) if body else ""
    if isinstance(body, str) and body.lstrip().startswith("<"):
        text = " ".join(_NOT_SHOWN.sub(" ", body).split())
    return _cut(_blot(text or error.response.reason_phrase or "no message", key), _MAX_MESSAGE_CHARS)


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _place_of(location: str) -> str:
    """Where a redirect leads, without user, query and fragment, which may hold secrets."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return "what is no URL"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def retry_after_ns(headers: Mapping[str, str]) -> int | None:
    """How long a response asks us to wait: `retry-after-ms`, else `Retry-After` in seconds or as a date.

    A date is read against the response's own `Date`, as the clocks may differ; without one against ours. One that
    has passed is 0. None where nothing that can be read was asked.
    """
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return round(milliseconds * 1e6)
    value = headers.get("retry-after")
    if (seconds := _number(value)) is not None:
        return round(seconds * 1e9)
    until = _date_s(value)
    if until is None:
        return None
    now = _date_s(headers.get("date"))
    return round(max(0.0, until - (time.time() if now is None else now)) * 1e9)


def _number(text: str | None) -> float | None:
    """A count of seconds or less; so long a wait that it has no name is cut to some 30 years."""
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return min(value, _MAX_SECONDS) if value is not None and value >= 0 else None


def _date_s(text: str | None) -> float | None:
    """An HTTP date as seconds since 1970."""
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None
