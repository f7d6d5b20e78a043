from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentprof.agent.capture import Capture, bound


def captured(pieces: list[bytes], limit_bytes: int) -> Capture:
    capture = Capture(limit_bytes)
    for piece in pieces:
        capture.feed(piece)
    return capture


def test_what_fits_is_kept_as_it_is() -> None:
    assert captured([b"ab", b"c\n"], 256).text(256) == ("abc\n", False)
    assert captured([], 256).text(256) == ("", False)
    assert captured([b"x" * 256], 256).text(256) == ("x" * 256, False)


def test_head_and_tail_are_kept_at_line_ends_and_the_rest_is_counted() -> None:
    lines = [b"line %04d\n" % number for number in range(1000)]
    text, is_cut = captured(lines, 1024).text(1024)
    assert is_cut
    assert text.startswith("line 0000\nline 0001\n")
    assert text.endswith("line 0998\nline 0999\n")
    gap = re.search(r"\n\[… (\d+) bytes left out …\]\n", text)
    assert gap is not None
    assert int(gap[1]) + len((text[: gap.start() + 1] + text[gap.end() :]).encode()) == 10_000
    assert 900 < len(text.encode()) <= 1024


def test_one_endless_line_is_cut_inside() -> None:
    text, is_cut = captured([b"a" * 100_000, b"z" * 100_000], 512).text(512)
    assert is_cut
    assert re.fullmatch(r"a{224}\n\[… 199552 bytes left out …\]\nz{224}", text)


def test_bytes_that_are_not_utf8_are_replaced_and_counted_true() -> None:
    capture = captured([b"ok \xff\xfe \xc3\xa9"], 256)
    assert capture.size_bytes == 8
    assert capture.text(256) == ("ok �� é", False)


def test_binary_output_stays_within_its_limit_once_replaced() -> None:
    capture = captured([b"\xff" * 1024], 1024)
    text, is_cut = capture.text(1024)
    assert is_cut
    assert len(text.encode()) <= 1024
    gap = re.search(r"… (\d+) bytes", text)
    assert gap is not None
    assert int(gap[1]) == 1024 - text.count("�")


def test_characters_are_not_cut_in_two() -> None:
    for shift in range(4):
        text, _ = captured([b"x" * shift, "🙂".encode() * 1000], 300).text(300)
        assert "�" not in text


@given(st.binary(max_size=3000), st.lists(st.integers(0, 3000)), st.integers(256, 600))
def test_text_depends_on_the_bytes_and_not_on_how_they_came(data: bytes, cuts: list[int], limit_bytes: int) -> None:
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    text, is_cut = captured(pieces, limit_bytes).text(limit_bytes)
    assert (text, is_cut) == captured([data], limit_bytes).text(limit_bytes)
    assert len(text.encode()) <= limit_bytes
    assert is_cut == (len(data.decode(errors="replace").encode()) > limit_bytes or len(data) > limit_bytes)


def test_memory_stays_bounded() -> None:
    capture = Capture(1000)
    for _ in range(300):
        capture.feed(b"x" * 100_000)
    assert capture.size_bytes == 30_000_000
    assert len(capture._head) + len(capture._tail) <= 6000


@pytest.mark.parametrize("text", ["short", "long " * 1000, "é" * 1000])
def test_bound(text: str) -> None:
    bounded, is_cut = bound(text, 256)
    assert is_cut == (len(text.encode()) > 256)
    assert len(bounded.encode()) <= 256
