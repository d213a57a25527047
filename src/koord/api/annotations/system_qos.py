"""node.koordinator.sh/system-qos-resource: the CPUs of SYSTEM pods."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_SYSTEM_QOS_RESOURCE


class SystemQOSResource(Part, frozen=True, kw_only=True):
    """SystemQOSResource is node.koordinator.sh/system-qos-resource: the CPUs of SYSTEM pods."""
    cpuset: str = ""
    cpuset_exclusive: bool | None = None

    @property
    def is_exclusive(self) -> bool:
        return self.cpuset_exclusive is not False


def parse(annotations: Mapping[str, str]) -> SystemQOSResource | Malformed | None:
    return read(annotations, A_SYSTEM_QOS_RESOURCE, SystemQOSResource)


def dump(value: SystemQOSResource) -> str:
    return written(value)
