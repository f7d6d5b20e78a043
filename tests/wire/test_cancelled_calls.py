"""Calls that are cancelled, or run out of time, at each of their stages."""

from __future__ import annotations

import asyncio

import pytest
from live_calls import (
    LOOPS,
    Call,
    check_clean,
    check_tiling,
    client,
    make_call,
    run,
    start_call,
    stream,
)
from scripted_server import CHUNKED, Do, ScriptedServer, answer, chunk
from timeline import text

from agentprof import semconv
from agentprof.records.call import ChatRequest
from agentprof.wire.tls import tls_context

both_loops = pytest.mark.parametrize("loop", LOOPS)


STAGES = {
    "in the handshake": ([], {"handshake_delay": 0.5}),
    "waiting for headers": ([[Do.HANG]], {}),
    "in the headers": ([[CHUNKED[:30], Do.HANG]], {}),
    "before the first token": ([[CHUNKED, Do.HANG]], {}),
    "in mid-stream": ([[CHUNKED, chunk(text("one")), Do.HANG]], {}),
    "in the back-off": ([[answer("500 Oops", b"", "Retry-After: 30")]], {"attempts": 3}),
    "in the second attempt": ([[answer("500 Oops", b"", "Retry-After: 0")], [Do.HANG]], {"attempts": 3}),
}


class TestCancellation:
    @both_loops
    @pytest.mark.parametrize("stage", STAGES)
    @pytest.mark.parametrize("means", ["cancel", "timeout"])
    def test_one_ended_span_and_nothing_left(self, stage, means, loop, certificate):
        scripts, options = STAGES[stage]
        delay = {key: value for key, value in options.items() if key == "handshake_delay"}
        options = {key: value for key, value in options.items() if key != "handshake_delay"}
        context = certificate[0] if delay else None
        server = ScriptedServer(scripts or [[]], tls=context, **delay)

        async def main() -> Call:
            chat_client = client(server, tls=tls_context(certificate[1]), **options)
            call, task = start_call(chat_client)
            await asyncio.to_thread(server.wait_busy, 2 if stage == "in the second attempt" else 1, bool(delay))
            await asyncio.sleep(0.05)
            if means == "cancel":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0):
                        await task
            if stage != "in the back-off":
                assert await asyncio.to_thread(server.wait_left)
            server.scripts = [stream()]
            server.handshake_delay = 0.0
            assert (await make_call(chat_client)).result.reply.content == "one two"
            await check_clean(chat_client)
            return call

        with server:
            call = run(main(), loop)
        check_tiling(call)
        assert call.attribute(semconv.ERROR_KIND) == "cancelled"
        assert call.chat.error
        assert 45_000_000 < call.chat.duration_ns < 5_000_000_000
        waited = [semconv.CONNECT, semconv.SEND, semconv.GENERATION]
        streamed = [semconv.CONNECT, semconv.SEND, semconv.FIRST_TOKEN_WAIT, semconv.DECODE, semconv.TAIL]
        expected = {
            "in the handshake": [semconv.CONNECT],
            "in mid-stream": streamed,
            "in the back-off": ["attempt 1", "backoff"],
            "in the second attempt": ["attempt 1", "backoff", "attempt 2"],
        }
        assert [span.name for span in call.below(call.chat)] == expected.get(stage, waited)
        if stage == "in the back-off":  # what failed before stays as it was
            first, pause = call.below(call.chat)
            assert first.attributes[semconv.ERROR_KIND] == "http_500"
            assert first.end_ns == pause.start_ns < pause.end_ns == call.chat.end_ns
        if stage == "in mid-stream":
            assert call.attribute(semconv.TTFT_NS) > 0
            assert call.attribute(semconv.OUTPUT_TOKENS) == 1
            assert call.attribute(semconv.OUTPUT_TOKENS_SOURCE) == "counted"

    def test_in_the_queue_for_a_connection(self):
        server = ScriptedServer([stream(first=2)])

        async def main() -> Call:
            chat_client = client(server, pool=1)
            first, running = start_call(chat_client)
            await asyncio.to_thread(server.wait_busy)
            second, waiting = start_call(chat_client)
            await asyncio.sleep(0.6)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await running
            assert first.result.reply.content == "one two"
            assert (await make_call(chat_client)).error is None
            await check_clean(chat_client)
            return second

        with server:
            call = run(main())
        check_tiling(call)
        assert call.attribute(semconv.ERROR_KIND) == "cancelled"
        assert call.chat.duration_ns > 90_000_000
        assert [span.name for span in call.below(call.chat)] == [semconv.CONNECT]

    @both_loops
    def test_while_a_large_prompt_is_sent(self, loop):
        server = ScriptedServer([[Do.HANG]], read_delay=0.5)
        request = ChatRequest(({"role": "user", "content": "x" * 16_000_000},), (), 64)

        async def main() -> Call:
            chat_client = client(server)
            call, task = start_call(chat_client, request)
            await asyncio.to_thread(server.wait_busy, 1, True)
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.wait_left)
            await check_clean(chat_client)
            return call

        with server:
            call = run(main(), loop)
        assert server.requests == []  # what was left of it was not sent
        assert call.attribute(semconv.ERROR_KIND) == "cancelled"

    def test_before_anything_was_done(self):
        server = ScriptedServer([stream()])

        async def main() -> Call:
            chat_client = client(server)
            call, task = start_call(chat_client)
            await asyncio.sleep(0)  # it has begun, and no more
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await check_clean(chat_client)
            return call

        with server:
            call = run(main())
        check_tiling(call)
        assert call.attribute(semconv.ERROR_KIND) == "cancelled"
        assert server.connections == 0
