"""Time on the line, counted in characters."""

import time

BITS = 11
"""A start bit, eight data bits, a parity bit, a stop bit."""


class Clock:
    """What time it is on a line: `now` in characters since its beginning.

    Whatever happens on a line takes so many characters, so nothing but the speed depends on the rate. Waiting is real:
    it takes as long as these characters take on a wire.
    """

    def __init__(self, baud):
        if baud <= 0:
            raise ValueError(f"a rate of {baud} baud is no rate")
        self.baud = baud
        self.now = 0

    @property
    def character_s(self):
        """Seconds that one character takes."""
        return BITS / self.baud

    def wait(self, characters):
        """Let so many characters pass."""
        self.wait_until(self.now + characters)

    def wait_until(self, moment):
        """Let time pass until a moment, unless it is over already."""
        if moment > self.now:
            time.sleep((moment - self.now) * self.character_s)
            self.now = moment
