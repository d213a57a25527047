"""Resource vectors: the sums, differences and comparisons that quota and scheduling are defined by; the same of
amounts as integers (milli of cpu, units of all else), and how messages write them.

A vector is a mapping from resource name to Quantity; every function returns a new dict and leaves its
inputs alone. An absent name counts as zero in sums and is not checked in comparisons; which names matter
is up to the caller.

Vectors of exact quantities are in `koord.values.resources`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias, TypeVar

from koord.values.quantity import Format, Quantity

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


Amounts: TypeAlias = dict[str, int]
Counts: TypeAlias = Mapping[str, int]

K = TypeVar("K")

EMPTY_TEXT = "<empty>"


def format_amounts(amounts: Counts) -> str:
    """Format amounts as refusals show them: sorted, `cpu:2,memory:4Gi`."""
    return ",".join(f"{name}:{from_units(name, amounts[name])}" for name in sorted(amounts)) or EMPTY_TEXT


def format_names(resources: Iterable[str]) -> str:
    return f"[{' '.join(resources)}]"


def to_resource_list(amounts: Counts) -> dict[str, str]:
    """Return the amounts as a resource list of the API."""
    return {name: str(from_units(name, amounts[name])) for name in sorted(amounts)}


def keep_resources(amounts: Counts, kept: Collection[str]) -> Amounts:
    return {name: amount for name, amount in amounts.items() if name in kept}


def nonzero(amounts: Counts) -> Amounts:
    return {name: amount for name, amount in amounts.items() if amount}


def add_in_place(total: Amounts, delta: Counts, sign: int = 1) -> None:
    """Add in place. Zeros are dropped, so that a sum does not depend on its history."""
    for name, amount in delta.items():
        left = total.get(name, 0) + sign * amount
        if left:
            total[name] = left
        else:
            total.pop(name, None)


def accumulate(total: Amounts, delta: Counts, sign: int = 1) -> None:
    """Add in place. Zeros stay, for sums whose names matter."""
    for name, amount in delta.items():
        total[name] = total.get(name, 0) + sign * amount


def add_amounts(a: Counts, b: Counts) -> Amounts:
    total = dict(a)
    accumulate(total, b)
    return total


def sum_amounts(parts: Iterable[Counts]) -> Amounts:
    total: Amounts = {}
    for part in parts:
        accumulate(total, part)
    return total


def subtract_amounts(a: Counts, b: Counts) -> Amounts:
    rest = dict(a)
    accumulate(rest, b, -1)
    return rest


def add_keyed_amounts(total: Mapping[K, Counts], change: Mapping[K, Counts], sign: int = 1) -> dict[K, Counts]:
    """Add amounts by NUMA node, by device or by another key. What the change does not name is shared with `total`;
    zeros are dropped, so that allocating and freeing is exact.
    """
    result = dict(total)
    for key, amounts in change.items():
        mine = dict(result.get(key, ()))
        add_in_place(mine, amounts, sign)
        if mine:
            result[key] = mine
        else:
            result.pop(key, None)
    return result


def remaining_keyed_amounts(total: Mapping[K, Counts], taken: Mapping[K, Counts]) -> dict[K, Counts]:
    """Subtract amounts by key, never below zero; what nothing is left of is dropped."""
    rest: dict[K, Counts] = {}
    for key, amounts in total.items():
        gone = taken.get(key)
        left = {
            name: amount - used
            for name, amount in amounts.items()
            if amount > (used := gone.get(name, 0) if gone is not None else 0)
        }
        if left:
            rest[key] = left
    return rest


def exceeded_resources(wanted: Counts, limit: Counts) -> tuple[str, ...]:
    """Return the resources of which more is wanted than the limit; a limit that does not name one does not limit it."""
    return tuple(sorted(name for name, most in limit.items() if wanted.get(name, 0) > most))
