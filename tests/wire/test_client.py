"""The client against a scripted server: spans, retries, cancellation, keys, and what reaches the server."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from live_calls import (
    LOOPS,
    REPLY,
    REQUEST,
    Call,
    check_clean,
    check_tiling,
    client,
    make_call,
    run,
    start_call,
    stream,
    until_closed,
)
from scripted_server import CHUNKED, LAST_CHUNK, Do, ScriptedServer, answer, chunk, head
from timeline import DONE, delta, event, finish, text, think, tokens, usage
from timeline import call as tool_call

from agentprof import semconv
from agentprof.errors import InputError
from agentprof.records.backend import Backend
from agentprof.records.call import ChatRequest
from agentprof.wire.client import ChatClient, api_key

both_loops = pytest.mark.parametrize("loop", LOOPS)
KEY = "sk-verysecret-0123456789"
PHASES = [semconv.CONNECT, semconv.SEND, semconv.FIRST_TOKEN_WAIT, semconv.DECODE, semconv.TAIL]


def calls(*scripts, loop="asyncio", times=1, request=REQUEST, pause=0.02, server=None, **options) -> list[Call]:
    """So many calls, one after another, with a moment between; nothing may be left of them."""

    async def main() -> list[Call]:
        chat_client = client(server, **options)
        made = []
        for _ in range(times):
            made.append(await make_call(chat_client, request))
            if pause:
                await server.settle(pause)
        await check_clean(chat_client)
        return made

    server = server or ScriptedServer(scripts)
    with server:
        made = run(main(), loop)
    for call in made:
        check_tiling(call)
    return made


def one_call(*scripts, **options) -> Call:
    (call,) = calls(*scripts, **options)
    return call


class TestSpans:
    @both_loops
    def test_phases_lie_end_to_end_and_take_what_they_took(self, loop):
        call = one_call(stream(first=0.1, gap=0.1, last=0.01), loop=loop)
        assert [span.name for span in call.below(call.chat)] == PHASES
        wait, decode, tail = (call.named(name) for name in PHASES[2:])
        assert 95_000_000 < wait.duration_ns < 2_000_000_000
        assert 45_000_000 < decode.duration_ns < 2_000_000_000
        assert 95_000_000 < tail.duration_ns < 2_000_000_000  # the finish chunk's pause and the one after it
        assert call.attribute(semconv.TTFT_NS) == wait.end_ns - call.chat.start_ns
        assert call.result.ended_ns == call.chat.end_ns
        assert call.chat.kind == "client"
        assert call.chat.error is None

    def test_the_trace_goes_out_with_the_request(self):
        server = ScriptedServer([stream()])
        call = one_call(server=server)
        assert server.requests[0].all("traceparent") == [call.chat.ref.traceparent]

    @both_loops
    def test_a_connection_is_used_again_and_costs_nothing_then(self, loop):
        server = ScriptedServer([stream(first=0.05)])
        first, second, third = calls(server=server, loop=loop, times=3)
        assert server.connections == 1
        assert first.named(semconv.CONNECT).attributes[semconv.REUSED] is False
        assert semconv.TCP_NS in first.named(semconv.CONNECT).attributes
        for call in (second, third):
            attributes = call.named(semconv.CONNECT).attributes
            assert (attributes[semconv.REUSED], attributes.get(semconv.TCP_NS)) == (True, None)
            assert call.result.flags == first.result.flags

    def test_a_server_that_closes_after_each_stream_costs_a_connection_per_call(self):
        server = ScriptedServer([[until_closed(*REPLY, DONE), 0.005, Do.CLOSE]])
        made = calls(server=server, times=4)
        assert [call.error for call in made] == [None] * 4
        assert [call.named(semconv.CONNECT).attributes[semconv.REUSED] for call in made] == [False] * 4
        assert server.connections == 4

    def test_back_to_back_calls_to_a_server_that_closes_after_each_stream(self):
        server = ScriptedServer([[CHUNKED + b"".join(map(chunk, [*REPLY, DONE])) + LAST_CHUNK, Do.CLOSE]])
        made = calls(server=server, times=12, pause=0.0)
        assert [call.error for call in made] == [None] * 12

    @both_loops
    def test_reconnecting_is_silent_and_counted_in_connect(self, loop):
        _, call, third = calls(stream(), [Do.CLOSE], stream(), loop=loop, times=3)
        assert call.error is None
        assert "reconnected" in call.result.flags
        assert "reconnected" in call.attribute(semconv.FLAGS)
        connect = call.named(semconv.CONNECT)
        assert connect.attributes[semconv.RECONNECTS] == 1
        assert connect.attributes[semconv.TCP_NS] < connect.duration_ns
        assert call.attribute(semconv.ATTEMPTS) == 1
        assert [span.name for span in call.below(call.chat)] == PHASES
        assert "reconnected" not in third.result.flags

    def test_without_token_events_send_to_end_is_generation(self):
        call = one_call(stream(first=0.05, events=[finish("stop") + usage(9, 1)]))
        assert [span.name for span in call.below(call.chat)] == [*PHASES[:2], semconv.GENERATION]
        assert call.attribute(semconv.TTFT_NS) is None
        assert call.result.output_tokens == 1

    def test_a_buffered_stream_is_not_split(self):
        events = [*(text(f"word{i} ") for i in range(40)), finish("stop") + usage(9, 40)]
        whole = CHUNKED + b"".join(map(chunk, [*events, DONE])) + LAST_CHUNK
        call = one_call([0.05, whole])
        assert [span.name for span in call.below(call.chat)] == [*PHASES[:2], semconv.GENERATION, semconv.TAIL]
        assert "buffered" in call.result.flags

    def test_what_the_gateway_and_the_socket_tell(self):
        head = CHUNKED[:-2] + b"Server-Timing: gateway;dur=2.5, queue;dur=7\r\nX-Other: secret\r\n\r\n"
        call = one_call([head + b"".join(map(chunk, [*REPLY, DONE])) + LAST_CHUNK])
        assert call.attribute(semconv.GATEWAY_NS) == 2_500_000
        assert call.attribute(semconv.QUEUE_NS) == 7_000_000
        assert call.attribute(semconv.HTTP_STATUS) == 200
        assert call.attribute(semconv.RTT_NS) > 0
        headers = [name for name in call.chat.attributes if name.startswith("http.response.header.")]
        assert headers == ["http.response.header.server-timing"]

    def test_arrivals_and_content_are_handed_over(self):
        call = one_call(stream(first=0.05, gap=0.02))
        (arrivals,) = call.recorder.arrivals
        assert (arrivals.span, arrivals.attempt, arrivals.kinds) == (call.chat.ref, 1, "cc")
        assert arrivals.at_us[0] == call.attribute(semconv.TTFT_NS) // 1000
        assert [kind for _, kind, _ in call.recorder.contents] == ["request", "reply"]
        assert call.events == 5  # lines of data, whatever they hold: for display only
        assert call.phases == ["waiting for the model"]

    def test_what_the_reply_tells_is_on_the_span(self):
        drafts = {"num_spec_steps": 3, "num_draft_tokens": 9, "num_accepted_draft_tokens": 4}
        metrics = {"queue_time_ms": 2, "generation_time_ms": 40, "speculative_decoding": drafts}
        ending = finish("tool_calls") + event({"choices": [], "usage": tokens(9), "metrics": metrics})
        first, second = (think("hm", usage=tokens(n)) for n in (1, 2))
        events = [first, second, delta({}, usage=tokens(4)), tool_call('{"x":1}', "bash", "a"), ending]
        made = one_call(stream(first=0.05, gap=0.15, events=events))
        counted = (semconv.DRAFT_TOKENS, semconv.ACCEPTED_TOKENS, semconv.DECODE_STEPS, semconv.SERVER_DECODE_NS)
        assert [made.attribute(name) for name in counted] == [9, 4, 3, 40_000_000]
        assert (made.attribute(semconv.RESPONSE_ID), made.attribute(semconv.RESPONSE_MODEL)) == ("c1", "m")
        split = (semconv.DECODE_REASONING_NS, semconv.DECODE_HIDDEN_NS, semconv.DECODE_TOOL_CALL_NS)
        assert sum(made.attribute(name) for name in split) == made.named(semconv.DECODE).duration_ns
        assert made.attribute(semconv.TIME_TO_FIRST_CHUNK) == made.attribute(semconv.FIRST_EVENT_NS) / 1e9
        (arrivals,) = made.recorder.arrivals
        assert (arrivals.kinds, arrivals.tokens) == ("rrht", [1, 1, 2, None])
        assert arrivals.reads[0] < arrivals.reads[-1]
        _, (_, _, reply) = made.recorder.contents
        assert reply == {"content": "", "reasoning": "hmhm", "tool_calls": [["bash", '{"x":1}']]}

    def test_a_servers_report_in_the_stream_stands_above_its_headers(self):
        begin = CHUNKED[:-2] + b"Server-Timing: queue;dur=7, prefill;dur=9\r\n\r\n"
        last = event({"choices": [], "usage": tokens(2), "metrics": {"queue_time_ms": 2}})
        made = one_call([begin + b"".join(map(chunk, [*REPLY, last, DONE])) + LAST_CHUNK])
        assert (made.attribute(semconv.QUEUE_NS), made.attribute(semconv.PREFILL_NS)) == (2_000_000, 9_000_000)


class TestRequest:
    def body(self, engine="vllm", request=REQUEST, **options):
        server = ScriptedServer([stream()])
        one_call(server=server, engine=engine, request=request, **options)
        return server.requests[0].json()

    def test_what_is_asked(self):
        body = self.body(engine="openai")
        assert body == {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 64,
            "temperature": 0.0,
        }

    def test_a_forced_length(self):
        tool = {"type": "function", "function": {"name": "run", "parameters": {}}}
        body = self.body(request=ChatRequest(REQUEST.messages, (tool,), 64, forced_tokens=7, seed=3))
        assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (7, 7, True)
        assert (body["tool_choice"], body["seed"]) == ("none", 3)
        assert "temperature" not in body

    def test_a_text_to_complete(self):
        server = ScriptedServer([stream()])
        call = one_call(server=server, request=ChatRequest((), (), 64, forced_tokens=7, prompt="Once"))
        assert server.requests[0].line == "POST /v1/completions HTTP/1.1"
        body = server.requests[0].json()
        assert (body["prompt"], body["max_tokens"], "messages" in body) == ("Once", 7, False)
        assert call.attribute(semconv.OPERATION) == "text_completion"
        assert call.attribute(semconv.REQUEST_MAX_TOKENS) == 7

    def test_what_was_asked_is_on_the_span(self):
        request = ChatRequest(REQUEST.messages, (), 64, forced_tokens=7, seed=3)
        made = one_call(stream(), request=request, labels={"engine": "vllm"})
        named = (semconv.OPERATION, semconv.FORCED_TOKENS, semconv.REQUEST_SEED, semconv.PROVIDER)
        assert [made.attribute(name) for name in named] == ["chat", 7, 3, "vllm"]

    def test_fields_of_the_backend_win(self):
        request = ChatRequest(REQUEST.messages, (), 64, extra_body={"top_k": 1, "x": 1})
        body = self.body(request=request, extra_body={"top_k": 5, "max_tokens": 9})
        assert (body["top_k"], body["x"], body["max_tokens"]) == (5, 1, 9)

    @pytest.mark.parametrize("suffix", ["", "/"])
    def test_the_path_whether_or_not_the_base_url_ends_in_a_slash(self, suffix):
        server = ScriptedServer([stream()])
        with server:

            async def main() -> None:
                chat_client = client(server, base_url=server.url + suffix)
                assert (await make_call(chat_client)).error is None
                await check_clean(chat_client)

            run(main())
        assert server.requests[0].line == "POST /v1/chat/completions HTTP/1.1"

    def test_an_ipv6_address(self):
        server = ScriptedServer([stream(), [answer("500 Oops", {"error": {"message": "broken"}})]], host="::1")
        good, bad = calls(server=server, times=2)
        assert good.result.reply.content == "one two"
        assert good.attribute(semconv.SERVER_ADDRESS) == "::1"
        assert good.attribute(semconv.SERVER_PORT) == server.port
        assert f"[::1]:{server.port}" in bad.error.message


class TestKeys:
    def test_without_a_key_none_is_sent(self, monkeypatch):
        for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
            monkeypatch.setenv(name, KEY)
        server = ScriptedServer([stream()])
        one_call(server=server)
        assert server.requests[0].all("authorization") == []
        assert KEY not in str(server.requests[0].headers)

    def test_a_key_is_sent_and_kept_nowhere(self, monkeypatch):
        monkeypatch.setenv("THE_KEY", f" {KEY}\n")
        echo = {"error": {"message": f"Incorrect key: {KEY}, Bearer {KEY}." + "x" * 240 + KEY, "type": "auth"}}
        in_stream = b'data: {"error": {"message": "no such key ' + KEY.encode() + b'"}}\n\n'
        server = ScriptedServer(
            [
                stream(),
                [answer("401 Unauthorized", echo)],
                [answer("307 Temporary Redirect", b"", f"Location: http://h/{KEY}?key={KEY}")],
                [until_closed(in_stream), Do.CLOSE],
            ]
        )
        made = calls(server=server, times=4, api_key_env="THE_KEY")
        assert [request.all("authorization") for request in server.requests] == [[f"Bearer {KEY}"]] * 4
        assert [call.error and call.error.kind for call in made] == [None, "http_401", "http_307", "stream_error"]
        assert "[key]" in made[1].error.message
        for call in made:
            assert KEY[:8] not in f"{call.recorder} {call.error} {call.result}"

    def test_headers_that_break_off_are_not_shown(self, monkeypatch):
        monkeypatch.setenv("THE_KEY", KEY)
        begun = f"HTTP/1.1 200 OK\r\nSet-Cookie: session=secret\r\nX-Echo: Bearer {KEY}\r\n".encode()
        (call,) = calls([begun, 0.02, Do.CLOSE], api_key_env="THE_KEY")
        assert call.error.kind == "disconnected"
        assert call.error.message.endswith("before its response's headers were whole (Server disconnected)")
        for secret in (KEY, "session=secret"):
            assert secret not in f"{call.recorder} {call.error}"

    @pytest.mark.parametrize("length", [250, 285, 950, 985, 1090, 4985, 99_950, 99_990])
    def test_half_a_key_at_the_end_of_a_cut_message_is_not_shown(self, monkeypatch, length):
        monkeypatch.setenv("THE_KEY", KEY)
        words = b"x" * length + b" " + KEY.encode() + b" y" * 300
        in_stream = b'data: {"error": {"message": "%s"}}\n\n' % words
        scripts = ([until_closed(in_stream), Do.CLOSE], [answer("400 Bad Request", words)])
        for call in calls(*scripts, times=2, api_key_env="THE_KEY"):
            assert KEY[:8] not in f"{call.recorder} {call.error}"
            assert len(call.error.message) < 1300

    def test_another_accounts_authorization_from_the_environment_is_not_sent(self, monkeypatch):
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "authorization: Bearer other\nX-Team: agents")
        monkeypatch.setenv("THE_KEY", KEY)
        for backend, sent in (({}, []), ({"api_key_env": "THE_KEY"}, [f"Bearer {KEY}"])):
            server = ScriptedServer([stream()])
            one_call(server=server, **backend)
            assert server.requests[0].all("authorization") == sent
            assert server.requests[0].all("x-team") == ["agents"]

    @pytest.mark.parametrize("value", ["", "  ", "two\nlines", "caf\xe9", "tab\there"])
    def test_keys_that_no_header_can_carry(self, monkeypatch, value):
        monkeypatch.setenv("THE_KEY", value)
        backend = Backend(name="new", base_url="http://127.0.0.1:1/v1", model="m", api_key_env="THE_KEY")
        with pytest.raises(InputError, match="THE_KEY") as caught:
            api_key(backend)
        assert not value.strip() or value not in str(caught.value)


class TestRetries:
    @both_loops
    def test_a_failed_attempt_its_back_off_and_the_one_that_succeeds(self, loop):
        failing = [0.1, answer("500 Internal Server Error", {"error": {"message": "the engine died"}})]
        call = one_call(failing, stream(first=0.2, gap=0.02), loop=loop, attempts=3)
        first, backoff, second = call.below(call.chat)
        assert [span.name for span in (first, backoff, second)] == ["attempt 1", "backoff", "attempt 2"]
        assert first.duration_ns > 95_000_000
        assert 490_000_000 < backoff.duration_ns < 5_000_000_000
        assert first.attributes[semconv.ERROR_KIND] == "http_500"
        assert first.attributes[semconv.HTTP_STATUS] == 500
        assert call.below(first) == []
        assert [span.name for span in call.below(second)] == PHASES
        assert 195_000_000 < call.attribute(semconv.TTFT_NS) < 5_000_000_000
        assert call.attribute(semconv.TTFT_NS) == call.named(semconv.FIRST_TOKEN_WAIT).end_ns - second.start_ns
        assert call.attribute(semconv.ATTEMPTS) == 2
        assert call.phases == ["waiting for the model", "retry in 0.5 s: http_500", "waiting for the model"]
        assert [one.attempt for one in call.recorder.arrivals] == [1, 2]

    def test_attempts_end_and_say_how_many_there_were(self):
        call = one_call([answer("503 Service Unavailable", {"error": "busy"}, "Retry-After: 0.05")], attempts=3)
        names = [span.name for span in call.below(call.chat)]
        assert names == ["attempt 1", "backoff", "attempt 2", "backoff", "attempt 3"]
        assert (call.error.kind, call.attribute(semconv.ERROR_KIND)) == ("http_503", "http_503")
        assert call.error.message.endswith("busy (after 3 attempts)")
        assert call.chat.error

    @pytest.mark.parametrize(
        ("headers", "least_s"),
        [
            (["Retry-After: 0.9"], 0.9),
            (["retry-after-ms: 900", "Retry-After: 60"], 0.9),
            (["Date: Mon, 30 Nov 2026 08:00:00 GMT", "Retry-After: Mon, 30 Nov 2026 08:00:01 GMT"], 1.0),
            (["Retry-After: soon"], 0.5),
            ([], 0.5),
        ],
    )
    def test_how_long_is_waited(self, headers, least_s):
        refusal = answer("429 Too Many Requests", {"error": {"message": "slow down"}}, *headers)
        call = one_call([refusal], stream(), attempts=2)
        wait_s = call.named(semconv.BACKOFF).duration_ns / 1e9
        assert least_s - 0.005 < wait_s < least_s + 5
        assert call.error is None

    @pytest.mark.parametrize("asked", ["3600", "9999999999", "inf"])
    def test_what_is_too_long_to_wait_fails_at_once(self, asked):
        started = time.monotonic()
        call = one_call([answer("429 Too Many Requests", {"error": "no"}, f"Retry-After: {asked}")], attempts=3)
        assert time.monotonic() - started < 3
        assert call.error.kind == "http_429"
        assert "asks to wait" in call.error.message
        assert "no more than 60 s" in call.error.message
        assert call.attribute(semconv.ATTEMPTS) == 1

    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (  # vLLM
                "400 Bad Request",
                {
                    "error": {
                        "message": "This model's maximum context length is 2048 tokens. However, you requested 9000",
                        "type": "BadRequestError",
                        "code": 400,
                    }
                },
            ),
            (  # llama.cpp
                "400 Bad Request",
                {
                    "error": {
                        "code": 400,
                        "message": "the request exceeds the available context size, try increasing it",
                        "type": "exceed_context_size_error",
                        "n_prompt_tokens": 9000,
                        "n_ctx": 4096,
                    }
                },
            ),
            (  # OpenAI
                "400 Bad Request",
                {"error": {"message": "Please shorten it.", "code": "context_length_exceeded", "param": "messages"}},
            ),
            ("500 Internal Server Error", {"error": {"message": "Context size has been exceeded.", "code": 500}}),
        ],
    )
    def test_a_prompt_that_does_not_fit_is_tried_once(self, status, body):
        call = one_call([answer(status, body)], attempts=3)
        assert (call.error.kind, call.attribute(semconv.ATTEMPTS)) == ("context_overflow", 1)
        assert [span.name for span in call.below(call.chat)] == ["attempt 1"]
        assert "does not fit the model's context" in call.error.message

    @pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "403 Forbidden", "404 Not Found"])
    def test_what_will_not_change_is_tried_once(self, status):
        call = one_call([answer(status, {"detail": "the server's words"})], attempts=3)
        assert (call.error.kind, call.attribute(semconv.ATTEMPTS)) == (f"http_{status[:3]}", 1)
        assert "the server's words" in call.error.message

    def test_loading_has_a_kind_of_its_own(self):
        body = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
        call = one_call([answer("503 Service Unavailable", body)])
        assert call.error.kind == "loading"

    def test_refused_then_there(self):
        server = ScriptedServer([stream()])
        with server:
            port = server.port

        async def main() -> Call:
            chat_client = client(server, attempts=2, base_url=f"http://127.0.0.1:{port}/v1")
            call = await make_call(chat_client)
            await check_clean(chat_client)
            return call

        call = run(main())
        check_tiling(call)
        assert (call.error.kind, call.attribute(semconv.ATTEMPTS)) == ("refused", 2)
        assert f"connection refused at 127.0.0.1:{port}" in call.error.message


class TestFailures:
    """Each failure has a kind and one line that says where and what."""

    def fails(self, *scripts, **options) -> Call:
        call = one_call(*scripts, **options)
        message = call.error.message
        assert "\n" not in message
        assert message.startswith('backend "test": ')
        assert call.attribute(semconv.ERROR_KIND) == call.attribute(semconv.ERROR_TYPE) == call.error.kind
        assert call.attribute(semconv.ERROR_MESSAGE) in message
        assert call.chat.error
        return call

    @both_loops
    def test_tls(self, loop, certificate):
        call = self.fails(server=ScriptedServer([[]], tls=certificate[0]), loop=loop)
        assert call.error.kind == "tls"
        assert "certificate verify failed" in call.error.message

    @both_loops
    def test_https_to_a_plain_server_and_http_to_a_tls_server(self, loop, certificate):
        plain = ScriptedServer([[Do.CLOSE]], greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n")
        secure = ScriptedServer([[]], tls=certificate[0])
        with plain, secure:

            async def main() -> list[Call]:
                made = []
                for server, scheme in ((plain, "https"), (secure, "http")):
                    url = f"{scheme}://127.0.0.1:{server.port}/v1"
                    chat_client = client(server, base_url=url)
                    made.append(await make_call(chat_client))
                    await check_clean(chat_client)
                return made

            made = run(main(), loop)
        assert made[0].error.kind == "tls"
        assert made[1].error.kind in {"not_http", "disconnected"}

    def test_an_unknown_host(self):
        call = self.fails(server=ScriptedServer([[]]), base_url="http://nosuch.invalid:8000/v1")
        assert call.error.kind == "dns"
        assert "nosuch.invalid:8000" in call.error.message

    def test_a_server_that_never_finishes_the_handshake(self, certificate):
        server = ScriptedServer([[]], tls=certificate[0], handshake_delay=3)
        assert self.fails(server=server, connect_timeout_s=0.2).error.kind == "connect_timeout"

    def test_no_http(self):
        call = self.fails(server=ScriptedServer([[Do.HANG]], greeting=b"SSH-2.0-OpenSSH_9.9\r\n"))
        assert call.error.kind == "not_http"

    @both_loops
    @pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nContent"])
    def test_a_connection_that_closes_before_the_headers(self, first, loop):
        call = self.fails([first, Do.CLOSE], loop=loop)
        assert call.error.kind == "disconnected"

    @both_loops
    @pytest.mark.parametrize("ending", [Do.CLOSE, Do.RESET])
    def test_a_stream_that_breaks_off(self, ending, loop):
        call = self.fails([CHUNKED, chunk(text("one")), 0.02, chunk(text(" two")), 0.03, ending], loop=loop, attempts=3)
        assert (call.error.kind, call.attribute(semconv.ATTEMPTS)) == ("truncated", 1)
        assert "after 2 token events" in call.error.message
        assert call.recorder.arrivals[0].kinds == "cc"

    def test_a_finish_reason_makes_up_for_a_break(self):
        call = one_call([CHUNKED, *map(chunk, REPLY), 0.02, Do.RESET])
        assert call.error is None
        assert "no_done" in call.result.flags

    def test_an_error_in_the_stream(self):
        call = self.fails(stream(events=[text("one"), b'data: {"error": {"message": "out of memory"}}\n\n']))
        assert call.error.kind == "stream_error"
        assert "out of memory" in call.error.message

    def test_a_prompt_that_does_not_fit_told_in_the_stream(self):
        call = self.fails(stream(events=[b'data: {"error": {"message": "the input is too long"}}\n\n']))
        assert call.error.kind == "context_overflow"

    def test_a_web_page_for_an_error(self):
        page = b"<html><head><title>502</title><style>p {}</style></head>\n<body><h1>Bad Gateway</h1></body></html>"
        call = self.fails([answer("502 Bad Gateway", page, content_type="text/html")])
        assert call.error.kind == "http_502"
        assert call.error.message.endswith(": Bad Gateway")

    def test_a_web_page_for_an_answer(self):
        call = self.fails([answer("200 OK", b"<html>log in</html>", content_type="text/html; charset=utf-8")])
        assert call.error.kind == "not_a_stream"

    def test_an_empty_answer(self):
        assert self.fails([answer("200 OK", b"")]).error.kind == "truncated"

    def test_a_body_without_end(self, monkeypatch):
        monkeypatch.setattr("agentprof.wire.exchange.MAX_BODY_BYTES", 1_000_000)
        call = self.fails([CHUNKED, *[chunk(text("x" * 100_000))] * 100, Do.HANG])
        assert call.error.kind == "too_large"

    def test_a_redirect(self):
        call = self.fails([answer("308 Permanent Redirect", b"", "Location: https://other.example/v1?token=abc")])
        assert call.error.kind == "http_308"
        assert "https://other.example/v1" in call.error.message
        assert "abc" not in call.error.message

    @pytest.mark.parametrize(
        ("location", "shown"),
        [
            ("http://127.0.0.1:8443/v1/chat", "http://127.0.0.1:8443/v1/chat"),
            ("http://me:secret@[::1]:8000/v1", "http://[::1]:8000/v1"),
            ("//other:81/v1", "//other:81/v1"),
            ("/v2/chat", "/v2/chat"),
            ("http://[::1/v1", "what is no URL"),
            ("http://h/" + "x" * 5000, "http://h/" + "x" * 290 + "…"),
        ],
    )
    def test_where_a_redirect_leads(self, location, shown):
        call = self.fails([answer("307 Temporary Redirect", b"", f"Location: {location}")])
        assert call.error.message.endswith(f": it redirects to {shown}, which isn't followed; is base_url right?")

    @pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
    def test_an_encoding_that_was_not_asked_for(self, status):
        call = self.fails([head(status, "Content-Encoding: br", "Content-Length: 5"), b"abcde"])
        assert call.error.kind == "unreadable"
        assert "an encoding not asked for" in call.error.message

    def test_an_error_body_that_breaks_off(self):
        broken = b'HTTP/1.1 500 Oops\r\nContent-Length: 500\r\n\r\n{"error": {"mess'
        assert self.fails([broken, Do.CLOSE]).error.kind == "http_500"


class TestSharing:
    @both_loops
    def test_many_calls_at_once_keep_their_streams_apart(self, loop):
        events = [[*(text(f"{n}.{i} ") for i in range(30)), finish("stop") + usage(5, 30)] for n in range(12)]
        server = ScriptedServer([stream(events=events[n], gap=0.002) for n in range(12)])

        async def main() -> list[Call]:
            chat_client = client(server, pool=100)
            made = await asyncio.gather(*(make_call(chat_client) for _ in range(12)))
            await server.settle()
            await check_clean(chat_client)
            return list(made)

        with server:
            made = run(main(), loop)
        seen = set()
        for call in made:
            check_tiling(call)
            number = call.result.reply.content.split(".")[0]
            assert call.result.reply.content == "".join(f"{number}.{i} " for i in range(30))
            seen.add(number)
        assert len(seen) == 12

    def test_closing_the_client_ends_calls_that_are_under_way(self):
        server = ScriptedServer([[CHUNKED, chunk(text("one")), Do.HANG]])

        async def main() -> Call:
            chat_client = client(server)
            call, task = start_call(chat_client)
            await asyncio.to_thread(server.wait_busy)
            await asyncio.sleep(0.1)
            await chat_client.close()
            await asyncio.wait_for(task, 2)
            return call

        with server:
            call = run(main())
        assert call.error.kind == "truncated"


def test_the_client_of_a_backend_knows_its_port():
    ports = {"http://h/v1": 80, "https://h/v1": 443, "https://h:8443/v1": 8443}
    for url, port in ports.items():

        async def main(url: str = url) -> ChatClient:
            made = ChatClient(Backend(name="a", base_url=url, model="m"), "openai")
            await made.close()
            return made

        assert run(main()).address == f"h:{port}"


@pytest.mark.parametrize("text", ["naïve \U0001f600 \x00 \u2028", "half of a pair: \ud83d"])
def test_the_request_is_json_whatever_it_holds(text):
    server = ScriptedServer([stream()])
    messages = ({"role": "user", "content": text},)
    one_call(server=server, request=ChatRequest(messages, (), 5), extra_body={"seed": 2**70, "limits": {1: "one"}})
    body = json.loads(server.requests[0].body)
    assert body["messages"] == list(messages)
    assert (body["seed"], body["limits"]) == (2**70, {"1": "one"})
