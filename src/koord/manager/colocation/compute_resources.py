"""CPU and memory side by side: the two compute resources that co-location divides, exact to the last written digit."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.model import QuantityText
from koord.values.quantity import ZERO, Quantity
from koord.values.resources import CPU, MEMORY


class ComputeResources(msgspec.Struct, frozen=True, gc=False):
    cpu: Quantity = ZERO
    memory: Quantity = ZERO

    @staticmethod
    def parse(listed: Mapping[str, QuantityText]) -> ComputeResources:
        """Parse a resource list; what it does not name is zero. Raises QuantityError."""
        return ComputeResources(_parse_or_zero(listed.get(CPU)), _parse_or_zero(listed.get(MEMORY)))

    def __add__(self, other: ComputeResources) -> ComputeResources:
        return ComputeResources(self.cpu + other.cpu, self.memory + other.memory)

    def __sub__(self, other: ComputeResources) -> ComputeResources:
        return ComputeResources(self.cpu - other.cpu, self.memory - other.memory)

    def maximum(self, other: ComputeResources) -> ComputeResources:
        return ComputeResources(
            self.cpu if self.cpu > other.cpu else other.cpu, self.memory if self.memory > other.memory else other.memory
        )

    def floor_zero(self) -> ComputeResources:
        return ComputeResources(floor_zero(self.cpu), floor_zero(self.memory))

    def fraction(self, cpu_ratio: float, memory_ratio: float) -> ComputeResources:
        """Return a fraction of each, in whole milli-cores and whole bytes."""
        return ComputeResources(cpu_fraction(self.cpu, cpu_ratio), memory_fraction(self.memory, memory_ratio))

    def split(self, parts: int) -> ComputeResources:
        """Return one of `parts` equal parts, rounded up to thousandths, of memory too."""
        return ComputeResources(_equal_part(self.cpu, parts), _equal_part(self.memory, parts))

    def is_negative(self) -> bool:
        return self.cpu.sign() < 0 or self.memory.sign() < 0


NO_COMPUTE = ComputeResources()


def floor_zero(amount: Quantity) -> Quantity:
    return amount if amount.sign() > 0 else Quantity(0, 0, amount.format)


# A ratio is a float and is multiplied as one, because the numbers on the wire show it: 35 percent of 90G is one byte
# short of 31.5G.


def cpu_fraction(amount: Quantity, ratio: float) -> Quantity:
    return Quantity.from_milli(int(amount.milli_value() * ratio), amount.format)


def memory_fraction(amount: Quantity, ratio: float) -> Quantity:
    return Quantity.from_value(int(amount.value() * ratio), amount.format)


def round_up_to_integer(amount: Quantity) -> Quantity:
    """Round up to an integer, which is all that an extended resource may be."""
    value = Quantity.from_value(amount.value(), amount.format)
    return amount if value == amount else value


def differs_by_more_than(old: Quantity | None, new: Quantity | None, threshold: float) -> bool:
    """Return whether the change exceeds the threshold's fraction of the old amount; appearing and going always does."""
    if old is None or new is None:
        return (old is None) != (new is None)
    before = old.milli_value()
    return abs(new.milli_value() - before) > before * threshold


def amplify_cpu(cpu: Quantity, ratio: float | None) -> Quantity:
    """Return milli-cores on CPUs `ratio` times as fast as the reference; a ratio of 1 or less changes nothing."""
    if ratio is None or ratio <= 1.0:
        return cpu
    return round_up_to_integer(Quantity.from_milli(int(cpu.milli_value() * ratio), cpu.format))


def _parse_or_zero(text: QuantityText | None) -> Quantity:
    return ZERO if text is None else Quantity.parse(text)


def _equal_part(amount: Quantity, parts: int) -> Quantity:
    return Quantity.from_milli(-(-amount.milli_value() // parts), amount.format)
