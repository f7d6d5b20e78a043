import unittest

from meterbus import Master, NoAnswer, Refused, open_rig
from meterbus.catalogue import ENERGY, K3, S0, VOLTAGE
from meterbus.meters import make_meter


def master(*meters, **options):
    return Master(open_rig(meters=meters), **options)


class MasterTest(unittest.TestCase):
    def test_a_register_is_read(self):
        self.assertEqual(master(make_meter(11, K3)).read(11, VOLTAGE), 2311)

    def test_a_counter_has_two_registers(self):
        asking = master(make_meter(11, K3).set("energy", 9_000_123))
        self.assertEqual(asking.read(11, ENERGY), 9_000_123)

    def test_a_lost_question_is_repeated(self):
        asking = master(make_meter(11, K3, deaf=1))
        self.assertEqual((asking.read(11, VOLTAGE), asking.repeated), (2311, 1))

    def test_a_meter_that_never_answers_is_given_up(self):
        with self.assertRaises(NoAnswer):
            master(make_meter(11, K3)).read(12, VOLTAGE)

    def test_a_refusal_says_why(self):
        with self.assertRaisesRegex(Refused, "register 0x0010: it doesn't know this register"):
            master(make_meter(14, S0)).read(14, VOLTAGE)

    def test_a_slow_answer_counts_if_it_comes_before_the_end(self):
        asking = master(make_meter(14, S0, slow=60, slow_every=1))
        self.assertEqual((asking.read(14, ENERGY), asking.repeated), (14014, 1))


class LateAnswerTest(unittest.TestCase):
    """A meter answers when the master has turned to another, or to another register."""

    def late(self):
        asking = master(make_meter(14, K3, slow=98, slow_every=2), make_meter(15, K3), make_meter(16, K3))
        self.assertEqual(asking.read(14, ENERGY), 14014)
        with self.assertRaises(NoAnswer):
            asking.read(14, ENERGY)
        return asking

    def test_it_is_not_taken_for_the_neighbours(self):
        asking = self.late()
        self.assertEqual([asking.read(address, ENERGY) for address in (15, 16)], [15015, 16016])

    def test_it_costs_the_neighbours_no_repetition(self):
        asking = self.late()
        before = asking.repeated
        asking.read(15, ENERGY)
        asking.read(16, ENERGY)
        self.assertEqual(asking.repeated, before)

    def test_registers_of_one_meter_are_kept_apart(self):
        asking = self.late()
        self.assertEqual(asking.read(14, VOLTAGE), 2314)
