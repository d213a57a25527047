"""Device amounts: how much of each resource is held on each device, with exact sums and differences.

A virtual function is one unit of a resource of its own (`vf_key`), so code that moves amounts moves it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Amounts: TypeAlias = Mapping[str, int]  # resource -> whole units: percents of a card, bytes of gpu-memory
ByMinor: TypeAlias = Mapping[int, Amounts]
Holdings: TypeAlias = Mapping[str, ByMinor]  # device type -> minor -> amounts

NOTHING: Holdings = {}
NO_MINORS: ByMinor = {}
NO_AMOUNTS: Amounts = {}

_FUNCTION = "vf/"


def function_key(bus_id: str) -> str:
    return _FUNCTION + bus_id


def functions_of(amounts: Amounts) -> list[str]:
    """Return the bus ids of the virtual functions among the amounts, sorted."""
    return sorted(name.removeprefix(_FUNCTION) for name, amount in amounts.items() if amount and is_function(name))


def is_function(name: str) -> bool:
    return name.startswith(_FUNCTION)


def plus(a: Holdings, b: Holdings) -> dict[str, ByMinor]:
    return _combined(a, b, 1)


def minus(a: Holdings, b: Holdings) -> dict[str, ByMinor]:
    """Subtract b from a. The result may go below zero, so that an over-allocation stays visible."""
    return _combined(a, b, -1)


def within(a: Holdings, b: Holdings) -> dict[str, ByMinor]:
    """Return the part of a that lies on the devices of b."""
    limited = {
        kind: {m: amounts for m, amounts in minors.items() if m in b.get(kind, {})} for kind, minors in a.items()
    }
    return {kind: minors for kind, minors in limited.items() if minors}


def common(a: Holdings, b: Holdings) -> dict[str, ByMinor]:
    """Return what is in both, by the lesser amount."""
    shared: dict[str, ByMinor] = {}
    for kind, minors in a.items():
        theirs = b.get(kind, NO_MINORS)
        found = {
            m: {n: min(v, theirs[m][n]) for n, v in amounts.items() if n in theirs[m]}
            for m, amounts in minors.items()
            if m in theirs
        }
        shared[kind] = found
    return positive(shared)


def positive(a: Holdings) -> dict[str, ByMinor]:
    """Drop every amount that is zero or below."""
    kept = {
        kind: {m: left for m, amounts in minors.items() if (left := {n: v for n, v in amounts.items() if v > 0})}
        for kind, minors in a.items()
    }
    return {kind: minors for kind, minors in kept.items() if minors}


def _combined(a: Holdings, b: Holdings, sign: int) -> dict[str, ByMinor]:
    """Add or subtract device amounts.

    Untouched types and minors are shared with `a`; zeros are dropped, so that allocating and freeing is exact.
    """
    result = dict(a)
    for kind, minors in b.items():
        there = dict(result.get(kind, NO_MINORS))
        for minor, amounts in minors.items():
            sums = dict(there.get(minor, NO_AMOUNTS))
            for name, amount in amounts.items():
                total = sums.get(name, 0) + sign * amount
                if total:
                    sums[name] = total
                else:
                    sums.pop(name, None)
            if sums:
                there[minor] = sums
            else:
                there.pop(minor, None)
        if there:
            result[kind] = there
        else:
            result.pop(kind, None)
    return result
