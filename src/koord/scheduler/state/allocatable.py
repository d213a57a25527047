"""Represent a node with the pods on it: the exact, per-node side of the cluster state.

Allocatable is read under current resource names and without what an annotation keeps for the system. The columns of
the node table mirror the sums kept here.
"""

from __future__ import annotations

from functools import lru_cache

from koord.api.annotations import node_reservation
from koord.api.annotations.codec import Malformed
from koord.api.node import Node
from koord.api.pod_resources import amounts
from koord.api.protocol import A_NODE_RESERVATION
from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY, CPU
from koord.scheduler.state.transform import renamed
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.resources import parse, to_units

_LENT = (BATCH_CPU, BATCH_MEMORY)  # the manager has taken the reserved part off these already


def allocatable(node: Node) -> dict[str, int]:
    found = dict(renamed(amounts(node.status.allocatable)))
    text = node.metadata.annotations.get(A_NODE_RESERVATION) if node.metadata.annotations else None
    if text is not None:
        for name, kept in _reserved(text):
            if name in found and name not in _LENT:
                found[name] = max(found[name] - kept, 0)
    return found


@lru_cache(maxsize=1024)
def _reserved(text: str) -> tuple[tuple[str, int], ...]:
    """Return what the annotation keeps for the system; nothing if it cannot be read: a node does not shrink by a
    guess.
    """
    given = node_reservation.parse({A_NODE_RESERVATION: text})
    if given is None or isinstance(given, Malformed) or not given.trims_allocatable:
        return ()
    kept = to_units(parse(given.resources))
    if given.reserved_cpus:
        try:
            kept[CPU] = 1000 * len(CPUSet.parse(given.reserved_cpus))
        except CPUSetError:
            return ()
    return tuple(kept.items())
