"""A line with meters on it: what the master sends reaches them, and what they answer reaches the master."""

from collections import deque
from dataclasses import dataclass

from meterbus.frames import Frame, FrameError, show


@dataclass(frozen=True)
class Arrival:
    """Bytes on their way to the master: their last character arrives at a moment of the line's clock."""

    moment: int
    data: bytes


class Line:
    """Two pairs of wires: the master speaks on one, the meters on the other.

    Meters see whether their pair is in use and wait until it is free, so answers follow each other and none is
    destroyed. Answers stay on the line until the master takes them.
    """

    def __init__(self, clock, meters=(), trace=None):
        self.clock = clock
        self.trace = trace
        self._meters = {meter.address: meter for meter in meters}
        self._arriving = deque()
        self._free_at = 0

    @property
    def addresses(self):
        """Addresses of the meters on the line, in order."""
        return sorted(self._meters)

    def send(self, frame):
        """Send a frame; returns when its last character is out."""
        data = frame.encode()
        self.clock.wait(len(data))
        self._show(">", frame)
        meter = self._meters.get(frame.address)
        reply = meter.hear(frame, self.clock.now) if meter else None
        if reply is not None:
            self._put(reply)

    def receive(self, until):
        """The next frame that arrives until a moment of the clock; None, at that moment, if there is none.

        Bytes that are no frame are dropped, as a receiver without synchronisation drops them.
        """
        while self._arriving and self._arriving[0].moment <= until:
            arrival = self._arriving.popleft()
            self.clock.wait_until(arrival.moment)
            try:
                frame = Frame.decode(arrival.data)
            except FrameError as error:
                self._say(f"dropped: {error}")
                continue
            self._show("<", frame)
            return frame
        self.clock.wait_until(until)
        return None

    def is_quiet(self):
        """Whether nothing is on its way to the master."""
        return not self._arriving

    def _put(self, reply):
        """Bring an answer onto the meters' pair, after what is on it already."""
        data = reply.data
        begin = max(reply.moment, self._free_at)
        self._free_at = begin + len(data)
        self._arriving.append(Arrival(self._free_at, data))

    def _show(self, arrow, frame):
        self._say(f"{arrow} {frame.address:>3}  tag {frame.tag:>3}  {show(frame)}")

    def _say(self, text):
        if self.trace is not None:
            self.trace(f"{self.clock.now:>8}  {text}")
