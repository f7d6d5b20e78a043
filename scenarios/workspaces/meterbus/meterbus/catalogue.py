"""The models of meters that we know, and what their registers hold."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """Something that a meter measures: where it stands, in how many registers, and in which unit."""

    name: str
    register: int
    registers: int = 1
    scale: float = 1.0
    unit: str = ""
    is_counter: bool = False

    def value(self, raw):
        """What registers mean, in the unit."""
        return round(raw * self.scale, 3)


@dataclass(frozen=True)
class Model:
    """A model: its number, how many digits its counters show, and what it measures."""

    name: str
    number: int
    digits: int
    quantities: tuple

    def quantity(self, name):
        """What it measures by a name. Raises KeyError where it doesn't measure that."""
        for quantity in self.quantities:
            if quantity.name == name:
                return quantity
        raise KeyError(f"{self.name} doesn't measure {name}")

    @property
    def counter_range(self):
        """How many numbers a counter can show, in its own steps: it begins at zero again after the last of them."""
        return 10**self.digits


MODEL = Quantity("model", 0x0000)
VOLTAGE = Quantity("voltage", 0x0010, scale=0.1, unit="V")
CURRENT = Quantity("current", 0x0011, scale=0.01, unit="A")
FREQUENCY = Quantity("frequency", 0x0012, scale=0.01, unit="Hz")
ENERGY = Quantity("energy", 0x0100, registers=2, scale=0.1, unit="kWh", is_counter=True)
NIGHT = Quantity("night", 0x0200, registers=2, scale=0.1, unit="kWh", is_counter=True)

K3 = Model("K3", 3, 7, (MODEL, VOLTAGE, CURRENT, ENERGY))
E70 = Model("E70", 70, 8, (MODEL, VOLTAGE, CURRENT, FREQUENCY, ENERGY, NIGHT))
S0 = Model("S0", 100, 6, (MODEL, ENERGY))

MODELS = {model.name: model for model in (K3, E70, S0)}


def model(name):
    """A model by its name. Raises KeyError, and says which there are."""
    if name not in MODELS:
        raise KeyError(f"no model {name}; there are {', '.join(sorted(MODELS))}")
    return MODELS[name]
