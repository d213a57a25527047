"""Thresholds of a node's usage: the cluster's, a node's own, and which of them a pod must respect; as resource
vectors.
"""

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
    """The resources that load is measured in, sorted by name, which is also the order of the checks. Others are
    ignored.
    """

    names: tuple[str, ...]

    @staticmethod
    def over(*named: Iterable[str]) -> Axes:
        """Build axes over cpu, memory and everything that is named."""
        return Axes(tuple(sorted({CPU, MEMORY}.union(*named))))

    @property
    def zero(self) -> Vector:
        return (0,) * len(self.names)

    def pick(self, amounts: Mapping[str, int]) -> Vector:
        return tuple(amounts.get(name, 0) for name in self.names)

    def read(self, listed: Mapping[str, QuantityText]) -> Vector:
        """Parse a resource list into a vector. Raises QuantityError."""
        return tuple(units(name, Quantity.parse(listed[name])) if name in listed else 0 for name in self.names)

    def listed(self, vector: Iterable[int]) -> dict[str, str]:
        """Return the vector as a resource list of the API."""
        return {name: str(from_units(name, amount)) for name, amount in zip(self.names, vector, strict=True)}
