"""koordinator.sh/memoryQOS: one pod's override of the node's memory strategy."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.protocol import A_MEMORY_QOS
from koord.api.slo_strategy import MemoryQOS

DEFAULT = "default"  # the node's settings
NONE = "none"  # nothing for this pod
AUTO = "auto"  # the built-in settings of the pod's QoS class
POLICIES = (DEFAULT, NONE, AUTO)


class PodMemoryQOS(MemoryQOS, frozen=True, kw_only=True):
    """PodMemoryQOS is koordinator.sh/memoryQOS: one pod's override of the node's memory strategy."""
    policy: str = ""

    @property
    def effective_policy(self) -> str:
        return self.policy or DEFAULT


def parse(annotations: Mapping[str, str]) -> PodMemoryQOS | Malformed | None:
    return read(annotations, A_MEMORY_QOS, PodMemoryQOS)


def dump(value: PodMemoryQOS) -> str:
    return written(value)
