"""Amounts by resource as integers (milli of cpu, units of all else): sums, differences, and how messages write them.

Vectors of exact quantities are in `koord.values.resources`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias, TypeVar

from koord.values.resources import from_units

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
