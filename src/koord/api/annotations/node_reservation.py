"""node.koordinator.sh/reservation: what the node keeps for itself. Also read on reservations, for their inside."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part, ResourceList
from koord.api.protocol import A_NODE_RESERVATION, L_ENABLE_NUMA_RESERVATION, TRUE

DEFAULT = "Default"  # the reserved part is taken off allocatable
RESERVED_CPUS_ONLY = "ReservedCPUsOnly"  # only CPU binding avoids the reserved CPUs


class NodeReservation(Part, frozen=True, kw_only=True):
    """NodeReservation is what a node keeps for itself, also read on reservations. With `reserved_cpus` set,
    `resources.cpu` does not count.
    """

    resources: ResourceList = {}
    reserved_cpus: str = field(default="", name="reservedCPUs")
    apply_policy: str = ""

    @property
    def trims_allocatable(self) -> bool:
        return self.apply_policy in ("", DEFAULT)


def parse(annotations: Mapping[str, str]) -> NodeReservation | Malformed | None:
    return read(annotations, A_NODE_RESERVATION, NodeReservation, lambda v: v.resources.values())


def dump(value: NodeReservation) -> str:
    return written(value)


def reserves_per_numa_node(labels: Mapping[str, str]) -> bool:
    return labels.get(L_ENABLE_NUMA_RESERVATION) == TRUE
