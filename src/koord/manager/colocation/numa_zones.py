"""Batch resources of NUMA zones in a node's topology object: the size of the zones, and the desired entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY
from koord.api.model import to_dict
from koord.manager.colocation.batch import ZoneBatch
from koord.manager.colocation.models import ColocationTopology, ComputeResources, amplify_cpu, differs_by_more_than
from koord.values.quantity import Quantity
from koord.values.resources import CPU, MEMORY

_FIELDS = ("capacity", "allocatable", "available")

PlainObject = dict[str, Any]


def zone_capacities(topology: ColocationTopology | None) -> tuple[tuple[str, ComputeResources], ...]:
    """Return name and size of each zone, in order; none when no zone states its CPU or memory.

    A zone counts by its place in the list: its name may state another number.
    """
    if topology is None:
        return ()
    sizes = [
        (zone.name, {r.name: r.allocatable for r in zone.resources if r.name in (CPU, MEMORY)})
        for zone in topology.zones
    ]
    if not any(size for _, size in sizes):
        return ()
    return tuple((name, ComputeResources.parse(size)) for name, size in sizes)


def should_write_zones(
    topology: ColocationTopology | None,
    decided: Sequence[ZoneBatch],
    ratio: float | None,
    threshold: float,
    *,
    overdue: bool,
) -> bool:
    """Return whether the zones must be written. With `overdue` any difference is enough, however small."""
    if topology is None or not decided:
        return False
    zones = [to_dict(zone) for zone in topology.zones]
    return revise_zones(zones, decided, ratio, threshold, overdue=overdue) is not None


def revise_zones(
    zones: Sequence[PlainObject], decided: Sequence[ZoneBatch], ratio: float | None, threshold: float, *, overdue: bool
) -> list[PlainObject] | None:
    """Return the zones as desired, everything else in them kept; None when they are so, or are not those decided on."""
    if [zone.get("name") for zone in zones] != [zone.name for zone in decided]:
        return None
    made, changed = [], False
    for zone, wanted in zip(zones, decided, strict=True):
        resources, differ = _entries(zone.get("resources") or [], _amounts(wanted, ratio), threshold, overdue)
        made.append({**zone, "resources": resources} if differ else zone)
        changed = changed or differ
    return made if changed else None


def _amounts(zone: ZoneBatch, ratio: float | None) -> dict[str, Quantity]:
    return {
        BATCH_CPU: amplify_cpu(Quantity.from_value(zone.cpu.result.milli_value()), ratio),
        BATCH_MEMORY: zone.memory.result,
    }


def _entries(
    entries: Sequence[PlainObject], wanted: dict[str, Quantity], threshold: float, overdue: bool
) -> tuple[list[PlainObject], bool]:
    made, changed, missing = [], False, dict(wanted)
    for entry in entries:
        amount = missing.pop(entry.get("name", ""), None)
        if amount is None:
            made.append(entry)
            continue
        stale = {field: str(amount) for field in _FIELDS if _must_change(entry.get(field), amount, threshold, overdue)}
        made.append({**entry, **stale})
        changed = changed or bool(stale)
    if missing:
        made += [{"name": name, **dict.fromkeys(_FIELDS, str(amount))} for name, amount in missing.items()]
        made.sort(key=lambda entry: str(entry.get("name", "")))
    return made, changed or bool(missing)


def _must_change(old: Any, new: Quantity, threshold: float, overdue: bool) -> bool:
    before = None if old is None else Quantity.parse(old)
    return before != new if overdue else differs_by_more_than(before, new, threshold)
