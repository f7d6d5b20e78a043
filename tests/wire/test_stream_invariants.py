"""What holds for every stream: any split of the bytes, any damage to them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentprof.records.call import Reply
from agentprof.wire.assemble import Read, assemble
from agentprof.wire.figures import CallFigures, are_calls_whole, failure, inter_chunk_ns, measure
from agentprof.wire.sse import SseDecoder

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MAYBE_COUNT = st.none() | st.integers(0, 400)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "id",
    "choices",
    "delta",
    "message",
    "content",
    "reasoning",
    "reasoning_content",
    "tool_calls",
    "index",
    "name",
]
FIELDS += ["function", "arguments", "usage", "completion_tokens", "prompt_tokens", "finish_reason", "error", "timings"]
FIELDS += ["metrics", "sglext", "token_ids", "text", "type", "prompt_ms", "x_groq", "speculative_decoding", "object"]
KNOWN_FIELDS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**25)
    | st.floats()
    | WORDS
    | st.sampled_from(["stop", "{", "}", '{"a":1}']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=25,
)


@st.composite
def chunks(draw: st.DrawFn) -> dict[str, Any]:
    call = st.fixed_dictionaries(
        {"function": st.fixed_dictionaries({}, optional={"name": WORDS, "arguments": WORDS | st.none()})},
        optional={"index": st.integers(0, 2), "id": WORDS},
    )
    delta = st.fixed_dictionaries(
        {}, optional={"content": WORDS, "reasoning": WORDS, "tool_calls": st.lists(call, max_size=2), "role": WORDS}
    )
    choice = st.fixed_dictionaries(
        {"index": st.just(0), "delta": delta},
        optional={
            "finish_reason": st.sampled_from([None, "stop", "length"]),
            "token_ids": st.lists(st.integers(0, 9), max_size=3),
        },
    )
    usage = st.none() | st.fixed_dictionaries({"completion_tokens": MAYBE_COUNT, "prompt_tokens": MAYBE_COUNT})
    chunk: dict[str, Any] = draw(
        st.fixed_dictionaries({"choices": st.lists(choice, max_size=1)}, optional={"usage": usage})
    )
    return chunk


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    line_end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    frames = [
        f"data: {json.dumps(chunk, ensure_ascii=draw(st.booleans()))}"
        for chunk in draw(st.lists(chunks(), max_size=14))
    ]
    frames += draw(
        st.lists(st.sampled_from([": ping", "event: ping", "data: : text", "data: [DONE]", "junk"]), max_size=3)
    )
    return "".join(frame + line_end * 2 for frame in frames).encode()


@st.composite
def reads_of(draw: st.DrawFn, body: bytes) -> list[Read]:
    edges = [*sorted(draw(st.lists(st.integers(0, len(body)), max_size=8))), len(body)]
    reads, at_ns = [], 1_000
    for edge in edges:
        at_ns += draw(st.integers(0, 2_000_000_000))
        reads.append(Read(at_ns, edge))
    return reads


def message(reply: Reply) -> tuple[Any, ...]:
    """What of a reply doesn't depend on when its bytes came."""
    events = [(event.kind, event.chars, event.tokens) for event in reply.events]
    return (
        *(reply.content, reply.reasoning, reply.tool_calls, reply.finish, reply.usage, reply.server_times, events),
        *(reply.has_done, reply.malformed, reply.comments, reply.response_id, reply.model, reply.error),
    )


def examine(body: bytes, reads: list[Read], forced_tokens: int | None = None) -> tuple[Reply, CallFigures]:
    """Everything that is computed from a body; checks what always holds."""
    reply = assemble(body, reads)
    end_ns = reads[-1].at_ns if reads else 0
    figures = measure(reply, start_ns=0, end_ns=end_ns, forced_tokens=forced_tokens)
    failure(reply, has_clean_eof=True)
    are_calls_whole(reply)
    json.dumps([reply.content, reply.reasoning, reply.error, reply.finish, reply.model], ensure_ascii=False).encode()
    assert sum(figures.decode_split_ns.values()) == (figures.decode_ns or 0)
    assert 0 <= figures.first_read_tokens <= figures.output_tokens
    assert sum(inter_chunk_ns(reply, figures)) in (0, figures.decode_ns)
    if figures.decode_ns is not None:
        assert figures.ttft_ns is not None
        assert figures.ttft_ns + figures.decode_ns + figures.tail_ns == end_ns
    if figures.peak_interval_tok_s is not None:
        assert figures.peak_interval_tok_s >= figures.decode_tok_s
    if figures.is_buffered:
        assert figures.decode_ns is figures.decode_tok_s is figures.peak_interval_tok_s is None
    stamps = [event.at_ns for event in reply.events]
    assert stamps == sorted(stamps)
    assert all(reads[event.read].at_ns == event.at_ns for event in reply.events)
    return reply, figures


@given(data=st.data(), body=bodies())
def test_any_reads_give_the_same_message(data, body):
    reply, _ = examine(body, data.draw(reads_of(body)), data.draw(MAYBE_COUNT))
    assert message(reply) == message(assemble(body, [Read(5, len(body))]))


@given(data=st.data(), body=bodies())
def test_an_event_is_stamped_by_the_read_that_completed_it(data, body):
    """The events stamped by any read and those before it are the events that the bytes so far complete."""
    reads = data.draw(reads_of(body))
    events = assemble(body, reads).events
    for i, read in enumerate(reads):
        complete = SseDecoder().feed(body[: read.end])
        so_far = assemble(body[: complete[-1].end if complete else 0], [Read(0, read.end)]).events
        assert sum(1 for event in events if event.read <= i) == len(so_far)


@given(data=st.data(), body=bodies())
def test_damaged_streams_never_raise(data, body):
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 6))):
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            match data.draw(st.sampled_from(["flip", "cut", "drop", "repeat"])):
                case "flip":
                    damaged[at] = data.draw(st.integers(0, 255))
                case "cut":
                    del damaged[at:]
                case "drop":
                    del damaged[at : at + data.draw(st.integers(1, 40))]
                case "repeat":
                    damaged[at:at] = damaged[at : at + 40]
    examine(bytes(damaged), data.draw(reads_of(bytes(damaged))))


@given(
    body=st.binary(max_size=300),
    framing=st.sampled_from([b"", b"data: ", b"data: {", b"error: ", b"event: error\ndata: "]),
)
def test_garbage_never_raises(body, framing):
    whole = framing + body
    examine(whole, [Read(3, len(whole) // 2), Read(9, len(whole))])


@settings(max_examples=300)
@given(
    payloads=st.lists(KNOWN_FIELDS | ANY_JSON, max_size=6),
    framing=st.sampled_from(["data: ", "", "event: error\ndata: "]),
)
def test_fields_of_any_type_never_raise(payloads, framing):
    body = "".join(f"{framing}{json.dumps(payload)}\n\n" for payload in payloads).encode()
    examine(body, [Read(3, len(body) // 2), Read(2_000_000_000, len(body))])


@pytest.mark.parametrize("depth", [50, 500, 1020, 1500, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"content":', "}"), ('{"a":[', "]}")])
@pytest.mark.parametrize(
    "around",
    [
        '{"choices":[{"delta":{"content":%s}}]}',
        '{"choices":[{"delta":{"reasoning":%s}}]}',
        '{"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"b","arguments":%s}}]}}]}',
        '{"error":%s}',
        '{"usage":%s}',
        "%s",
    ],
)
def test_nesting_never_raises(depth, opening, closing, around):
    body = f"data: {around % (opening * depth + '1' + closing * depth)}\n\n".encode()
    examine(body, [Read(1, len(body))])


@given(st.lists(st.tuples(st.integers(0, 3_000_000_000), st.integers(1, 40), st.booleans()), min_size=1, max_size=25))
def test_peak_is_never_below_the_mean(steps):
    body, reads, at_ns, count = b"", [], 1_000, 0
    for gap_ns, tokens, has_count in steps:
        at_ns, count = at_ns + gap_ns, count + tokens
        usage = {"usage": {"completion_tokens": count}} if has_count else {}
        chunk = {"choices": [{"index": 0, "delta": {"content": "ab" * tokens}}], **usage}
        body += f"data: {json.dumps(chunk)}\n\n".encode()
        reads.append(Read(at_ns, len(body)))
    _, figures = examine(body, reads)
    held_back = figures.is_buffered or "late_delta" in figures.flags
    assert (figures.peak_interval_tok_s is None) == (held_back or not figures.decode_ns)
