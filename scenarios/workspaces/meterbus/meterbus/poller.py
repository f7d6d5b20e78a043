"""Asks every meter on a line for what it measures, round after round."""

from dataclasses import dataclass

from meterbus.catalogue import ENERGY
from meterbus.master import LineError
from meterbus.store import Reading


@dataclass(frozen=True)
class Round:
    """What came of one round. `missing`: address, name, and why, of what couldn't be read."""

    number: int
    readings: tuple
    missing: tuple
    characters: int


class Poller:
    """Polls meters: `wanted` are quantities; a meter isn't asked for what its model doesn't measure."""

    def __init__(self, master, models, wanted=(ENERGY,)):
        self.master = master
        self.models = models
        self.wanted = wanted
        self.rounds = 0

    def poll(self, day=None):
        """One round over all meters, in order of address."""
        self.rounds += 1
        began = self.master.line.clock.now
        readings, missing = [], []
        for address in sorted(self.models):
            model = self.models[address]
            for quantity in self._measured(model):
                try:
                    raw = self.master.read(address, quantity)
                except LineError as error:
                    missing.append((address, quantity.name, str(error)))
                    continue
                readings.append(Reading(day or self.rounds, address, model.name, quantity.name, raw))
        return Round(self.rounds, tuple(readings), tuple(missing), self.master.line.clock.now - began)

    def _measured(self, model):
        return [quantity for quantity in self.wanted if quantity in model.quantities]


def wrong_readings(round_, meters):
    """Readings of a round that don't say what the meter's registers hold: address, name, read, held."""
    held = {meter.address: meter for meter in meters}
    wrong = []
    for reading in round_.readings:
        meter = held[reading.address]
        quantity = meter.model.quantity(reading.name)
        raw = 0
        for at in range(quantity.registers):
            raw = raw << 16 | meter.registers[quantity.register + at]
        if raw != reading.raw:
            wrong.append((reading.address, reading.name, reading.raw, raw))
    return wrong
