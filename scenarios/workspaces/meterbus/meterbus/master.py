"""The master: asks one meter at a time, and waits for what it says."""

from meterbus.frames import question, values_of

SILENCE = 4
PATIENCE = 40
ATTEMPTS = 2

REASONS = {
    1: "it doesn't know this function",
    2: "it doesn't know this register",
    3: "too many registers at once",
}


class LineError(Exception):
    """A meter couldn't be read."""


class NoAnswer(LineError):
    """Nothing came, however often it was asked."""


class Refused(LineError):
    """The meter answered that it can't."""


class Master:
    """Asks the meters on a line. Counts what it sent in `asked`, and what it had to send again in `repeated`."""

    def __init__(self, line, attempts=ATTEMPTS, patience=PATIENCE):
        self.line = line
        self.attempts = attempts
        self.patience = patience
        self.asked = 0
        self.repeated = 0
        self._tag = 0

    def read(self, address, quantity):
        """What a meter measures, in steps of its registers. Raises LineError."""
        values = self.read_registers(address, quantity.register, quantity.registers)
        raw = 0
        for value in values:
            raw = raw << 16 | value
        return raw

    def read_registers(self, address, register, count=1):
        """The values of registers of a meter. Raises NoAnswer and Refused."""
        self._tag = (self._tag + 1) % 256
        asked = question(address, self._tag, register, count)
        for attempt in range(self.attempts):
            self.repeated += attempt > 0
            came = self._ask(asked)
            if came is None:
                continue
            if came.is_refusal:
                reason = came.payload[0]
                raise Refused(f"meter {address}, register {register:#06x}: {REASONS.get(reason, reason)}")
            return values_of(came)
        raise NoAnswer(f"meter {address}, register {register:#06x}: no answer, asked {self.attempts} times")

    def _ask(self, asked):
        """Send a question once; what was answered, or None."""
        clock = self.line.clock
        clock.wait(SILENCE)
        self.line.send(asked)
        self.asked += 1
        return self.line.receive(until=clock.now + self.patience)
