"""Resource vectors: the sums, differences and comparisons that quota and scheduling are defined by.

A vector is a mapping from resource name to Quantity; every function returns a new dict and leaves its
inputs alone. An absent name counts as zero in sums and is not checked in comparisons; which names matter
is up to the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from koord.values.quantity import Quantity
from koord.values.quantity_syntax import Format

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"

Resources = Mapping[str, Quantity]


def parse(wire: Mapping[str, str | int | float]) -> dict[str, Quantity]:
    """Parse a resource list as it stands in JSON. Raises QuantityError at the first bad amount."""
    return {name: Quantity.parse(amount) for name, amount in wire.items()}


def to_wire(resources: Resources) -> dict[str, str]:
    return {name: str(amount) for name, amount in resources.items()}


def add(a: Resources, b: Resources) -> dict[str, Quantity]:
    total = dict(a)
    for name, amount in b.items():
        mine = total.get(name)
        total[name] = amount if mine is None else mine + amount
    return total


def total(vectors: Iterable[Resources]) -> dict[str, Quantity]:
    summed: dict[str, Quantity] = {}
    for one in vectors:
        summed = add(summed, one)
    return summed


def subtract(a: Resources, b: Resources) -> dict[str, Quantity]:
    """Return a - b over all names of both; it may go below zero."""
    rest = dict(a)
    for name, amount in b.items():
        mine = rest.get(name)
        rest[name] = -amount if mine is None else mine - amount
    return rest


def mask(resources: Resources, names: Collection[str]) -> dict[str, Quantity]:
    """Keep only the listed names."""
    return {name: amount for name, amount in resources.items() if name in names}


def maximum(a: Resources, b: Resources) -> dict[str, Quantity]:
    """Return the larger amount for each name of either; on a tie that of b, whose format then shows."""
    result = dict(a)
    for name, amount in b.items():
        mine = result.get(name)
        if mine is None or mine <= amount:
            result[name] = amount
    return result


def equals(a: Resources, b: Resources) -> bool:
    """Return whether both have the same names with the same amounts; an absent name is not a zero."""
    return len(a) == len(b) and all((other := b.get(name)) is not None and other == mine for name, mine in a.items())


def is_zero(resources: Resources) -> bool:
    return all(amount.is_zero() for amount in resources.values())


def remove_zeros(resources: Resources) -> dict[str, Quantity]:
    return {name: amount for name, amount in resources.items() if not amount.is_zero()}


def negative_names(resources: Resources) -> list[str]:
    return [name for name, amount in resources.items() if amount.sign() < 0]


def units(name: str, amount: Quantity) -> int:
    """Return the integer that scores and shares are computed with: milli of cpu, whole units of all else."""
    return amount.milli_value() if name == CPU else amount.value()


def parse_units(name: str, amount: str | int | float) -> int:
    """Return `units` of an amount as it stands in JSON. Raises QuantityError if it is bad."""
    return _units_of_text(name, amount) if isinstance(amount, str) else units(name, Quantity.parse(amount))


@lru_cache(maxsize=4096)  # the nodes of a cluster have few amounts, and all of them are read at the start
def _units_of_text(name: str, amount: str) -> int:
    return units(name, Quantity.parse(amount))


def from_units(name: str, count: int) -> Quantity:
    """Return the amount that `units` counts, in the format the resource is written with."""
    return Quantity.from_milli(count) if name == CPU else Quantity.from_value(count, format_of(name))


def to_units(resources: Resources) -> dict[str, int]:
    return {name: units(name, amount) for name, amount in resources.items()}


def materialise(counts: Mapping[str, int]) -> dict[str, Quantity]:
    """Return the vector of integer counts made by `to_units`."""
    return {name: from_units(name, count) for name, count in counts.items()}


def format_of(name: str) -> Format:
    """Return the format: bytes are written in powers of two, everything else in powers of ten."""
    bare = name.removeprefix("requests.").removeprefix("limits.")
    if bare.endswith(MEMORY) or bare in (EPHEMERAL_STORAGE, "storage") or bare.startswith("hugepages-"):
        return Format.BINARY_SI
    return Format.DECIMAL_SI
