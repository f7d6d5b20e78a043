import unittest

from meterbus import Master, Poller, open_rig
from meterbus.catalogue import E70, ENERGY, K3, S0, VOLTAGE
from meterbus.meters import make_meter
from meterbus.poller import wrong_readings


def polled(meters, wanted):
    poller = Poller(Master(open_rig(meters=meters)), {meter.address: meter.model for meter in meters}, wanted)
    return poller.poll()


class PollerTest(unittest.TestCase):
    def test_every_meter_is_read(self):
        done = polled([make_meter(11, K3), make_meter(12, E70), make_meter(13, S0)], (VOLTAGE, ENERGY))
        self.assertEqual(
            [(reading.address, reading.name, reading.raw) for reading in done.readings],
            [(11, "voltage", 2311), (11, "energy", 11011), (12, "voltage", 2312), (12, "energy", 12012), (13, "energy", 13013)],
        )
        self.assertEqual(done.missing, ())

    def test_a_dead_meter_is_missing_and_the_others_are_not(self):
        done = polled([make_meter(11, K3), make_meter(12, K3, deaf=9), make_meter(13, K3)], (VOLTAGE,))
        self.assertEqual([reading.address for reading in done.readings], [11, 13])
        self.assertEqual([(address, name) for address, name, _ in done.missing], [(12, "voltage")])

    def test_a_slow_meter_spoils_nobody_elses_reading(self):
        meters = [make_meter(14, S0, slow=98, slow_every=1), *(make_meter(address, K3) for address in (15, 16, 17))]
        done = polled(meters, (VOLTAGE, ENERGY))
        self.assertEqual(wrong_readings(done, meters), [])
        self.assertEqual(len(done.readings), 6)
