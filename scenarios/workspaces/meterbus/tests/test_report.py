import unittest

from meterbus.report import render, total, usages
from meterbus.store import Reading


def readings(address, model, raws, name="energy"):
    return [Reading(day, address, model, name, raw) for day, raw in enumerate(raws, start=1)]


class ReportTest(unittest.TestCase):
    def test_the_difference_of_the_first_and_the_last(self):
        [usage] = usages(readings(11, "K3", [11_011, 11_050, 11_100]))
        self.assertEqual((usage.used, usage.unit, usage.readings), (8.9, "kWh", 3))

    def test_counters_of_one_meter_are_kept_apart(self):
        found = usages(readings(12, "E70", [100, 200]) + readings(12, "E70", [10, 20], name="night"))
        self.assertEqual([(usage.name, usage.used) for usage in found], [("energy", 10.0), ("night", 1.0)])
        self.assertEqual(total(found), 10.0)

    def test_what_is_no_counter_is_left_out(self):
        self.assertEqual(usages(readings(11, "K3", [2311, 2312], name="voltage")), [])

    def test_a_counter_that_began_again_did_not_run_backwards(self):
        [usage] = usages(readings(14, "S0", [999_700, 999_900, 150, 400]))
        self.assertEqual(usage.used, 70.0)

    def test_the_text_ends_with_the_sum(self):
        found = usages(readings(11, "K3", [0, 1000]) + readings(12, "K3", [0, 500]))
        self.assertTrue(render(found).endswith("150.0 kWh"))
