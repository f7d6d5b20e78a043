"""Simulated meters: they hold registers, take their time, and now and then a little more."""

from dataclasses import dataclass, field

from meterbus.frames import READ, answer, refusal

UNKNOWN_FUNCTION, UNKNOWN_REGISTER, TOO_MANY = 1, 2, 3
MOST_REGISTERS = 16


@dataclass(frozen=True)
class Reply:
    """Bytes that a meter wants to send from a moment on."""

    moment: int
    data: bytes


@dataclass
class Meter:
    """One meter.

    turnaround: characters from the end of a question to its answer. Every `slow_every`-th answer takes `slow` of them
    instead: the meter writes its memory then, and hears nothing until that answer is out. deaf: so many questions are
    lost before it hears the first one.
    """

    address: int
    model: object
    turnaround: int = 4
    slow: int = 0
    slow_every: int = 0
    deaf: int = 0
    registers: dict = field(default_factory=dict)
    heard: int = 0
    _busy_until: int = 0

    def set(self, name, raw):
        """Set what it measures, in steps of its registers; returns the meter."""
        quantity = self.model.quantity(name)
        for at in range(quantity.registers):
            shift = 16 * (quantity.registers - 1 - at)
            self.registers[quantity.register + at] = raw >> shift & 0xFFFF
        return self

    def hear(self, frame, now):
        """A question whose last character came now; what it answers, or None if it doesn't."""
        if now < self._busy_until:
            return None
        if self.deaf:
            self.deaf -= 1
            return None
        self.heard += 1
        reply = self._answer(frame).encode()
        pause = self.turnaround
        if self.slow_every and self.heard % self.slow_every == 0:
            pause = self.slow
            self._busy_until = now + pause + len(reply)
        return Reply(now + pause, reply)

    def _answer(self, frame):
        if frame.function != READ or len(frame.payload) != 3:
            return refusal(frame, UNKNOWN_FUNCTION)
        first, count = int.from_bytes(frame.payload[:2], "big"), frame.payload[2]
        if count > MOST_REGISTERS:
            return refusal(frame, TOO_MANY)
        wanted = range(first, first + count)
        if not count or any(register not in self.registers for register in wanted):
            return refusal(frame, UNKNOWN_REGISTER)
        return answer(frame, [self.registers[register] for register in wanted])


def make_meter(address, model, **options):
    """A meter whose registers hold plausible numbers that tell it apart: its address is in all of them."""
    meter = Meter(address, model, **options)
    typical = {
        "model": model.number,
        "voltage": 2300 + address,
        "current": 100 * address % 1600 + address,
        "frequency": 5000 + address % 5,
        "energy": 1000 * address + address,
        "night": 300 * address + address,
    }
    for quantity in model.quantities:
        meter.set(quantity.name, typical[quantity.name])
    return meter
