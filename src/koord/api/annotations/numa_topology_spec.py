"""scheduling.koordinator.sh/numa-topology-spec: how tightly a pod wants to sit on NUMA nodes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_NUMA_TOPOLOGY_SPEC

NONE = ""
BEST_EFFORT = "BestEffort"
RESTRICTED = "Restricted"
SINGLE_NUMA_NODE = "SingleNUMANode"
POLICIES = (NONE, BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE)

PREFERRED = "Preferred"
REQUIRED = "Required"


class NUMATopologySpec(Part, frozen=True, kw_only=True):
    """NUMATopologySpec is scheduling.koordinator.sh/numa-topology-spec: how tightly a pod is aligned to NUMA nodes."""
    numa_topology_policy: str = ""
    single_numa_node_exclusive: str = field(default="", name="singleNUMANodeExclusive")


def parse(annotations: Mapping[str, str]) -> NUMATopologySpec | Malformed | None:
    return read(annotations, A_NUMA_TOPOLOGY_SPEC, NUMATopologySpec)


def dump(value: NUMATopologySpec) -> str:
    return written(value)
