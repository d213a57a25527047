"""Allocate NUMA amounts and CPUs to one pod on chosen NUMA nodes, or say why not. Choosing the NUMA nodes is done
before.
"""

from __future__ import annotations

from collections.abc import Iterable

from koord.api.annotations.resource_spec import FULL_PCPUS
from koord.policy.topology.ledger import Amounts, ZoneAmounts
from koord.policy.topology.refusal import Short, insufficient_numa
from koord.values.resources import CPU


def distribute(
    amounts: Amounts, available: ZoneAmounts, zones: Iterable[int], *, cpu_step: int
) -> dict[int, Amounts] | Short:
    """Divide a pod's amounts over NUMA nodes: evenly, the tightest first. A resource that no NUMA node has is not
    refused.
    """
    chosen = [zone for zone in zones if zone in available]
    given: dict[int, dict[str, int]] = {zone: {} for zone in sorted(chosen)}
    missing = []
    for name, asked in sorted(amounts.items()):
        if asked <= 0 or not any(name in known for known in available.values()):
            continue
        left, step = asked, cpu_step if name == CPU else 1
        there = {zone: available[zone].get(name, 0) for zone in chosen}
        order = sorted(chosen, key=lambda zone: (there[zone], zone))
        for place, zone in enumerate(order):
            share = left // step // (len(order) - place) * step
            part = min(share, there[zone] // step * step)
            if part:
                given[zone][name] = part
                left -= part
        if left:
            missing.append(insufficient_numa(name))
    if missing:
        return Short(tuple(missing))
    return {zone: parts for zone, parts in given.items() if parts}


def cpu_step(must: str, *, binds: bool, per_core: int) -> int:
    """Return the portion in which cpu is divided, in milli-cores."""
    if not binds:
        return 1
    return 1000 * max(per_core, 1) if must == FULL_PCPUS else 1000
