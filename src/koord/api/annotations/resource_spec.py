"""This module holds the codecs of CPU binding and NUMA placement: what a pod asks for, what it was given, and
the labels of a node.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_RESOURCE_SPEC

DEFAULT = "Default"
FULL_PCPUS = "FullPCPUs"
SPREAD_BY_PCPUS = "SpreadByPCPUs"
CONSTRAINED_BURST = "ConstrainedBurst"
BIND_POLICIES = (DEFAULT, FULL_PCPUS, SPREAD_BY_PCPUS, CONSTRAINED_BURST)

EXCLUSIVE_NONE = "None"
EXCLUSIVE_PCPU_LEVEL = "PCPULevel"
EXCLUSIVE_NUMA_NODE_LEVEL = "NUMANodeLevel"
EXCLUSIVE_POLICIES = (EXCLUSIVE_NONE, EXCLUSIVE_PCPU_LEVEL, EXCLUSIVE_NUMA_NODE_LEVEL)


class ResourceSpec(Part, frozen=True, kw_only=True):
    """ResourceSpec is scheduling.koordinator.sh/resource-spec: how a pod wants its CPUs bound."""
    required_cpu_bind_policy: str = field(default="", name="requiredCPUBindPolicy")
    preferred_cpu_bind_policy: str = field(default="", name="preferredCPUBindPolicy")
    preferred_cpu_exclusive_policy: str = field(default="", name="preferredCPUExclusivePolicy")


def parse(annotations: Mapping[str, str]) -> ResourceSpec | Malformed | None:
    return read(annotations, A_RESOURCE_SPEC, ResourceSpec)


def dump(value: ResourceSpec) -> str:
    return written(value)
