"""Streams as servers send them, through the real client over a real socket: what a call makes of each.

How such bytes are read is tested by itself elsewhere; here they come in one piece or byte by byte, as a socket has it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from live_calls import Call, check_clean, check_tiling, client, make_call, run
from scripted_server import CHUNKED, LAST_CHUNK, Do, Script, ScriptedServer, answer, chunk
from timeline import DONE, call, delta, event, finish, text, think, tokens, usage

from agentprof import semconv

HI, STOP, USED = text("Hi"), finish("stop"), usage(3, 1)
ENDING = STOP + USED + DONE
Check = Callable[[Call], Any]


def play(*scripts: Script) -> list[Call]:
    """One call for each script, on one client."""
    server = ScriptedServer(scripts)

    async def main() -> list[Call]:
        chat_client = client(server)
        made = []
        for _ in scripts:
            made.append(await make_call(chat_client))
            await server.settle()
        await check_clean(chat_client)
        return made

    with server:
        made: list[Call] = run(main(), "uvloop")
    for one in made:
        check_tiling(one)
    return made


def whole(*frames: bytes, pause: float = 0.0) -> Script:
    """The frames, each in a chunk of its own; then the end of the body."""
    steps: list[bytes | float] = [CHUNKED]
    for frame in frames:
        steps += [chunk(frame), pause]
    return [*steps, LAST_CHUNK]


def bytewise(*frames: bytes) -> Script:
    """The same, each byte in an HTTP chunk and a packet of its own."""
    return [CHUNKED, *[chunk(bytes([byte])) for byte in b"".join(frames)], LAST_CHUNK]


def said(one: Call) -> tuple[str | None, str | None]:
    """The kind of error, and what was said, as far as the call is good."""
    return (one.error.kind, None) if one.error else (None, one.result.reply.content)


def flags(one: Call) -> tuple[str, ...]:
    return tuple(flag for flag in one.attribute(semconv.FLAGS) if flag not in ("buffered", "ttft_upper_bound"))


class TestFraming:
    @pytest.mark.parametrize(
        ("frame", "skipped"),
        [
            (b": OPENROUTER PROCESSING\n\n", 2),
            (b": ping\n\n", 2),
            (b"event: ping\ndata:\n\n", 2),
            (b"id: 41\n: OPENROUTER PROCESSING\n\n", 4),  # the comments, and the events that held nothing else
            (b"id: 41\n\n", 2),
            (b"retry: 3000\n\n", 2),
        ],
    )
    def test_keep_alives_are_skipped_and_counted(self, frame: bytes, skipped: int) -> None:
        for one in play(whole(frame, HI, frame, ENDING), bytewise(frame, HI, frame, ENDING)):
            assert said(one) == (None, "Hi")
            assert (one.result.reply.comments, one.result.reply.malformed, flags(one)) == (skipped, 0, ())

    @pytest.mark.parametrize(
        "frame", [b"data: : text\n\n", b'data: {"choices": [{"del\n\n', b"upstream says hello\n\n"]
    )
    def test_what_can_not_be_read_is_counted_and_the_stream_goes_on(self, frame: bytes) -> None:
        for one in play(whole(HI, frame, text("!"), ENDING), bytewise(HI, frame, text("!"), ENDING)):
            assert said(one) == (None, "Hi!")
            assert one.result.reply.malformed == 1
            assert "malformed_lines" in flags(one)

    @pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
    @pytest.mark.parametrize("prefix", [b"data:", b"data: "])
    def test_line_ends(self, line_end: bytes, prefix: bytes) -> None:
        frames = [
            frame.replace(b"data: ", prefix).replace(b"\n", line_end) for frame in (HI, text("!"), STOP, USED, DONE)
        ]
        for one in play(whole(*frames), bytewise(*frames)):
            assert said(one) == (None, "Hi!")
            assert (len(one.result.reply.events), one.result.reply.malformed) == (2, 0)

    def test_crlf_over_two_reads_is_one_line_end(self) -> None:
        crlf = HI.replace(b"\n", b"\r\n")
        (one,) = play([CHUNKED, chunk(crlf[:-1]), 0.05, chunk(crlf[-1:] + text("!")), chunk(ENDING), LAST_CHUNK])
        assert said(one) == (None, "Hi!")
        assert one.result.reply.malformed == 0

    def test_data_over_several_lines(self) -> None:
        payload = json.dumps({"choices": [{"index": 0, "delta": {"content": "Hi"}}]}, indent=1).encode()
        frame = b"".join(b"data: " + line + b"\n" for line in payload.splitlines()) + b"\n"
        for one in play(whole(frame, ENDING), bytewise(frame, ENDING)):
            assert said(one) == (None, "Hi")

    def test_characters_in_two_reads(self) -> None:
        frames = [text("grüße 😀 "), think("日本"), text("\u2028é"), ENDING]
        split = [CHUNKED, *[step for byte in frames[0] for step in (chunk(bytes([byte])), 0.001)]]
        for one in play(whole(*frames), bytewise(*frames), [*split, *map(chunk, frames[1:]), LAST_CHUNK]):
            assert said(one) == (None, "grüße 😀 \u2028é")
            assert one.result.reply.reasoning == "日本"


class TestEndings:
    @pytest.mark.parametrize(
        ("frames", "expected"),
        [
            ((HI, STOP, USED), (None, ("no_done",))),
            ((HI, USED, DONE), (None, ("no_finish",))),
            ((HI, USED, b"data: [DONE]"), (None, ("no_finish",))),
            ((HI, ENDING), (None, ())),
            ((HI, USED), ("truncated", None)),
            ((HI,), ("truncated", None)),
            ((HI, STOP[:-20]), ("truncated", None)),
            ((), ("truncated", None)),
        ],
    )
    def test_which_are_whole(self, frames: tuple[bytes, ...], expected: tuple[Any, Any]) -> None:
        until_close = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        for one in play(whole(*frames), [until_close, *frames, Do.CLOSE]):
            kind = one.error.kind if one.error else None
            assert (kind, None if kind else flags(one)) == expected

    @pytest.mark.parametrize(
        "frame",
        [
            event({"error": {"message": "CUDA out of memory", "code": 500}}),
            event({"object": "error", "message": "CUDA out of memory", "code": 400}),
            b'event: error\ndata: {"message": "CUDA out of memory"}\n\n',
            b'{"error": {"message": "CUDA out of memory"}}',
        ],
    )
    @pytest.mark.parametrize("before", [b"", HI])
    def test_errors_under_status_200(self, frame: bytes, before: bytes) -> None:
        for one in play(whole(before + frame), bytewise(before, frame, b"\n\n", DONE)):
            assert one.error.kind == "stream_error"
            assert "CUDA out of memory" in one.error.message

    def test_an_unframed_error_of_known_length(self) -> None:
        (one,) = play([answer("200 OK", {"error": {"message": "CUDA out of memory"}})])
        assert (one.error.kind, "CUDA out of memory" in one.error.message) == ("stream_error", True)

    @pytest.mark.parametrize("nothing", [None, {}, ""])
    def test_no_error(self, nothing: Any) -> None:
        (one,) = play(whole(text("Hi", error=nothing), delta({}, "stop", error=nothing), USED, DONE))
        assert said(one) == (None, "Hi")

    def test_azure(self) -> None:
        first = event({"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
        last = event({"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}]})
        (one,) = play(whole(first, HI, text("!"), STOP, usage(3, 2), last, DONE))
        assert said(one) == (None, "Hi!")
        assert (len(one.result.reply.events), one.result.output_tokens) == (2, 2)

    @pytest.mark.parametrize(
        ("reasons", "right"),
        [
            (("tool_calls", "stop"), "tool_calls"),
            (("stop", "tool_calls"), "tool_calls"),
            (("length", "stop"), "length"),
        ],
    )
    def test_two_finish_chunks(self, reasons: tuple[str, str], right: str) -> None:
        frames = [call('{"a":1}', "bash", "x"), *[finish(reason) for reason in reasons], DONE]
        (one,) = play(whole(*frames))
        assert (one.result.reply.finish, len(one.result.reply.tool_calls)) == (right, 1)
        assert one.attribute(semconv.FINISH_REASONS) == [right]


LLAMA = {"prompt_n": 1, "prompt_ms": 14.5, "predicted_n": 5, "predicted_ms": 48.984}
METERED = {
    "growing": ([text("a", usage=tokens(n)) for n in (1, 4, 5, 99)], 99, "server", False),
    "null at the end": ([text("a", usage=tokens(7)), text("b", usage=None), STOP], 7, "server", False),
    "on the finish chunk": ([text("a"), text("b"), delta({}, "stop", usage=tokens(50))], 50, "server", True),
    "after the finish": ([text("a"), text("b"), STOP, usage(10, 50)], 50, "server", True),
    "after the finish, with an empty choice": (
        [text("a"), STOP, event({"choices": [{"index": 0, "delta": {}}], "usage": tokens(50)})],
        50,
        "server",
        True,
    ),
    "none": ([text("a"), text("b"), text("c"), STOP], 3, "counted", True),
    "null": ([text("a", usage=None), text("b", usage=None), STOP], 2, "counted", True),
    "of zero": ([text("a", usage=tokens(0)), text("b"), STOP], 2, "counted", True),
}


class TestTokens:
    @pytest.mark.parametrize("how", METERED)
    def test_output_tokens(self, how: str) -> None:
        frames, count, source, is_estimated = METERED[how]
        (one,) = play(whole(*frames, DONE, pause=0.01))
        assert (one.result.output_tokens, one.attribute(semconv.OUTPUT_TOKENS_SOURCE)) == (count, source)
        assert ("no_usage" in flags(one)) == (source == "counted")
        assert ("estimated_tokens" in flags(one)) == is_estimated

    @pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
    def test_reasoning_alone_cut_by_length(self, field: str) -> None:
        (one,) = play(whole(think("hm", field), think("mm", field), finish("length"), usage(4, 2), DONE, pause=0.02))
        assert (one.error, flags(one)) == (None, ("length_cut",))
        assert one.attribute(semconv.TTFT_NS) is not None
        assert one.attribute(semconv.TTFO_NS) is None
        assert one.named(semconv.DECODE).duration_ns > 0

    @pytest.mark.parametrize(("reasoning", "output"), [(80, 100), (100, 100), (0, 3)])
    def test_reasoning_is_part_of_the_count(self, reasoning: int, output: int) -> None:
        used = usage(9, output, completion_tokens_details={"reasoning_tokens": reasoning})
        (one,) = play(whole(think("a"), text("b"), text("c"), STOP + used, DONE, pause=0.02))
        assert one.result.output_tokens == one.attribute(semconv.OUTPUT_TOKENS) == output
        assert one.attribute(semconv.REASONING_TOKENS) == reasoning

    @pytest.mark.parametrize("shape", ["in the usage chunk", "on the finish chunk", "on every chunk"])
    def test_llama_cpp_timings(self, shape: str) -> None:
        ending = {
            "in the usage chunk": [STOP, event({"choices": [], "usage": tokens(5, 15), "timings": LLAMA})],
            "on the finish chunk": [delta({}, "stop", timings=LLAMA), usage(15, 5)],
            "on every chunk": [
                text("c", timings={**LLAMA, "predicted_n": 3, "predicted_ms": 30.0}),
                delta({}, "stop", timings=LLAMA),
                usage(15, 5),
            ],
        }[shape]
        (one,) = play(whole(text("a"), text("b"), *ending, DONE, pause=0.01))
        attributes = one.chat.attributes
        assert (one.result.output_tokens, attributes[semconv.CACHED_TOKENS]) == (5, 14)
        assert (attributes[semconv.PREFILL_NS], attributes[semconv.SERVER_DECODE_NS]) == (14_500_000, 48_984_000)
        assert round(one.result.output_tokens * 1e9 / attributes[semconv.SERVER_DECODE_NS], 1) == 102.1

    def test_calls_that_break_give_no_tokens(self) -> None:
        good = whole(text("a"), text("b"), STOP, usage(5, 20), DONE)
        broken = [CHUNKED, chunk(text("a")), chunk(text("b")), 0.02]
        scripts = [good, good, [*broken, Do.RESET], good, [*broken, Do.CLOSE], good, [*broken, LAST_CHUNK], good]
        made = play(*scripts, good, good)
        assert [one.error and one.error.kind for one in made].count("truncated") == 3
        assert sum(one.result.output_tokens for one in made if one.result) == 7 * 20
        assert [one.attribute(semconv.TOKEN_EVENTS) for one in made if one.error] == [2, 2, 2]


def test_streams_at_once_are_kept_apart() -> None:
    """Thirty streams, torn into single bytes, over one client: no byte of one turns up in another."""
    scripts = [bytewise(text(f"{number}"), text(f".{number}"), ENDING) for number in range(30)]
    server = ScriptedServer(scripts)

    async def main() -> list[Call]:
        chat_client = client(server, pool=30)
        made = await asyncio.gather(*(make_call(chat_client) for _ in scripts))
        await server.settle()
        await check_clean(chat_client)
        return list(made)

    with server:
        made: list[Call] = run(main(), "uvloop")
    assert sorted(one.result.reply.content for one in made) == sorted(f"{n}.{n}" for n in range(30))
