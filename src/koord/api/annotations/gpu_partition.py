"""GPU partitions: what a pod asks of them (gpu-partition-spec) and which ones a Device has (gpu-partitions)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part, QuantityText
from koord.api.protocol import A_GPU_PARTITION_SPEC, A_GPU_PARTITIONS, L_GPU_PARTITION_POLICY

RESTRICTED = "Restricted"
BEST_EFFORT = "BestEffort"

HONOR = "Honor"
PREFER = "Prefer"

NVLINK = "NVLink"


class GPUPartitionSpec(Part, frozen=True, kw_only=True):
    """GPUPartitionSpec is what a pod asks of GPU partitions."""
    allocate_policy: str = ""
    ring_bus_bandwidth: QuantityText | None = None

    @property
    def effective_policy(self) -> str:
        return self.allocate_policy or BEST_EFFORT


class GPUPartition(Part, frozen=True, kw_only=True):
    """GPUPartition is one partition that a Device has."""
    minors: tuple[int, ...] = ()
    gpu_link_type: str = ""
    ring_bus_bandwidth: QuantityText | None = None
    allocation_score: int = 0


GPUPartitionTable = dict[int, tuple[GPUPartition, ...]]  # number of GPUs -> partitions of that size


def parse_spec(annotations: Mapping[str, str]) -> GPUPartitionSpec | Malformed | None:
    return read(annotations, A_GPU_PARTITION_SPEC, GPUPartitionSpec, _asked)


def _asked(value: GPUPartitionSpec) -> tuple[QuantityText, ...]:
    return () if value.ring_bus_bandwidth is None else (value.ring_bus_bandwidth,)


def dump_spec(value: GPUPartitionSpec) -> str:
    return written(value)


def parse_table(annotations: Mapping[str, str]) -> GPUPartitionTable | Malformed | None:
    """Parse the partition table of a Device. Here null is malformed and not a missing table."""
    if annotations.get(A_GPU_PARTITIONS, "").strip() == "null":
        return Malformed(A_GPU_PARTITIONS, "the partition table is null")
    return read(annotations, A_GPU_PARTITIONS, GPUPartitionTable, _offered)


def _offered(value: GPUPartitionTable) -> list[QuantityText]:
    every = (partition for partitions in value.values() for partition in partitions)
    return [p.ring_bus_bandwidth for p in every if p.ring_bus_bandwidth is not None]


def dump_table(value: Mapping[int, Sequence[GPUPartition]]) -> str:
    """Format the table. Go sorts the keys of a map as text, numbers too."""
    return written({str(size): partitions for size, partitions in value.items()})


def partition_policy(labels: Mapping[str, str]) -> str:
    """Return the node's policy: Honor binds the scheduler to the table; anything else only makes it preferred."""
    return HONOR if labels.get(L_GPU_PARTITION_POLICY) == HONOR else PREFER
