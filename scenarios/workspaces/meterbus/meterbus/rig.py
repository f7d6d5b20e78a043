"""The rig: a line with meters, as an INI file describes it."""

import configparser
from pathlib import Path

from meterbus.catalogue import model
from meterbus.clock import Clock
from meterbus.line import Line
from meterbus.meters import make_meter

RIG = Path(__file__).parents[1] / "rig.ini"


def read_rig(path=RIG):
    """The rate of the line and its meters."""
    settings = configparser.ConfigParser()
    with open(path, encoding="utf-8") as file:
        settings.read_file(file)
    baud = settings.getint("line", "baud")
    meters = [_meter(int(address), text) for address, text in settings.items("meters")]
    return baud, meters


def open_rig(path=RIG, meters=None, trace=None):
    """The rig's line. `meters` take the place of its own."""
    baud, own = read_rig(path)
    return Line(Clock(baud), own if meters is None else meters, trace)


def _meter(address, text):
    name, *numbers = (part.strip() for part in text.split(","))
    turnaround, slow, every = (*map(int, numbers), 0, 0)[:3]
    return make_meter(address, model(name), turnaround=turnaround, slow=slow, slow_every=every)
