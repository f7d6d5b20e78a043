"""Reads electricity meters over a serial line."""

from meterbus.master import LineError, Master, NoAnswer, Refused
from meterbus.poller import Poller
from meterbus.rig import open_rig
from meterbus.store import Reading, Store

__all__ = ["LineError", "Master", "NoAnswer", "Poller", "Reading", "Refused", "Store", "open_rig"]
