"""What the kernel tells of a connection, in its own layout."""

from __future__ import annotations

import struct

import pytest

from agentprof.wire.exchange import Exchange

FIELDS = b"\0" * 8 + struct.pack("<24I", *[0] * 15, 300, 50, *[0] * 6, 7)
"""`struct tcp_info` as far as old kernels fill it: a smoothed round trip of 300 µs, 7 segments sent again."""


class Transport:
    """A transport, and the socket of it, which answers with these bytes."""

    def __init__(self, info: bytes | None) -> None:
        self._info = info

    def get_extra_info(self, _name: str) -> Transport:
        return self

    def getsockopt(self, *_option: int) -> bytes:
        if self._info is None:
            raise OSError("no TCP")
        return self._info


@pytest.mark.parametrize(
    ("info", "rtt_ns", "retransmits"),
    [
        (FIELDS.ljust(148, b"\0") + struct.pack("<I", 77), 77_000, 7),
        (FIELDS.ljust(148, b"\0") + b"\xff" * 4, 300_000, 7),  # no sample yet
        (FIELDS.ljust(151, b"\0"), 300_000, 7),
        (FIELDS, 300_000, 7),
        (FIELDS[:-1], None, None),
        (None, None, None),
    ],
)
def test_the_least_round_trip_else_the_smoothed_one(info: bytes | None, rtt_ns: int, retransmits: int) -> None:
    exchange = Exchange()
    exchange.take_answer(1, Transport(info))
    assert (exchange.answered_ns, exchange.rtt_ns, exchange.retransmits) == (1, rtt_ns, retransmits)
    exchange.take_answer(2, Transport(FIELDS[:-4] + b"\1\0\0\0"))
    assert (exchange.answered_ns, exchange.retransmits) == (1, retransmits)
