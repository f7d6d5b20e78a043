"""What was used between the first reading of each meter and the last."""

from dataclasses import dataclass

from meterbus.catalogue import model


@dataclass(frozen=True)
class Usage:
    """What one counter of a meter counted, in the quantity's unit, over so many readings."""

    address: int
    model: str
    name: str
    readings: int
    used: float
    unit: str


def usages(readings):
    """What each counter counted, in order of address and name. Counters that were read once are left out."""
    series = {}
    for reading in readings:
        quantity = model(reading.model).quantity(reading.name)
        if quantity.is_counter:
            series.setdefault((reading.address, reading.name), []).append(reading)
    return [_usage(taken) for _, taken in sorted(series.items()) if len(taken) > 1]


def _usage(taken):
    first, last = taken[0], taken[-1]
    kind = model(first.model)
    quantity = kind.quantity(first.name)
    used = quantity.value(last.raw - first.raw)
    return Usage(first.address, kind.name, first.name, len(taken), used, quantity.unit)


def total(found, name="energy"):
    """What all meters together used by one counter."""
    return round(sum(usage.used for usage in found if usage.name == name), 3)


def render(found):
    """The report as text."""
    lines = [f"{'meter':>5}  {'model':<5}  {'counter':<8}  {'readings':>8}  {'used':>12}"]
    for usage in found:
        used = f"{usage.used:,.1f} {usage.unit}"
        lines.append(f"{usage.address:>5}  {usage.model:<5}  {usage.name:<8}  {usage.readings:>8}  {used:>12}")
    lines.append(f"{'':>5}  {'':<5}  {'energy, all':<18}  {total(found):>8,.1f} kWh")
    return "\n".join(lines)
