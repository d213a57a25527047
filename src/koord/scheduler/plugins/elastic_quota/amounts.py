"""Amounts by resource as integers (milli of cpu, units of all else), and how messages write them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from koord.values.resources import from_units

Amounts: TypeAlias = dict[str, int]
Counts: TypeAlias = Mapping[str, int]

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


def add_amounts(a: Counts, b: Counts) -> Amounts:
    total = dict(a)
    for name, amount in b.items():
        total[name] = total.get(name, 0) + amount
    return total


def subtract_amounts(a: Counts, b: Counts) -> Amounts:
    return add_amounts(a, {name: -amount for name, amount in b.items()})


def exceeded_resources(wanted: Counts, limit: Counts) -> tuple[str, ...]:
    """Return the resources of which more is wanted than the limit; a limit that does not name one does not limit it."""
    return tuple(sorted(name for name, most in limit.items() if wanted.get(name, 0) > most))
