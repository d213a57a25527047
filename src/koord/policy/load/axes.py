"""Which resources load is measured in, and amounts of them as plain vectors in one fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from koord.api.part import QuantityText
from koord.values.quantity import Quantity
from koord.values.resources import CPU, MEMORY, from_units, units

# One whole number per resource, in the order of the axes: thousandths for cpu, units for everything else.
Vector: TypeAlias = tuple[int, ...]


class Axes(msgspec.Struct, frozen=True):
    """Sorted by name, which is also the order in which refusals look at them. Other resources do not exist here."""

    names: tuple[str, ...]

    @staticmethod
    def over(*named: Iterable[str]) -> Axes:
        """cpu, memory and everything that is named."""
        return Axes(tuple(sorted({CPU, MEMORY}.union(*named))))

    @property
    def zero(self) -> Vector:
        return (0,) * len(self.names)

    def pick(self, amounts: Mapping[str, int]) -> Vector:
        return tuple(amounts.get(name, 0) for name in self.names)

    def read(self, listed: Mapping[str, QuantityText]) -> Vector:
        """Raises QuantityError."""
        return tuple(units(name, Quantity.parse(listed[name])) if name in listed else 0 for name in self.names)

    def listed(self, vector: Iterable[int]) -> dict[str, str]:
        """As a resource list of the API."""
        return {name: str(from_units(name, amount)) for name, amount in zip(self.names, vector, strict=True)}
