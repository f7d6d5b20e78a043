"""The event stream decoder, on its own."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentprof.wire.sse import STRAY, SseDecoder, SseEvent

PIECES = [
    b"data: a",
    b"data:b",
    b"data",
    b": c",
    b"event: e",
    b"event: ping",
    b"id: 1",
    b"junk",
    b"error: x",
    b"\r",
    b"\n",
]
PIECES += [b"\r\n", b"\xef\xbb\xbf", "é€😀".encode(), b"\xff"]
STREAMS = st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)


def decode(*chunks: bytes) -> tuple[list[SseEvent], int, int]:
    decoder = SseDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.close()
    return events, decoder.comments, decoder.malformed


def test_fields_of_an_event():
    events, comments, malformed = decode(b": hello\n\nevent: note\nid: 7\ndata: one\ndata:  two\n\ndata: three\n\n")
    assert events == [SseEvent(b"one\n two", "note", 49), SseEvent(b"three", "", 62)]
    assert (comments, malformed) == (1, 0)


@pytest.mark.parametrize(("line_end", "ends"), [(b"\n", [9, 18]), (b"\r", [9, 18]), (b"\r\n", [10, 21])])
def test_an_event_ends_at_its_blank_line(line_end, ends):
    body = b"data: a\n\ndata: b\n\n".replace(b"\n", line_end)
    events, _, _ = decode(body)
    assert [event.end for event in events] == ends
    for event in events:  # the byte at `end - 1` completes it, one less doesn't
        assert len(SseDecoder().feed(body[: event.end])) == len(SseDecoder().feed(body[: event.end - 1])) + 1


@pytest.mark.parametrize("body", [b"data: a", b"data: a\n", b"data: a\r\n"])
def test_an_event_cut_off_at_the_end_is_given_by_close(body):
    decoder = SseDecoder()
    assert decoder.feed(body) == []
    assert decoder.close() == [SseEvent(b"a", "", min(len(body), 8))]


def test_stray_lines_are_one_event_a_block_and_counted():
    events, _, malformed = decode(b'{\n "a": 1\n}\n\ndata: x\n\nlost\ndata: y\n\n')
    assert [(event.data, event.event) for event in events] == [
        (b'{\n "a": 1\n}', STRAY),
        (b"x", ""),
        (b"lost", STRAY),
        (b"y", ""),
    ]
    assert malformed == 4


def test_a_byte_order_mark_is_skipped_only_at_the_start():
    assert decode(b"\xef\xbb\xbfdata: a\n\n")[0] == [SseEvent(b"a", "", 12)]
    assert decode(b"data: a\n\n\xef\xbb\xbfdata: b\n\n")[2] == 1


def test_a_line_fed_byte_by_byte_takes_linear_time():
    decoder = SseDecoder()
    for _ in range(200_000):
        assert decoder.feed(b"x") == []
    assert decoder.feed(b"\n\n")[0].data == b"x" * 200_000


@given(body=STREAMS, cuts=st.lists(st.integers(0, 120), max_size=12))
def test_any_split_gives_the_same_events(body, cuts):
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert decode(*[body[a:b] for a, b in pairwise(edges)]) == decode(body)


@given(body=STREAMS)
def test_byte_by_byte_gives_the_same_events(body):
    assert decode(*[bytes([byte]) for byte in body]) == decode(body)


@given(body=STREAMS)
def test_ends_grow_and_stay_inside_the_body(body):
    ends = [event.end for event in decode(body)[0]]
    assert ends == sorted(ends)
    assert all(0 < end <= len(body) for end in ends)
