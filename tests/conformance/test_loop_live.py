"""What servers do to a session while an agent works: through the real loop, tools and client, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_calls import check_clean, client, stream
from live_sessions import Played, is_about, play, play_session, run_main, steps
from scripted_server import CHUNKED, Do, Script, ScriptedServer, answer, chunk, make_certificate
from timeline import DONE, event, text, tokens, usage

from agentprof import semconv
from agentprof.wire.tls import tls_context

MS = 1_000_000
OVERLOADED = answer("500 Internal Server Error", {"error": {"message": "the engine died"}}, "Retry-After: 2")


def refuse(status: str, *headers: str) -> bytes:
    return answer(status, {"error": {"message": "not now"}}, *headers)


class TestRetries:
    @pytest.mark.parametrize(
        ("failing", "first_s", "retry_s", "attempts"),
        [
            pytest.param([[0.1, OVERLOADED]], 0.3, 2.1, 2, id="500 after a moment"),
            pytest.param([[0.1, refuse("503 Busy", "Retry-After: 0.2")]] * 2, 0.2, 0.6, 3, id="503 twice"),
            pytest.param([[0.2, Do.RESET]], 0.1, 0.7, 2, id="reset before any byte"),
        ],
    )
    def test_what_the_user_waited_and_what_the_server_took(
        self, tmp_path: Path, failing: list[Script], first_s: float, retry_s: float, attempts: int
    ) -> None:
        played = play(ScriptedServer([*failing, stream(first=first_s)]), tmp_path, turns=steps())
        (call,) = played.calls
        assert played.outcome.name == "completed"
        assert call["attempts"] == attempts
        assert is_about(call["ttft_ns"], first_s)
        assert is_about(call["retry_ns"], retry_s)
        assert is_about(call["ttft_ns"] + call["retry_ns"] + call["pool_wait_ns"], first_s + retry_s)
        assert is_about(played.ledger["retry"], retry_s)
        assert is_about(played.ledger["first_token_wait"], first_s)

    @pytest.mark.parametrize(
        ("headers", "waited_s"),
        [
            (["Retry-After: 1"], 1.0),
            ([], 0.5),
            (["Retry-After: soon"], 0.5),
            (["Date: Mon, 30 Nov 2026 08:00:00 GMT", "Retry-After: Mon, 30 Nov 2026 08:00:01 GMT"], 1.0),
        ],
    )
    def test_a_rate_limit_is_waited_out(self, tmp_path: Path, headers: list[str], waited_s: float) -> None:
        server = ScriptedServer([[refuse("429 Too Many Requests", *headers)], stream()])
        played = play(server, tmp_path, turns=steps())
        assert played.outcome.name == "completed"
        assert is_about(played.ledger["retry"], waited_s)
        (backoff,) = played.named(semconv.BACKOFF)
        assert is_about(backoff.duration_ns, waited_s)

    @pytest.mark.parametrize("asked", ["3600", "61", "inf"])
    def test_a_rate_limit_beyond_the_cap_fails_at_once(self, tmp_path: Path, asked: str) -> None:
        started = time.monotonic()
        server = ScriptedServer([stream(), [refuse("429 Too Many Requests", f"Retry-After: {asked}")]])
        played = play(server, tmp_path, turns=steps(["echo one"]))
        assert time.monotonic() - started < 15
        assert played.outcome.name == "failed"
        assert "no more than 60 s are waited" in (played.outcome.reason or "")
        first, second = played.calls
        assert (first["error"], second["error"]["kind"], second["attempts"]) == (None, "http_429", 1)
        assert not played.named(semconv.BACKOFF)

    def test_a_wait_ends_with_the_session(self, tmp_path: Path) -> None:
        limits = {"session": "600ms", "tool": "10s", "output_tokens": 16}
        server = ScriptedServer([[refuse("503 Busy", "Retry-After: 30")]])
        played = play(server, tmp_path, turns=steps(), limits=limits)
        assert played.outcome.name == "timed_out"
        (backoff,) = played.named(semconv.BACKOFF)
        assert backoff.end_ns == played.named(semconv.CHAT)[0].end_ns
        assert is_about(played.explained["wall_ns"], 0.6)

    def test_a_server_that_loads_again_in_mid_run_is_waited_for(self, tmp_path: Path) -> None:
        loading = [answer("503 Service Unavailable", {"error": {"message": "Loading model", "code": 503}})]
        played = play(ScriptedServer([stream(), loading, stream()]), tmp_path, turns=steps(["echo one"]))
        assert played.outcome.name == "completed"
        assert [call["attempts"] for call in played.calls] == [1, 2]
        assert played.ledger["retry"] >= 450 * MS


OVERFLOWS = {
    "vllm": answer(
        "400 Bad Request",
        {"error": {"message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError"}},
    ),
    "llama.cpp": answer(
        "400 Bad Request",
        {"error": {"code": 400, "message": "the request exceeds the available context size, try increasing it"}},
    ),
    "a gateway": answer("413 Payload Too Large", {"detail": "ContextWindowExceededError: prompt is too long"}),
    "in the stream": stream(events=[event({"error": {"message": "Context size has been exceeded.", "code": 400}})]),
}


class TestPermanentErrors:
    @pytest.mark.parametrize("kind", OVERFLOWS)
    def test_an_overflow_is_tried_once_and_what_ran_is_kept(self, tmp_path: Path, kind: str) -> None:
        refusal = OVERFLOWS[kind]
        server = ScriptedServer([stream(), stream(), [refusal] if isinstance(refusal, bytes) else refusal])
        played = play(server, tmp_path, turns=steps(["echo one"], ["echo two"], ["echo three"]))
        assert played.outcome.name == "context_overflow"
        assert len(played.requests) == 3
        assert [call["attempts"] for call in played.calls] == [1, 1, 1]
        assert [call["error"] and call["error"]["kind"] for call in played.calls] == [None, None, "context_overflow"]
        assert [output.split()[0] for output in played.outputs] == ["one", "two"]
        assert len(played.named("execute_tool")) == 2
        assert [span.name for span in played.named("step")] == ["step 1", "step 2", "step 3"]
        assert played.ledger["tool"] > 0

    @pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "404 Not Found"])
    def test_what_will_not_pass_is_tried_once(self, tmp_path: Path, status: str) -> None:
        played = play(ScriptedServer([stream(), [refuse(status)]]), tmp_path, turns=steps(["echo one"]))
        assert played.outcome.name == "failed"
        assert "not now" in (played.outcome.reason or "")
        assert (len(played.requests), played.calls[1]["attempts"]) == (2, 1)
        assert played.outputs == ["one\n[exit code 0]"]


class TestConnections:
    @pytest.mark.parametrize("ending", [Do.CLOSE, Do.RESET])
    def test_the_idle_connection_was_closed_while_a_tool_ran(self, tmp_path: Path, ending: Do) -> None:
        server = ScriptedServer([[*stream(), 0.05, ending], stream()])
        played = play(server, tmp_path, turns=steps(["sleep 0.4"]))
        assert played.outcome.name == "completed"
        assert [call["error"] for call in played.calls] == [None, None]
        assert [call["attempts"] for call in played.calls] == [1, 1]
        assert server.connections == 2
        assert played.ledger["retry"] == 0
        first, second = played.named(semconv.CONNECT)
        assert (first.attributes[semconv.REUSED], second.attributes[semconv.REUSED]) == (False, False)
        assert played.ledger["connect"] == first.duration_ns + second.duration_ns

    def test_it_was_closed_as_the_next_request_was_on_its_way(self, tmp_path: Path) -> None:
        server = ScriptedServer([stream(), [0.2, Do.RESET], stream(first=0.1)])
        played = play(server, tmp_path, turns=steps(["true"]))
        second = played.calls[1]
        assert played.outcome.name == "completed"
        assert (second["error"], second["attempts"]) == (None, 1)
        if "reconnected" in second["flags"]:  # else the machine was so busy that the reset came before the request
            assert is_about(second["connect_ns"], 0.2)
        assert is_about(played.named(semconv.FIRST_TOKEN_WAIT)[1].duration_ns, 0.1)
        assert played.ledger["retry"] == 0

    def test_a_slow_handshake_is_paid_once(self, tmp_path: Path) -> None:
        context, trusted = make_certificate(tmp_path)
        server = ScriptedServer([stream(first=0.2)], tls=context, handshake_delay=0.6)

        async def main() -> Played:
            chat_client = client(server, tls=tls_context(trusted))
            played = await play_session(tmp_path, chat_client, server, turns=steps(["true"]))
            await check_clean(chat_client)
            return played

        with server:
            played = run_main(main)
        self.check_paid_once(played)
        assert played.explained["splits"]["connect"]["tls"] >= 580 * MS

    def test_a_slow_resolver_is_paid_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = socket.getaddrinfo

        def slow(*arguments: Any, **more: Any) -> Any:
            time.sleep(0.6)
            return real(*arguments, **more)

        monkeypatch.setattr(socket, "getaddrinfo", slow)
        server = ScriptedServer([stream(first=0.2)])

        async def main() -> Played:
            chat_client = client(server, base_url=f"http://localhost:{server.port}/v1")
            played = await play_session(tmp_path, chat_client, server, turns=steps(["true"]))
            await check_clean(chat_client)
            return played

        with server:
            played = run_main(main, "asyncio")  # uvloop asks the system by itself
        self.check_paid_once(played)
        assert played.explained["splits"]["connect"]["dns"] >= 580 * MS

    def test_a_late_accept_is_no_connecting(self, tmp_path: Path) -> None:
        """The kernel shakes hands: until the server takes the connection, the client waits for its first token."""
        server = ScriptedServer([stream()])

        async def main() -> Played:
            with socket.create_server(("127.0.0.1", 0)) as listening:
                late = client(server, base_url=f"http://127.0.0.1:{listening.getsockname()[1]}/v1")

                async def accept() -> None:
                    await asyncio.sleep(0.6)
                    server._start(server._accept, listening)  # from now on, the script is played there

                accepting = asyncio.create_task(accept())
                played = await play_session(tmp_path, late, server, turns=steps())
                await accepting
                listening.shutdown(socket.SHUT_RDWR)
            await check_clean(late)
            return played

        with server:
            played = run_main(main)
        (call,) = played.calls
        assert call["connect_ns"] < 500 * MS
        assert played.named(semconv.FIRST_TOKEN_WAIT)[0].duration_ns > 100 * MS

    def check_paid_once(self, played: Played) -> None:
        first, second = played.calls
        assert is_about(first["connect_ns"], 0.6)
        assert second["connect_ns"] < 500 * MS
        for wait in played.named(semconv.FIRST_TOKEN_WAIT):
            assert is_about(wait.duration_ns, 0.2, slack_s=0.39)
        assert is_about(first["ttft_ns"], 0.8)
        assert is_about(second["ttft_ns"], 0.2, slack_s=0.39)


def silent() -> Script:
    return [CHUNKED, Do.HANG]


def stalled() -> Script:
    return [CHUNKED, chunk(text("one")), 0.01, chunk(text(" two")), Do.HANG]


def trickling() -> Script:
    """Keep-alives for ever, as gateways send them."""
    return [CHUNKED, *[chunk(b": ping\n\n"), 0.05] * 200]


class TestServersThatNeverEnd:
    @pytest.mark.parametrize(
        "script", [[Do.HANG], [b"HTTP/1.1 200 OK\r\nContent-", Do.HANG], silent(), stalled(), trickling()]
    )
    def test_the_sessions_limit_ends_them(self, tmp_path: Path, script: Script) -> None:
        limits = {"session": "700ms", "tool": "10s", "output_tokens": 16}
        played = play(ScriptedServer([stream(), script]), tmp_path, turns=steps(["echo one"]), limits=limits)
        assert played.outcome.name == "timed_out"
        assert "0.7 s was reached in step 2" in (played.outcome.reason or "")
        assert [call["error"] and call["error"]["kind"] for call in played.calls] == [None, "cancelled"]
        assert is_about(played.explained["wall_ns"], 0.7, slack_s=3)
        assert played.outputs == ["one\n[exit code 0]"]
        assert played.ledger["unattributed"] < 0.2 * played.explained["wall_ns"]

    def test_partial_tokens_are_in_no_rate(self, tmp_path: Path) -> None:
        limits = {"session": "700ms", "tool": "10s", "output_tokens": 16}
        played = play(ScriptedServer([stream(), stalled()]), tmp_path, turns=steps(["echo one"]), limits=limits)
        assert played.explained["output_tokens"] == 2
        assert played.explained["rates"]["call"] == pytest.approx(2e9 / played.calls[0]["wall_ns"])


LEAVING: dict[str, tuple[Script, str, Callable[[ScriptedServer, Path], bool]]] = {
    "waiting for headers": ([Do.HANG], "true", lambda server, _: len(server.requests) == 2),
    "waiting for the first token": (silent(), "true", lambda server, _: len(server.requests) == 2),
    "in mid-stream": (stalled(), "true", lambda server, _: len(server.requests) == 2 and len(server.sent[1]) == 3),
    "in the back-off": ([refuse("503 Busy", "Retry-After: 30")], "true", lambda server, _: bool(server.sent[1:])),
    "in a tool": (stream(), "touch {0}/here; sleep 60", lambda _, folder: (folder / "here").exists()),
}


class TestLeavingEarly:
    @pytest.mark.parametrize("moment", LEAVING)
    def test_each_span_ends_once_and_the_session_is_cancelled(self, tmp_path: Path, moment: str) -> None:
        script, command, is_there = LEAVING[moment]
        server = ScriptedServer([stream(), script])
        played = play(
            server,
            tmp_path,
            turns=steps([command.format(tmp_path)]),
            cancel_when=lambda: is_there(server, tmp_path),
        )
        assert played.outcome.name == "cancelled"
        chats = played.named(semconv.CHAT)
        assert len(chats) == len(played.requests)
        (root,) = (span for span in played.spans if span.parent is None)
        assert root.attributes[semconv.OUTCOME] == "cancelled"
        open_span = played.named("execute_tool")[0] if moment == "in a tool" else chats[-1]
        assert open_span.error is not None
        assert [span.error for span in chats[:-1]] == [None] * (len(chats) - 1)
        assert open_span.end_ns <= root.end_ns


class TestRates:
    def test_decode_call_and_agent_rate_are_three(self, tmp_path: Path) -> None:
        """TTFT 2 s, 100 tokens in 2 s and a tool of 6 s, at an eighth of their length."""
        events = [text("x", usage=tokens(count)) for count in range(1, 100)]
        events.append(text("x", usage=tokens(100)) + usage(5, 100))
        script = stream(first=0.25, events=events, gap=0.1 / 98)
        script = [*script[:3], 0.15, *script[4:]]  # the first token alone, however late a busy machine reads it
        answering = stream(events=[text("Yes") + usage(5, 1)])  # one token: no decoding
        played = play(ScriptedServer([script, answering]), tmp_path, turns=steps(["sleep 0.75"]))
        first, rates = played.calls[0], played.explained["rates"]
        assert (first["output_tokens"], first["first_read_tokens"]) == (100, 1)
        assert is_about(first["ttft_ns"], 0.25)
        assert is_about(first["decode_ns"], 0.25)
        assert is_about(first["wall_ns"], 0.5, slack_s=2)
        assert is_about(played.ledger["tool"], 0.75)
        assert rates["decode"] == pytest.approx(99e9 / first["decode_ns"])
        assert rates["call"] == pytest.approx(101e9 / sum(call["wall_ns"] for call in played.calls))
        assert rates["agent"] == pytest.approx(101e9 / played.explained["wall_ns"])
        assert rates["decode"] > rates["call"] > rates["agent"]

    @pytest.mark.parametrize("came", [37, 3])
    def test_short_of_the_forced_length_is_said(self, tmp_path: Path, came: int) -> None:
        script = stream(events=[text("a"), text("b"), usage(5, came)])
        turns = [{"user": "Go.", "steps": [{"answer": "Done.", "output_tokens": 128}]}]
        played = play(ScriptedServer([script]), tmp_path, turns=turns, length="forced")
        assert played.requests[0].json()["max_tokens"] == 128
        assert played.explained["output_tokens"] == came
        assert any(f"({came} of 128 tokens in step 1)" in caution for caution in played.explained["cautions"])

    def test_a_forced_length_that_came_is_not_talked_about(self, tmp_path: Path) -> None:
        script = stream(events=[text("a"), text("b"), usage(5, 128) + DONE])
        turns = [{"user": "Go.", "steps": [{"answer": "Done.", "output_tokens": 128}]}]
        played = play(ScriptedServer([script]), tmp_path, turns=turns, length="forced")
        assert not any("forced length" in caution for caution in played.explained["cautions"])
