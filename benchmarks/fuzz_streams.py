"""Feed broken streams to the parser, for as long as asked.

    python benchmarks/fuzz_streams.py --minutes 60 [--seed 1]

Takes whole streams in the shapes of several servers, breaks them (bytes flipped, cut, doubled and spliced; JSON values
replaced by others), cuts them into reads at random, and checks that nothing raises, that the cuts don't change the
message, that decode splits add up, and that the peak interval isn't below the mean. Stops at the first stream that
breaks a rule and writes it to a file. The rules are also tests; this runs them for hours.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from agentprof.wire.assemble import Read, assemble
from agentprof.wire.dialects import gateway_ns
from agentprof.wire.figures import are_calls_whole, failure, measure

_ODD: list[Any] = [
    None, True, 0, -1, 10**30, 1e308, "", " ", "null", "{}", "[DONE]", "\u2028", [], {}, [[]], [None], {"": None},
    {"content": {}}, "x" * 5000, {"tool_calls": [{}]}, {"error": {}}, {"usage": []}, 0.1, -10**18,
]  # fmt: skip
_PIECES = [b"\r", b"\n", b"\r\n\r\n", b"data:", b"data: [DONE]\n\n", b": c\n", b"event: error\n", b"\xff\xfe", b"\x00",
           b"\\ud800", b"NaN", b"}", b"{", b'"', b"id: 1\n", b"\xef\xbb\xbf"]  # fmt: skip


def _chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": more.pop("finish", None)}
    return {"id": "c1", "model": "m", "choices": [choice], **more}


def _call(index: int | None, name: str | None, arguments: str | None, call_id: str | None = None) -> dict[str, Any]:
    entry = {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [{key: value for key, value in entry.items() if value is not None}]}


def _corpus() -> list[list[dict[str, Any]]]:
    usage = {"prompt_tokens": 9, "completion_tokens": 24, "prompt_tokens_details": {"cached_tokens": 4}}
    timings = {"cache_n": 4, "prompt_n": 5, "prompt_ms": 3.5, "predicted_n": 24, "predicted_ms": 480.25}
    end = {"choices": [], "usage": usage}
    words = [_chunk({"content": f"w{n} "}) for n in range(24)]
    counted = [_chunk({"content": "ab"}, usage={"completion_tokens": n + 1}) for n in range(24)]
    thoughts = [_chunk({"reasoning_content" if n % 2 else "reasoning": f"t{n}"}) for n in range(20)]
    calls = [
        _chunk(_call(0, "bash", "", "call_1")),
        *(_chunk(_call(0, None, part)) for part in ('{"comm', 'and": "', 'ls"}')),
        _chunk(_call(None, "read_file", '{"path": "a"}', "call_2")),
    ]
    ids = [_chunk({"content": "x"}, token_ids=[1, 2]) for _ in range(12)]
    return [
        [_chunk({"role": "assistant", "content": ""}), *words, _chunk({}, finish="stop"), end],
        [*words, _chunk({}, finish="length", usage=usage, timings=timings)],
        [*counted, _chunk({}, finish="stop")],
        [*thoughts, *words, _chunk({}, finish="stop"), {**end, "metrics": {"queue_time_ms": 1.5}}],
        [*calls, _chunk({}, finish="tool_calls"), _chunk({}, finish="stop"), end],
        [*ids, _chunk({}, finish="stop"), end],
        [{"choices": [], "prompt_filter_results": []}, *words[:3], {"choices": [{"index": 0}]}],
        [*words[:5], {"error": {"message": "This model's maximum context length is 10 tokens", "code": 400}}],
    ]


def _bend(value: Any, chance: random.Random) -> Any:
    """Replace one node of a JSON value."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: _bend(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        index = chance.randrange(len(value))
        return [*value[:index], _bend(value[index], chance), *value[index + 1 :]]
    return chance.choice(_ODD)


def _write(chunk: Any) -> bytes:
    try:
        return orjson.dumps(chunk)
    except TypeError:  # an integer beyond 64 bits
        return repr(chunk).encode("utf-8", "replace")


def _frame(chunks: list[Any], chance: random.Random) -> bytes:
    end = chance.choice([b"\n\n", b"\r\n\r\n", b"\r\r"])
    body = b"".join(b"data: " + _write(chunk) + end for chunk in chunks)
    return body + (b"data: [DONE]" + end if chance.random() < 0.8 else b"")


def _break(body: bytes, other: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randrange(6)):
        at, size = chance.randrange(len(body) + 1), chance.randrange(40)
        match chance.randrange(6):
            case 0:
                body = body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
            case 1:
                body = body[:at] + body[at + size :]
            case 2:
                body = body[:at] + body[at : at + size] + body[at:]
            case 3:
                body = body[:at] + chance.choice(_PIECES) + body[at:]
            case 4:
                start = chance.randrange(len(other) + 1)
                body = body[:at] + other[start : start + 10 * size] + body[at:]
            case _:
                body = body[:at]
    return body


def _cut(body: bytes, chance: random.Random) -> list[Read]:
    ends = sorted({chance.randrange(len(body) + 1) for _ in range(chance.randrange(1, 30))} | {len(body)})
    at_ns, reads = 1_000, []
    for end in ends:
        at_ns += chance.choice([0, 1, 1_000, 5_000_000, 400_000_000])
        reads.append(Read(at_ns, end))
    return reads


def check(body: bytes, reads: list[Read], forced_tokens: int | None) -> None:
    """Raises whatever a broken rule raises."""
    reply = assemble(body, reads)
    figures = measure(reply, start_ns=500, end_ns=reads[-1].at_ns + 7, forced_tokens=forced_tokens)
    failure(reply, has_clean_eof=bool(len(body) % 2))
    are_calls_whole(reply)
    if sum(figures.decode_split_ns.values()) != (figures.decode_ns or 0):
        raise AssertionError("the decode split doesn't add up")
    rate, peak = figures.decode_tok_s, figures.peak_interval_tok_s
    if rate is not None and peak is not None and peak < rate * (1 - 1e-9):
        raise AssertionError(f"the peak {peak} is below the mean {rate}")
    whole = assemble(body, [Read(reads[-1].at_ns, len(body))])
    message = (reply.content, reply.reasoning, reply.tool_calls, reply.finish, reply.usage, reply.error)
    if message != (whole.content, whole.reasoning, whole.tool_calls, whole.finish, whole.usage, whole.error):
        raise AssertionError("where the reads were cut changed the message")


def main() -> None:
    """Run until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance, corpus, tried = random.Random(options.seed), _corpus(), 0
    end = time.monotonic() + options.minutes * 60
    while time.monotonic() < end:
        chunks: list[Any] = list(chance.choice(corpus))
        for _ in range(chance.randrange(4)):
            index = chance.randrange(len(chunks))
            chunks[index] = _bend(chunks[index], chance)
        body = _break(_frame(chunks, chance), _frame(chance.choice(corpus), chance), chance)
        try:
            check(body, _cut(body, chance), chance.choice([None, 24]))
            gateway_ns({"server-timing": body[:60].decode("latin-1"), "x-litellm-overhead-duration-ms": "1e400"})
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            file = Path(f"broken-stream-{options.seed}-{tried}.bin")
            file.write_bytes(body)
            sys.exit(f"{tried} streams were fine; then {type(error).__name__}: {error}; the stream is in {file}")
        tried += 1
    print(f"{tried} streams in {options.minutes:g} minutes: nothing raised, no rule was broken (seed {options.seed})")


if __name__ == "__main__":
    main()
