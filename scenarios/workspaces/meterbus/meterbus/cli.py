"""The command line."""

import argparse
import sys

from meterbus.catalogue import ENERGY, VOLTAGE
from meterbus.line import Line
from meterbus.clock import Clock
from meterbus.master import Master
from meterbus.poller import Poller, wrong_readings
from meterbus.report import render, usages
from meterbus.rig import RIG, read_rig
from meterbus.store import Store, StoreError


def main(argv=None):
    parser = argparse.ArgumentParser(prog="meterbus", description="Reads electricity meters over a serial line.")
    commands = parser.add_subparsers(dest="command", required=True)
    soak = commands.add_parser("soak", help="poll the rig, and hold what was read against what its meters hold")
    soak.add_argument("--rig", default=RIG, help="the rig's file")
    soak.add_argument("--rounds", type=int, default=1, help="rounds over all meters")
    soak.add_argument("--trace", action="store_true", help="show every frame, with its time in characters")
    report = commands.add_parser("report", help="what was used between the first and the last reading")
    report.add_argument("file", help="readings as CSV")
    options = parser.parse_args(argv)
    return _soak(options) if options.command == "soak" else _report(options)


def _soak(options):
    baud, meters = read_rig(options.rig)
    line = Line(Clock(baud), meters, print if options.trace else None)
    master = Master(line)
    poller = Poller(master, {meter.address: meter.model for meter in meters}, (VOLTAGE, ENERGY))
    bad = 0
    for _ in range(options.rounds):
        done = poller.poll()
        wrong = wrong_readings(done, meters)
        bad += len(wrong)
        print(
            f"round {done.number}: {len(done.readings)} readings, {len(wrong)} wrong, {len(done.missing)} missing, "
            f"{done.characters} characters"
        )
        for address, name, read, held in wrong:
            print(f"  meter {address}: {name} was read as {read}, but the meter holds {held}")
        for _, _, why in done.missing:
            print(f"  {why}")
    print(f"{master.asked} questions, {master.repeated} of them repeated; {bad} wrong readings")
    return 1 if bad else 0


def _report(options):
    try:
        readings = Store(options.file).load()
    except (OSError, StoreError) as error:
        print(f"meterbus: {error}", file=sys.stderr)
        return 2
    print(render(usages(readings)))
    return 0
