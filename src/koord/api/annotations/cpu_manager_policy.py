"""kubelet.koordinator.sh/cpu-manager-policy: how the kubelet itself binds CPUs on this node."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_CPU_MANAGER_POLICY, TRUE

STATIC = "static"
NONE = "none"
FULL_PCPUS_ONLY = "full-pcpus-only"
DISTRIBUTE_ACROSS_NUMA = "distribute-cpus-across-numa"


class CPUManagerPolicy(Part, frozen=True, kw_only=True):
    """CPUManagerPolicy is kubelet.koordinator.sh/cpu-manager-policy: how the kubelet itself binds CPUs on this node."""
    policy: str = ""
    options: dict[str, str] = {}
    reserved_cpus: str = field(default="", name="reservedCPUs")

    @property
    def wants_full_cores(self) -> bool:
        return self.policy == STATIC and self.options.get(FULL_PCPUS_ONLY) == TRUE


def parse(annotations: Mapping[str, str]) -> CPUManagerPolicy | Malformed | None:
    return read(annotations, A_CPU_MANAGER_POLICY, CPUManagerPolicy)


def dump(value: CPUManagerPolicy) -> str:
    return written(value)
