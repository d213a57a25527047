"""This module computes how far a node that rejected the pod was from taking it, by CPUs and by NUMA node."""

from __future__ import annotations

from koord.api.annotations.numa_topology_spec import NONE
from koord.api.annotations.resource_spec import FULL_PCPUS, SPREAD_BY_PCPUS
from koord.policy.topology.cpu_topology import CpuTopology
from koord.policy.topology.ledger import SHARED, SINGLE, Amounts
from koord.policy.topology.room import Free, Room, room
from koord.scheduler.plugins.node_numa_resource.book import Book
from koord.scheduler.plugins.node_numa_resource.placing import Terms
from koord.scheduler.plugins.node_numa_resource.site import Site
from koord.values.resources import CPU, materialise

_KINDS = {FULL_PCPUS: " on whole cores", SPREAD_BY_PCPUS: " on cores of their own"}


def near_miss(terms: Terms, site: Site, book: Book) -> tuple[float, str] | None:
    """Return the missing share of the request and a sentence; None when the rejection is not about numbers."""
    there = room(site.topology, book.ledger)
    if terms.policy != NONE:
        return _by_zone(terms, there)
    binding = terms.binding
    if binding is None or not isinstance(site.topology.cpu, CpuTopology):
        return None
    free = _of_kind(there.total, binding.must)
    if free >= binding.count:
        return None
    kind = _KINDS.get(binding.must, "")
    return (binding.count - free) / binding.count, f"{binding.count} CPUs asked for, {free} free{kind}"


def _by_zone(terms: Terms, there: Room) -> tuple[float, str] | None:
    """Evaluate each NUMA node on its own; the one that lacks least decides."""
    if not there.zones:
        return None
    least, words = None, []
    for number, zone in sorted(there.zones.items()):
        lacking = _lacking(terms, there, zone.amounts, zone.free)
        status = " (used by pods that span NUMA nodes)" if zone.status == SHARED else ""
        status = " (used by pods of its own)" if zone.status == SINGLE else status
        missing = ", ".join(text for _, text in lacking)
        words.append(
            f"NUMA node {number}{status} lacks {missing}" if missing else f"NUMA node {number}{status} has enough"
        )
        share = sum(part for part, _ in lacking)
        least = share if least is None else min(least, share)
    assert least is not None
    return least, "; ".join(words)


def _lacking(terms: Terms, there: Room, left: Amounts, free: Free) -> list[tuple[float, str]]:
    """Return by resource the missing share of the request, and the missing amount as text."""
    found = []
    for name, asked in sorted(terms.request.amounts.items()):
        short = asked - left.get(name, 0) if name in there.known else 0
        if short > 0:
            found.append((short / asked, f"{materialise({name: short})[name]} {name}"))
    binding = terms.binding
    if binding is not None and not any(text.endswith(f" {CPU}") for _, text in found):
        short = binding.count - _of_kind(free, binding.must)
        if short > 0:
            found.append((short / binding.count, f"{short} CPUs{_KINDS.get(binding.must, '')}"))
    return found


def _of_kind(free: Free, must: str) -> int:
    if must == FULL_PCPUS:
        return free.on_whole_cores
    return free.cores if must == SPREAD_BY_PCPUS else free.cpus
