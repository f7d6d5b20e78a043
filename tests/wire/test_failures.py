"""Which failure an exception or a response is, and what follows from it."""

from __future__ import annotations

import socket
import time
from email.utils import formatdate

import httpx2
import openai
import pytest

from agentprof.wire.exchange import Exchange
from agentprof.wire.failures import (
    Failure,
    RetryPolicy,
    backoff_ns,
    classify,
    classify_stream,
    last_words,
    retry_after_ns,
    server_message,
    without_key,
)
from agentprof.wire.transport import HandshakeError, NotHttpError, UnknownHostError

REQUEST = httpx2.Request("POST", "http://host:8000/v1/chat/completions")
S = 1_000_000_000


def status_error(status: int, body: object, **headers: str) -> openai.APIStatusError:
    response = httpx2.Response(status, headers=headers, request=REQUEST, text="x")
    return openai.APIStatusError("message", response=response, body=body)


def connection_error(cause: Exception, *causes: Exception) -> openai.APIConnectionError:
    """As the openai client raises it: from the transport's exception, which has causes of its own."""
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = cause
    for reason in causes:
        cause.__cause__ = reason
        cause = reason
    return error


class TestBackOff:
    def test_doubles_from_half_a_second_up_to_the_cap(self):
        failure = Failure("http_500", "m", is_retryable=True)
        policy = RetryPolicy(attempts=9, max_wait_ns=3 * S)
        waits = [backoff_ns(failure, attempt, policy) for attempt in range(1, 10)]
        assert waits == [S // 2, S, 2 * S, *[3 * S] * 5, None]

    @pytest.mark.parametrize(("asked", "waited"), [(0, 0), (5 * S, 5 * S), (60 * S, 60 * S), (60 * S + 1, None)])
    def test_what_the_server_asks_for_is_obeyed_up_to_the_cap(self, asked, waited):
        failure = Failure("http_429", "m", is_retryable=True, retry_after_ns=asked)
        assert backoff_ns(failure, 1, RetryPolicy()) == waited
        assert backoff_ns(failure, 3, RetryPolicy()) is None

    def test_what_is_permanent_is_not_tried_again(self):
        assert backoff_ns(Failure("http_400", "m", is_retryable=False, retry_after_ns=0), 1, RetryPolicy()) is None

    def test_last_words_say_what_became_of_the_retries(self):
        policy = RetryPolicy()
        busy = Failure("http_429", "busy", is_retryable=True, retry_after_ns=3600 * S)
        assert last_words(busy, 1, policy) == "busy (it asks to wait 3,600 s; no more than 60 s are waited)"
        assert last_words(Failure("http_500", "broken", is_retryable=True), 3, policy) == "broken (after 3 attempts)"
        assert last_words(Failure("http_404", "gone", is_retryable=False), 1, policy) == "gone"


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("headers", "expected"),
        [
            ({}, None),
            ({"retry-after": ""}, None),
            ({"retry-after": "soon"}, None),
            ({"retry-after": "Mon, 30 Nov 99999999999999999999 08:00:00 GMT"}, None),
            ({"retry-after": "nan"}, None),
            ({"retry-after": "-1"}, None),
            ({"retry-after": "0"}, 0),
            ({"retry-after": "1.5"}, 1_500_000_000),
            ({"retry-after": "3600"}, 3600 * S),
            ({"retry-after": "1e300"}, 10**9 * S),
            ({"retry-after": "inf"}, 10**9 * S),
            ({"retry-after-ms": "250", "retry-after": "9"}, 250_000_000),
            ({"retry-after-ms": "x", "retry-after": "9"}, 9 * S),
            ({"retry-after": "Mon, 30 Nov 2026 08:01:00 GMT", "date": "Mon, 30 Nov 2026 08:00:00 GMT"}, 60 * S),
            ({"retry-after": "Mon, 30 Nov 2026 08:00:00 GMT", "date": "Mon, 30 Nov 2026 08:01:00 GMT"}, 0),
            ({"retry-after": "Mon, 99 Nov 2026 08:00:00 GMT"}, None),
        ],
    )
    def test_values(self, headers, expected):
        assert retry_after_ns(headers) == expected

    def test_a_date_without_another_is_read_against_our_clock(self):
        wait = retry_after_ns({"retry-after": formatdate(time.time() + 30, usegmt=True)})
        assert 20 * S < wait <= 30 * S


class TestConnections:
    @pytest.mark.parametrize(
        ("error", "kind", "is_retryable", "words"),
        [
            (
                connection_error(httpx2.ConnectError("x"), OSError(111, "y"), ConnectionRefusedError(111, "z")),
                "refused",
                True,
                "connection refused at host:8000",
            ),
            (
                connection_error(httpx2.ConnectError("No route to host"), OSError(113, "No route to host")),
                "unreachable",
                True,
                "no connection to host:8000: No route to host",
            ),
            (
                connection_error(HandshakeError("wrong version number")),
                "tls",
                False,
                "TLS handshake with host:8000 failed: wrong version number",
            ),
            (
                connection_error(UnknownHostError("Name or service not known"), socket.gaierror(-2, "x")),
                "dns",
                False,
                "the host name of host:8000 can't be looked up: Name or service not known",
            ),
            (
                connection_error(UnknownHostError("Try again"), OSError(socket.EAI_AGAIN, "Try again")),
                "dns",
                True,
                "the host name of host:8000 can't be looked up: Try again",
            ),
            (
                connection_error(httpx2.ConnectTimeout("")),
                "connect_timeout",
                True,
                "no connection to host:8000 in time",
            ),
            (
                connection_error(NotHttpError("Bad status line")),
                "not_http",
                False,
                "what came back from host:8000 is not HTTP; is base_url's scheme (http or https) right?",
            ),
            (
                connection_error(httpx2.RemoteProtocolError("Server disconnected")),
                "disconnected",
                True,
                "host:8000 closed the connection before any response (Server disconnected)",
            ),
        ],
    )
    def test_kinds(self, error, kind, is_retryable, words):
        failure = classify(error, Exchange(), "host:8000")
        assert (failure.kind, failure.is_retryable, failure.message) == (kind, is_retryable, words)

    def test_a_response_that_broke_off_in_its_headers(self):
        failure = classify(
            connection_error(httpx2.RemoteProtocolError("Server disconnected")), Exchange(answered_ns=1), "h:1"
        )
        assert failure.message == (
            "h:1 closed the connection before its response's headers were whole (Server disconnected)"
        )


class TestStatuses:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"error": {"message": "OpenAI's way", "type": "t", "code": "c"}}, "OpenAI's way (t, c)"),
            ({"error": {"message": "llama.cpp's", "code": 500}}, "llama.cpp's (500)"),
            (
                {"object": "error", "message": "vLLM's old way", "type": "BadRequestError"},
                "vLLM's old way (BadRequestError)",
            ),
            ({"error": "a text"}, "a text"),
            ({"detail": "FastAPI's way"}, "FastAPI's way"),
            ({"detail": [{"loc": ["body"], "msg": "missing"}]}, "[{'loc': ['body'], 'msg': 'missing'}]"),
            ({"message": "a gateway's"}, "a gateway's"),
            ("plain\n  text", "plain text"),
            ("<html><script>x</script><p>Bad\n<b>Gateway</b></p>", "Bad Gateway"),
            ("<html><body></body></html>", "Not Found"),
            ("", "Not Found"),
            (None, "Not Found"),
            ([], "Not Found"),
            ({}, "Not Found"),
            ([{"error": 1}], "[{'error': 1}]"),
        ],
    )
    def test_the_servers_own_words(self, body, message):
        assert server_message(status_error(404, body)) == message

    def test_they_are_cut(self):
        message = server_message(status_error(404, {"error": {"message": "x" * 5000}}))
        assert (len(message), message[-1]) == (300, "…")

    def test_a_key_is_blotted_out_before_they_are_cut(self):
        message = server_message(status_error(401, "y" * 290 + "sk-0123456789abcdef"), "sk-0123456789abcdef")
        assert "sk-0" not in message
        assert message.endswith("[key]")

    @pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
    def test_those_that_may_pass(self, status):
        failure = classify(status_error(status, "later", **{"retry-after": "2"}), Exchange(), "h:1")
        assert (failure.kind, failure.is_retryable, failure.retry_after_ns) == (f"http_{status}", True, 2 * S)
        assert failure.message == f"HTTP {status} from h:1: later"

    @pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 415, 422, 501])
    def test_those_that_will_not(self, status):
        failure = classify(status_error(status, "no"), Exchange(), "h:1")
        assert (failure.kind, failure.is_retryable) == (f"http_{status}", False)

    @pytest.mark.parametrize(
        "words",
        [
            "This model's maximum context length is 4096 tokens",
            "The decoder prompt (length 9000) is longer than the maximum model length of 4096; see max_model_len",
            "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
            "the request exceeds the available context size",
            "prompt is too long: 210000 tokens > 200000 maximum",
            "ContextWindowExceededError: too large",
        ],
    )
    @pytest.mark.parametrize("status", [400, 413, 422, 500])
    def test_prompts_that_do_not_fit(self, status, words):
        failure = classify(status_error(status, {"error": {"message": words}}), Exchange(), "h:1")
        assert (failure.kind, failure.is_retryable) == ("context_overflow", False)
        assert words in failure.message

    def test_a_rate_limit_in_tokens_is_no_prompt_that_does_not_fit(self):
        body = {"error": {"message": "too many tokens in this minute for a context length like this"}}
        assert classify(status_error(429, body), Exchange(), "h:1").kind == "http_429"

    def test_loading(self):
        assert classify(status_error(503, {"error": {"message": "Loading model"}}), Exchange(), "h").kind == "loading"
        assert classify(status_error(503, {"error": {"message": "Busy"}}), Exchange(), "h").kind == "http_503"
        assert classify(status_error(500, {"error": {"message": "Loading model"}}), Exchange(), "h").kind == "http_500"


class TestStreams:
    def test_their_own_account_stands(self):
        failure = classify_stream(("stream_error", "broken"), Exchange(), "h:1")
        assert failure == Failure("stream_error", "broken", is_retryable=False)

    def test_a_web_page(self):
        exchange = Exchange(headers={"content-type": "Text/HTML; charset=utf-8"})
        assert classify_stream(("truncated", "x"), exchange, "h:1").kind == "not_a_stream"
        assert classify_stream(("stream_error", "x"), exchange, "h:1").kind == "stream_error"

    def test_keys_are_blotted_out(self):
        assert without_key(Failure("k", "a KEY b KEY", is_retryable=True), "KEY").message == "a [key] b [key]"
        assert without_key(Failure("k", "a b", is_retryable=True), None).message == "a b"
