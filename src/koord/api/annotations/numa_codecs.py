"""This module holds the codecs of CPU binding and NUMA placement: what a pod asks for and was given, node labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import field

from koord.api.annotations.codec import MalformedAnnotation, parse_json
from koord.api.koordinator import protocol
from koord.api.model import QuantityText, ResourceList, Submodel
from koord.api.schema_markers import never_omitted

CPU_BIND_DEFAULT = "Default"
CPU_BIND_FULL_PCPUS = "FullPCPUs"
CPU_BIND_SPREAD_BY_PCPUS = "SpreadByPCPUs"
CPU_BIND_CONSTRAINED_BURST = "ConstrainedBurst"

CPU_EXCLUSIVE_NONE = "None"
CPU_EXCLUSIVE_PCPU_LEVEL = "PCPULevel"
CPU_EXCLUSIVE_NUMA_NODE_LEVEL = "NUMANodeLevel"


class ResourceSpec(Submodel, frozen=True, kw_only=True):
    """ResourceSpec is scheduling.koordinator.sh/resource-spec: how a pod wants its CPUs bound."""

    required_cpu_bind_policy: str = field(default="", name="requiredCPUBindPolicy")
    preferred_cpu_bind_policy: str = field(default="", name="preferredCPUBindPolicy")
    preferred_cpu_exclusive_policy: str = field(default="", name="preferredCPUExclusivePolicy")


def parse_resource_spec(annotations: Mapping[str, str]) -> ResourceSpec | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_RESOURCE_SPEC, ResourceSpec)


class NUMANodeResource(Submodel, frozen=True, kw_only=True):
    node: int = never_omitted(0)
    resources: ResourceList = {}


class PodResourceStatus(Submodel, frozen=True, kw_only=True):
    """PodResourceStatus is the CPUs and NUMA nodes given to a pod. `cpuset` is a Linux CPU list such as 0-3,8."""

    cpuset: str = ""
    numa_node_resources: tuple[NUMANodeResource, ...] = ()


def parse_resource_status(annotations: Mapping[str, str]) -> PodResourceStatus | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_RESOURCE_STATUS, PodResourceStatus, _amounts)


def _amounts(value: PodResourceStatus) -> Iterator[QuantityText]:
    for node in value.numa_node_resources:
        yield from node.resources.values()


NODE_BIND_NONE = "None"
NODE_BIND_FULL_PCPUS_ONLY = "FullPCPUsOnly"
NODE_BIND_SPREAD_BY_PCPUS = "SpreadByPCPUs"

NUMA_MOST_ALLOCATED = "MostAllocated"
NUMA_LEAST_ALLOCATED = "LeastAllocated"


def node_cpu_bind_policy(labels: Mapping[str, str]) -> str:
    """Return a known CPU bind policy of the node, else None. The caller adds the kubelet's full-pcpus-only."""
    stated = labels.get(protocol.L_CPU_BIND_POLICY)
    return stated if stated in (NODE_BIND_FULL_PCPUS_ONLY, NODE_BIND_SPREAD_BY_PCPUS) else NODE_BIND_NONE


def node_numa_allocate_strategy(labels: Mapping[str, str]) -> str | None:
    """Return the node's NUMA allocate strategy; None leaves it to the plugin's arguments."""
    return labels.get(protocol.L_NUMA_ALLOCATE_STRATEGY) or None


def node_numa_topology_policy(labels: Mapping[str, str]) -> str:
    """Return the node's NUMA topology policy as stated; the values are those of the numa-topology-spec annotation."""
    return labels.get(protocol.L_NUMA_TOPOLOGY_POLICY, "")


NUMA_POLICY_NONE = ""
NUMA_POLICY_BEST_EFFORT = "BestEffort"
NUMA_POLICY_RESTRICTED = "Restricted"
NUMA_POLICY_SINGLE_NUMA_NODE = "SingleNUMANode"
NUMA_TOPOLOGY_POLICIES = (
    NUMA_POLICY_NONE,
    NUMA_POLICY_BEST_EFFORT,
    NUMA_POLICY_RESTRICTED,
    NUMA_POLICY_SINGLE_NUMA_NODE,
)

NUMA_EXCLUSIVE_REQUIRED = "Required"


class NUMATopologySpec(Submodel, frozen=True, kw_only=True):
    """NUMATopologySpec is scheduling.koordinator.sh/numa-topology-spec: how tightly a pod is aligned to NUMA nodes."""

    numa_topology_policy: str = ""
    single_numa_node_exclusive: str = field(default="", name="singleNUMANodeExclusive")


def parse_numa_topology_spec(annotations: Mapping[str, str]) -> NUMATopologySpec | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_NUMA_TOPOLOGY_SPEC, NUMATopologySpec)
