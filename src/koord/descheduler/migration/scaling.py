"""Protection from migration: why a pod must not be moved at all, by its kind and by the configured exclusions."""

from __future__ import annotations

from koord.api.part import IntOrString


def at_most(replicas: int, given: IntOrString | None) -> int:
    """Return how many replicas may be migrating or unavailable at a time.

    A percentage is rounded down; without a value the workload's size decides. At least one, at most all
    replicas.
    """
    if given is None:
        wanted = replicas // 10 if replicas > 10 else 2 if replicas >= 4 else 1
    elif isinstance(given, int):
        wanted = given
    else:
        wanted = replicas * int(given.removesuffix("%")) // 100
    return min(max(wanted, 1), replicas)
