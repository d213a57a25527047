"""This module holds the codecs of devices: what a pod has and asks for, and the partitions of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import field

from koord.api.annotations.codec import MalformedAnnotation, dump_json, parse_json
from koord.api.koordinator import protocol
from koord.api.kubernetes.meta import LabelSelector
from koord.api.model import QuantityText, ResourceList, Submodel
from koord.api.schema_markers import never_omitted, never_omitted_resources


class AllocatedVirtualFunction(Submodel, frozen=True, kw_only=True):
    """AllocatedVirtualFunction may lack `minor` on the wire: older schedulers wrote only the bus."""

    minor: int = 0
    bus_id: str = field(default="", name="busID")


class AllocationExtension(Submodel, frozen=True, kw_only=True):
    vfs: tuple[AllocatedVirtualFunction, ...] = ()
    gpu_shared_resource_template: str = ""


class AllocatedDevice(Submodel, frozen=True, kw_only=True):
    """AllocatedDevice is one device of a pod. `minor` and `resources` are always written, even when empty."""

    minor: int = never_omitted(0)
    resources: ResourceList = never_omitted_resources()
    id: str = ""
    extension: AllocationExtension | None = None


DeviceAllocations = dict[str, tuple[AllocatedDevice, ...]]


def parse_device_allocated(annotations: Mapping[str, str]) -> DeviceAllocations | MalformedAnnotation | None:
    """Parse scheduling.koordinator.sh/device-allocated: the devices that the scheduler gave a pod, by device type."""
    return parse_json(annotations, protocol.A_DEVICE_ALLOCATED, DeviceAllocations, _amounts)


def _amounts(value: DeviceAllocations) -> Iterator[QuantityText]:
    for devices in value.values():
        for device in devices:
            yield from device.resources.values()


APPLY_FOR_ALL = "ApplyForAll"
REQUESTS_AS_COUNT = "RequestsAsCount"

DEVICE_LEVEL = "DeviceLevel"
PCIE_LEVEL = "PCIeLevel"

# A tighter scope has the greater number.
DEVICE_TOPOLOGY_SCOPES = {"Device": 4, "PCIe": 3, "NUMANode": 2, "Node": 1}


class DeviceHint(Submodel, frozen=True, kw_only=True):
    """DeviceHint says which devices of a type a pod wants, and how they are counted (device-allocate-hint)."""

    selector: LabelSelector | None = None
    vf_selector: LabelSelector | None = None
    allocate_strategy: str = ""
    required_topology_scope: str = ""
    exclusive_policy: str = ""


DeviceHints = dict[str, DeviceHint]


def parse_device_hints(annotations: Mapping[str, str]) -> DeviceHints | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_DEVICE_ALLOCATE_HINT, DeviceHints)


SAME_PCIE = "SamePCIe"


class DeviceJointAllocate(Submodel, frozen=True, kw_only=True):
    """DeviceJointAllocate names device types that must come from one place; the first leads."""

    device_types: tuple[str, ...] = ()
    required_scope: str = ""


def parse_device_joint_allocate(annotations: Mapping[str, str]) -> DeviceJointAllocate | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_DEVICE_JOINT_ALLOCATE, DeviceJointAllocate)


GPU_PARTITION_RESTRICTED = "Restricted"
GPU_PARTITION_BEST_EFFORT = "BestEffort"

GPU_PARTITION_HONOR = "Honor"
GPU_PARTITION_PREFER = "Prefer"

NVLINK = "NVLink"


class GPUPartitionSpec(Submodel, frozen=True, kw_only=True):
    """GPUPartitionSpec is what a pod asks of GPU partitions."""

    allocate_policy: str = ""
    ring_bus_bandwidth: QuantityText | None = None

    @property
    def effective_policy(self) -> str:
        return self.allocate_policy or GPU_PARTITION_BEST_EFFORT


class GPUPartition(Submodel, frozen=True, kw_only=True):
    """GPUPartition is one partition that a Device has."""

    minors: tuple[int, ...] = ()
    gpu_link_type: str = ""
    ring_bus_bandwidth: QuantityText | None = None
    allocation_score: int = 0


GPUPartitionTable = dict[int, tuple[GPUPartition, ...]]  # number of GPUs -> partitions of that size


def parse_gpu_partition_spec(annotations: Mapping[str, str]) -> GPUPartitionSpec | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_GPU_PARTITION_SPEC, GPUPartitionSpec, _spec_bandwidths)


def _spec_bandwidths(value: GPUPartitionSpec) -> tuple[QuantityText, ...]:
    return () if value.ring_bus_bandwidth is None else (value.ring_bus_bandwidth,)


def parse_gpu_partition_table(annotations: Mapping[str, str]) -> GPUPartitionTable | MalformedAnnotation | None:
    """Parse the partition table of a Device. Here null is malformed and not a missing table."""
    if annotations.get(protocol.A_GPU_PARTITIONS, "").strip() == "null":
        return MalformedAnnotation(protocol.A_GPU_PARTITIONS, "the partition table is null")
    return parse_json(annotations, protocol.A_GPU_PARTITIONS, GPUPartitionTable, _table_bandwidths)


def _table_bandwidths(value: GPUPartitionTable) -> list[QuantityText]:
    every = (partition for partitions in value.values() for partition in partitions)
    return [p.ring_bus_bandwidth for p in every if p.ring_bus_bandwidth is not None]


def dump_gpu_partition_table(value: Mapping[int, Sequence[GPUPartition]]) -> str:
    """Format the table. Go sorts the keys of a map as text, numbers too."""
    return dump_json({str(size): partitions for size, partitions in value.items()})


def node_gpu_partition_policy(labels: Mapping[str, str]) -> str:
    """Return the node's policy: Honor binds the scheduler to the table; anything else only makes it preferred."""
    return (
        GPU_PARTITION_HONOR
        if labels.get(protocol.L_GPU_PARTITION_POLICY) == GPU_PARTITION_HONOR
        else GPU_PARTITION_PREFER
    )


def parse_secondary_device_well_planned(labels: Mapping[str, str]) -> bool | None:
    """Return whether the network cards of a node were laid out to match its GPUs; None when nobody has said."""
    return {protocol.TRUE: True, protocol.FALSE: False}.get(labels.get(protocol.L_SECONDARY_DEVICE_WELL_PLANNED, ""))
