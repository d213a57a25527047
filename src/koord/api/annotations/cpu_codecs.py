"""This module holds the codecs of CPUs: topology, model and pools of a node, normalization, core scheduling; CPU
binding and NUMA placement that a pod asks for and was given, and node labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import field

from koord.api.annotations.codec import MalformedAnnotation, dump_json, parse_json
from koord.api.koordinator import protocol
from koord.api.model import QuantityText, ResourceList, Submodel
from koord.api.schema_markers import never_omitted
from koord.values.go_format import parse_bool, parse_finite_float


class CPUInfo(Submodel, frozen=True, kw_only=True):
    id: int = never_omitted(0)
    core: int = never_omitted(0)
    socket: int = never_omitted(0)
    node: int = never_omitted(0)


class CPUTopology(Submodel, frozen=True, kw_only=True):
    """CPUTopology is node.koordinator.sh/cpu-topology: every logical CPU with its core, socket and NUMA node."""

    detail: tuple[CPUInfo, ...] = never_omitted(())


def parse_cpu_topology(annotations: Mapping[str, str]) -> CPUTopology | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_CPU_TOPOLOGY, CPUTopology)


def dump_cpu_topology(value: CPUTopology) -> str:
    return dump_json(value)


class CPUBasicInfo(Submodel, frozen=True, kw_only=True):
    """CPUBasicInfo is node.koordinator.sh/cpu-basic-info: the CPU model and the switches that change its speed."""

    cpu_model: str = ""
    hyper_thread_enabled: bool = False
    turbo_enabled: bool = False
    cat_l3_cbm_mask: str = field(default="", name="catL3CbmMask")
    vendor_id: str = field(default="", name="vendorID")


def parse_cpu_basic_info(annotations: Mapping[str, str]) -> CPUBasicInfo | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_CPU_BASIC_INFO, CPUBasicInfo)


def dump_cpu_basic_info(value: CPUBasicInfo) -> str:
    return dump_json(value)


CPU_MANAGER_STATIC = "static"
CPU_MANAGER_FULL_PCPUS_ONLY = "full-pcpus-only"


class CPUManagerPolicy(Submodel, frozen=True, kw_only=True):
    """CPUManagerPolicy is kubelet.koordinator.sh/cpu-manager-policy: how the kubelet itself binds CPUs on this node."""

    policy: str = ""
    options: dict[str, str] = {}
    reserved_cpus: str = field(default="", name="reservedCPUs")

    @property
    def wants_full_cores(self) -> bool:
        return self.policy == CPU_MANAGER_STATIC and self.options.get(CPU_MANAGER_FULL_PCPUS_ONLY) == protocol.TRUE


def parse_cpu_manager_policy(annotations: Mapping[str, str]) -> CPUManagerPolicy | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_CPU_MANAGER_POLICY, CPUManagerPolicy)


def dump_cpu_manager_policy(value: CPUManagerPolicy) -> str:
    return dump_json(value)


CPU_NORMALIZATION_EPSILON = 0.01  # ratios closer than this are the same
CPU_NORMALIZATION_NO_EFFECT = "1.00"


def parse_cpu_normalization_ratio(annotations: Mapping[str, str]) -> float | MalformedAnnotation | None:
    """Parse the CPU normalization ratio that the manager found for a node."""
    text = annotations.get(protocol.A_CPU_NORMALIZATION_RATIO)
    if text is None:
        return None
    ratio = parse_finite_float(text)
    if ratio is None or ratio <= 0:
        return MalformedAnnotation(protocol.A_CPU_NORMALIZATION_RATIO, f"{text!r} is not a positive number")
    return ratio


def dump_cpu_normalization_ratio(value: float) -> str:
    return f"{value:.2f}"


def parse_cpu_normalization_enabled(labels: Mapping[str, str]) -> bool | MalformedAnnotation | None:
    """Parse the label that switches normalization of a node; it overrides the strategy's own switch."""
    text = labels.get(protocol.L_CPU_NORMALIZATION_ENABLED)
    if text is None:
        return None
    enabled = parse_bool(text)
    return (
        MalformedAnnotation(protocol.L_CPU_NORMALIZATION_ENABLED, f"{text!r} is not a boolean")
        if enabled is None
        else enabled
    )


class CPUSharedPool(Submodel, frozen=True, kw_only=True):
    socket: int = never_omitted(0)
    node: int = never_omitted(0)
    cpuset: str = ""


def dump_cpu_shared_pools(value: Sequence[CPUSharedPool]) -> str:
    return dump_json(value)


class PodCPUAlloc(Submodel, frozen=True, kw_only=True):
    """PodCPUAlloc is one entry of node.koordinator.sh/pod-cpu-allocs: a pod whose CPUs the kubelet bound by itself."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    cpuset: str = ""
    managed_by_kubelet: bool = False


def parse_pod_cpu_allocs(annotations: Mapping[str, str]) -> tuple[PodCPUAlloc, ...] | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_POD_CPU_ALLOCS, tuple[PodCPUAlloc, ...])


def dump_pod_cpu_allocs(value: Sequence[PodCPUAlloc]) -> str:
    return dump_json(value)


class SystemQOSResource(Submodel, frozen=True, kw_only=True):
    """SystemQOSResource is node.koordinator.sh/system-qos-resource: the CPUs of SYSTEM pods."""

    cpuset: str = ""
    cpuset_exclusive: bool | None = None

    @property
    def is_exclusive(self) -> bool:
        return self.cpuset_exclusive is not False


def parse_system_qos_resource(annotations: Mapping[str, str]) -> SystemQOSResource | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_SYSTEM_QOS_RESOURCE, SystemQOSResource)


def dump_system_qos_resource(value: SystemQOSResource) -> str:
    return dump_json(value)


CORE_SCHED_DEFAULT = ""
CORE_SCHED_NONE = "none"
CORE_SCHED_EXCLUSIVE = "exclusive"
CORE_SCHED_POLICIES = (CORE_SCHED_DEFAULT, CORE_SCHED_NONE, CORE_SCHED_EXCLUSIVE)


def parse_core_sched_policy(labels: Mapping[str, str]) -> str | MalformedAnnotation:
    """Parse koordinator.sh/core-sched-policy, which says with which pods a pod may share a physical core."""
    stated = labels.get(protocol.L_CORE_SCHED_POLICY, CORE_SCHED_DEFAULT)
    if stated not in CORE_SCHED_POLICIES:
        return MalformedAnnotation(protocol.L_CORE_SCHED_POLICY, f"{stated!r} is not one of '', 'none', 'exclusive'")
    return stated


def core_sched_group_id(labels: Mapping[str, str], pod_uid: str) -> str | MalformedAnnotation | None:
    """Return the core-scheduling group of a pod: its own if exclusive, None if it opted out, else the label's."""
    policy = parse_core_sched_policy(labels)
    if isinstance(policy, MalformedAnnotation):
        return policy
    if policy == CORE_SCHED_NONE:
        return None
    return pod_uid if policy == CORE_SCHED_EXCLUSIVE else labels.get(protocol.L_CORE_SCHED_GROUP_ID, "")


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
