"""Frames: what travels on the line, as bytes and as values (docs/protocol.md)."""

from dataclasses import dataclass

from meterbus.crc import crc16

READ = 0x03
REFUSED = 0x80
LONGEST = 64

_HEAD = 4
_CHECK = 2


class FrameError(ValueError):
    """These bytes are no frame."""


@dataclass(frozen=True)
class Frame:
    """A question or an answer. `payload` is what stands between the head and the check."""

    address: int
    tag: int
    function: int
    payload: bytes = b""

    @property
    def is_refusal(self):
        return bool(self.function & REFUSED)

    def encode(self):
        """The frame as bytes, check included."""
        if not 1 <= self.address <= 200:
            raise FrameError(f"address {self.address} is not from 1 to 200")
        if len(self.payload) > LONGEST:
            raise FrameError(f"a payload of {len(self.payload)} bytes is too long; {LONGEST} are allowed")
        body = bytes((self.address, self.tag, self.function, len(self.payload))) + self.payload
        return body + crc16(body).to_bytes(2, "little")

    @classmethod
    def decode(cls, data):
        """A frame from its bytes. Raises FrameError when something about them is wrong."""
        if len(data) < _HEAD + _CHECK:
            raise FrameError(f"{len(data)} bytes are too few for a frame")
        body, check = data[:-_CHECK], int.from_bytes(data[-_CHECK:], "little")
        if crc16(body) != check:
            raise FrameError(f"the check is {check:#06x}, but {crc16(body):#06x} was expected")
        address, tag, function, length = body[:_HEAD]
        if length != len(body) - _HEAD:
            raise FrameError(f"the length says {length}, but {len(body) - _HEAD} bytes of payload came")
        return cls(address, tag, function, bytes(body[_HEAD:]))


def question(address, tag, register, count=1):
    """The frame that asks a meter for registers."""
    return Frame(address, tag, READ, register.to_bytes(2, "big") + bytes((count,)))


def answer(asked, values):
    """The frame that answers with the values of registers."""
    return Frame(asked.address, asked.tag, asked.function, b"".join(value.to_bytes(2, "big") for value in values))


def refusal(asked, reason):
    """The frame that says why a question can't be answered."""
    return Frame(asked.address, asked.tag, asked.function | REFUSED, bytes((reason,)))


def values_of(frame):
    """The registers in an answer."""
    payload = frame.payload
    if len(payload) % 2:
        raise FrameError(f"{len(payload)} bytes don't hold whole registers")
    return [int.from_bytes(payload[at : at + 2], "big") for at in range(0, len(payload), 2)]


def show(frame):
    """A frame for people: its bytes in hexadecimal."""
    return frame.encode().hex(" ")
