"""How many pods of a workload may move, or be away, at a time."""

from __future__ import annotations

from koord.api.part import IntOrString


def at_most(replicas: int, given: IntOrString | None) -> int:
    """A share is rounded down, and never below one; nothing given leaves it to the size. Never more than there are."""
    if given is None:
        wanted = replicas // 10 if replicas > 10 else 2 if replicas >= 4 else 1
    elif isinstance(given, int):
        wanted = given
    else:
        wanted = replicas * int(given.removesuffix("%")) // 100
    return min(max(wanted, 1), replicas)
