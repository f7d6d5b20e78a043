"""What servers do to a client's times, played over real sockets: bounds below from the script, above generous."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from live_calls import LOOPS, REPLY, Call, check_clean, check_tiling, client, make_call, run, start_call, stream
from scripted_server import CHUNKED, LAST_CHUNK, Do, ScriptedServer, answer, chunk, make_certificate
from timeline import DONE, call, delta, finish, text, think, tokens, usage

from agentprof import semconv
from agentprof.wire.figures import inter_chunk_ns, measure
from agentprof.wire.tls import tls_context

MS = 1_000_000
SLACK_MS = 250  # what two busy cores may add

pytestmark = pytest.mark.parametrize("loop", LOOPS)


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """The openai client's first call in a process takes some 40 ms before it connects."""
    play(ScriptedServer([stream()]), "asyncio")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


def play(server: ScriptedServer, loop: str, times: int = 1, pause: float = 0.02, **options: Any) -> list[Call]:
    """So many calls in turn, with a moment between."""

    async def main() -> list[Call]:
        chat_client = client(server, **options)
        made = []
        for _ in range(times):
            made.append(await make_call(chat_client))
            if pause:
                await server.settle(pause)
        await check_clean(chat_client)
        return made

    with server:
        made = run(main(), loop)
    for one in made:
        check_tiling(one)
    return made


def at(*moments: tuple[float, bytes]) -> list[bytes | float]:
    """A stream whose bytes leave so many seconds after the request came; then `[DONE]` and the last chunk."""
    steps: list[bytes | float] = [CHUNKED]
    before = 0.0
    for moment, event in moments:
        steps += [moment - before, chunk(event)]
        before = moment
    return [*steps, chunk(DONE), LAST_CHUNK]


def play_after_warmup(script: list[bytes | float], loop: str, **options: Any) -> Call:
    """One call, after another that warmed the client and its connection up."""
    return play(ScriptedServer([stream(), script]), loop, times=2, **options)[1]


def is_about(value_ns: int | None, expected_s: float) -> bool:
    """As long as the script took, or a little longer; a hair less, as the request itself took time to arrive."""
    return value_ns is not None and -20 * MS < value_ns - expected_s * 1e9 < SLACK_MS * MS


class TestTimeAndTokens:
    def test_several_tokens_per_chunk(self, loop):
        one = play_after_warmup(
            at((0.10, text("one two ")), (0.14, text("six ten ")), (0.18, text("end now.") + usage(5, 12))), loop
        )
        result = one.result
        figures = measure(result.reply, start_ns=one.chat.start_ns, end_ns=one.chat.end_ns, forced_tokens=None)
        assert (result.output_tokens, result.is_estimated) == (12, True)
        assert all(is_about(gap, 0.04) for gap in inter_chunk_ns(result.reply, figures))
        assert len(result.reply.events) == 3
        assert figures.peak_interval_tok_s >= figures.decode_tok_s

    def test_cumulative_usage_makes_the_rate_exact(self, loop):
        events = [text("x", usage=tokens(count)) for count in (4, 8, 12)]
        one = play_after_warmup(at((0.10, events[0]), (0.14, events[1]), (0.18, events[2] + usage(5, 12))), loop)
        assert not one.result.is_estimated
        assert one.attribute(semconv.FIRST_READ_TOKENS) == 4
        assert is_about(one.named(semconv.DECODE).duration_ns, 0.08)

    def test_role_then_two_tokens(self, loop):
        one = play_after_warmup(
            at(
                (0.005, delta({"role": "assistant", "content": ""})),
                (0.214, text("Hi")),
                (0.234, text("!") + usage(3, 2)),
            ),
            loop,
        )
        assert is_about(one.attribute(semconv.TTFT_NS), 0.214)
        assert one.attribute(semconv.TTFO_NS) == one.attribute(semconv.TTFT_NS)
        assert is_about(one.attribute(semconv.FIRST_EVENT_NS), 0.005)
        assert is_about(one.named(semconv.DECODE).duration_ns, 0.02)

    @pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
    def test_reasoning_comes_before_the_answer(self, field, loop):
        one = play_after_warmup(
            at((0.05, think("hm", field)), (0.25, text("so")), (0.30, text(".") + usage(3, 60))), loop
        )
        assert is_about(one.attribute(semconv.TTFT_NS), 0.05)
        assert is_about(one.attribute(semconv.TTFO_NS), 0.25)
        assert is_about(one.attribute(semconv.DECODE_ANSWER_NS), 0.25)

    def test_one_large_delta_after_silence_is_not_split(self, loop):
        whole = (
            call('{"path": "' + "x" * 17_000 + '"}', "write_file", "c1") + finish("tool_calls") + usage(124_000, 4400)
        )
        one = play_after_warmup(at((0.3, whole)), loop)
        assert is_about(one.named(semconv.GENERATION).duration_ns, 0.3)
        assert "buffered" in one.result.flags
        assert one.result.output_tokens == 4400
        assert one.result.reply.tool_calls[0].parsed is not None
        assert semconv.DECODE_TOOL_CALL_NS not in one.chat.attributes

    def test_the_same_with_usage_that_grew_meanwhile_is(self, loop):
        silent = [(0.05 * n, delta({}, usage=tokens(n * 700, 9))) for n in range(1, 6)]
        whole = call('{"path": "' + "x" * 17_000 + '"}', "write_file", "c1") + finish("tool_calls") + usage(9, 4400)
        one = play_after_warmup(at(*silent, (0.3, whole)), loop)
        assert is_about(one.attribute(semconv.TTFT_NS), 0.05)
        assert is_about(one.named(semconv.DECODE).duration_ns, 0.25)
        assert "buffered" not in one.result.flags

    def test_nothing_and_then_all(self, loop):
        one = play_after_warmup(at((0.2, text("word " * 4096)), (0.229, finish("stop") + usage(9, 4096))), loop)
        assert is_about(one.named(semconv.GENERATION).duration_ns, 0.2)
        assert "buffered" in one.result.flags
        assert [span.name for span in one.below(one.chat)][2:] == [semconv.GENERATION, semconv.TAIL]

    def test_bursts_have_a_size(self, loop):
        burst = b"".join(text("x" * 150) for _ in range(65))
        one = play_after_warmup(at(*((0.15 * n, burst) for n in range(1, 5)), (0.62, usage(9, 260))), loop)
        assert "bursts:65" in one.result.flags

    def test_role_and_a_finish_are_no_token(self, loop):
        one = play_after_warmup(
            at((0.01, delta({"role": "assistant", "content": ""})), (0.05, finish("stop") + usage(9, 1))), loop
        )
        assert one.attribute(semconv.TTFT_NS) is None
        assert one.result.output_tokens == 1
        assert is_about(one.named(semconv.GENERATION).duration_ns, 0.05)

    def test_more_calls_than_connections(self, loop):
        server = ScriptedServer([stream(first=0.2)])

        async def main() -> list[Call]:
            chat_client = client(server, pool=2)
            await make_call(chat_client)
            await server.settle()
            made = await asyncio.gather(*(make_call(chat_client) for _ in range(5)))
            await server.settle()
            await check_clean(chat_client)
            return list(made)

        with server:
            made = run(main(), loop)
        made.sort(key=lambda one: one.attribute(semconv.POOL_WAIT_NS))
        assert [one.attribute(semconv.POOL_WAIT_NS) for one in made[:2]] == [0, 0]
        for waited, one in zip((0, 0, 0.2, 0.2, 0.4), made, strict=True):
            check_tiling(one)
            connect = one.named(semconv.CONNECT)
            # The calls begin one after another, which on a busy machine takes a while off the wait.
            assert waited * 0.25e9 <= one.attribute(semconv.POOL_WAIT_NS) < waited * 1e9 + SLACK_MS * MS
            assert connect.attributes[semconv.POOL_WAIT_NS] == one.attribute(semconv.POOL_WAIT_NS)
            assert connect.duration_ns >= one.attribute(semconv.POOL_WAIT_NS)
            assert is_about(one.attribute(semconv.TTFT_NS), 0.2)
            assert is_about(one.named(semconv.FIRST_TOKEN_WAIT).duration_ns, 0.2)

    def test_stamps_are_close_behind_the_server(self, loop):
        server = ScriptedServer([stream(events=[*(text("x") for _ in range(40)), usage(5, 40)], gap=0.005)])
        (one,) = play(server, loop)
        sent = server.sent[0][1:41]
        late = sorted(event.at_ns - stamp for event, stamp in zip(one.result.reply.events, sent, strict=True))
        assert late[0] > 0
        assert late[len(late) // 2] < 20 * MS


class TestConnections:
    def test_a_slow_handshake_is_in_connect_alone(self, loop, certificate):
        server = ScriptedServer([stream(first=0.1)], tls=certificate[0], handshake_delay=0.2)
        first, second = play(server, loop, times=2, tls=tls_context(certificate[1]))
        assert is_about(first.named(semconv.CONNECT).duration_ns, 0.2)
        assert is_about(first.named(semconv.CONNECT).attributes[semconv.TLS_NS], 0.2)
        assert second.named(semconv.CONNECT).duration_ns < 100 * MS
        assert semconv.TLS_NS not in second.named(semconv.CONNECT).attributes
        for one in (first, second):
            assert is_about(one.named(semconv.FIRST_TOKEN_WAIT).duration_ns, 0.1)
        assert is_about(first.attribute(semconv.TTFT_NS), 0.3)
        assert is_about(second.attribute(semconv.TTFT_NS), 0.1)

    def test_the_idle_connection_was_closed_while_a_tool_ran(self, loop):
        server = ScriptedServer([[*stream(), 0.05, Do.CLOSE], stream()])
        _, second = play(server, loop, times=2, pause=0.15)
        assert second.error is None
        assert server.connections == 2
        connect = second.named(semconv.CONNECT)
        assert (connect.attributes[semconv.REUSED], connect.attributes[semconv.TCP_NS] > 0) == (False, True)
        assert second.attribute(semconv.ATTEMPTS) == 1

    def test_it_was_closed_as_the_next_request_was_on_its_way(self, loop):
        server = ScriptedServer([stream(), [0.05, Do.RESET], stream(first=0.1)])
        _, second, third = play(server, loop, times=3)
        assert second.error is None
        assert "reconnected" in second.result.flags
        assert is_about(second.named(semconv.CONNECT).duration_ns, 0.05)
        assert is_about(second.named(semconv.FIRST_TOKEN_WAIT).duration_ns, 0.1)
        assert third.named(semconv.CONNECT).attributes[semconv.REUSED] is True

    def test_a_server_that_ends_its_body_a_little_later(self, loop):
        server = ScriptedServer([stream(last=0.002)])
        made = play(server, loop, times=4)
        assert server.connections == 1
        assert [one.error for one in made] == [None] * 4

    def test_a_server_that_closes_whatever_its_headers_say(self, loop):
        head = CHUNKED[:-2] + b"Keep-Alive: timeout=5, max=100\r\n\r\n"
        whole = [head + b"".join(chunk(event) for event in REPLY), 0.005, chunk(DONE) + LAST_CHUNK, Do.CLOSE]
        made = play(ScriptedServer([whole]), loop, times=8, pause=0.0)
        assert [(one.error, one.result.reply.content) for one in made] == [(None, "one two")] * 8


class TestRetries:
    def test_what_the_user_waited_and_what_the_server_took(self, loop):
        failing = [0.1, answer("500 Internal Server Error", {"error": "x"}, "Retry-After: 2")]
        server = ScriptedServer([stream(), failing, stream(first=0.3)])
        one = play(server, loop, times=2, attempts=2)[1]
        failed, backoff, second = one.below(one.chat)
        assert is_about(one.attribute(semconv.TTFT_NS), 0.3)
        assert is_about(failed.duration_ns + backoff.duration_ns, 2.1)
        assert is_about(one.named(semconv.FIRST_TOKEN_WAIT).end_ns - one.chat.start_ns, 2.4)
        assert backoff.attributes.get(semconv.POOL_WAIT_NS) is None
        assert second.start_ns == backoff.end_ns

    def test_one_that_asks_for_too_long_a_wait(self, loop):
        started = time.monotonic()
        (one,) = play(ScriptedServer([[answer("429 Too Many Requests", b"x", "Retry-After: 3600")]]), loop, attempts=3)
        assert (one.error.kind, one.attribute(semconv.ATTEMPTS)) == ("http_429", 1)
        assert time.monotonic() - started < 5

    def test_a_server_that_loads_three_times(self, loop):
        loading = [answer("503 Service Unavailable", {"error": {"message": "Loading model", "code": 503}})]
        made = play(ScriptedServer([loading, loading, loading, stream()]), loop, times=4)
        assert [one.error and one.error.kind for one in made] == ["loading"] * 3 + [None]


class TestLeavingEarly:
    def test_each_call_has_one_ended_span(self, loop):
        server = ScriptedServer([[CHUNKED, chunk(text("one")), Do.HANG]])

        async def main() -> list[Call]:
            chat_client = client(server)
            started = [start_call(chat_client) for _ in range(4)]
            await asyncio.to_thread(server.wait_busy, 4)
            await asyncio.sleep(0.05)
            for _, task in started:
                task.cancel()
            outcomes = await asyncio.gather(*(task for _, task in started), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 4
            assert await asyncio.to_thread(server.wait_left, 4)
            await check_clean(chat_client)
            return [one for one, _ in started]

        with server:
            made = run(main(), loop)
        for one in made:
            check_tiling(one)
            assert one.chat.end_ns > one.chat.start_ns
            assert one.attribute(semconv.ERROR_KIND) == "cancelled"
