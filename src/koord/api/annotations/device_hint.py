"""scheduling.koordinator.sh/device-allocate-hint: which devices of a type a pod wants, and how they are counted."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.meta import LabelSelector
from koord.api.part import Part
from koord.api.protocol import A_DEVICE_ALLOCATE_HINT

APPLY_FOR_ALL = "ApplyForAll"
REQUESTS_AS_COUNT = "RequestsAsCount"

DEVICE_LEVEL = "DeviceLevel"
PCIE_LEVEL = "PCIeLevel"

# A tighter scope has the greater number.
SCOPES = {"Device": 4, "PCIe": 3, "NUMANode": 2, "Node": 1}


class DeviceHint(Part, frozen=True, kw_only=True):
    """DeviceHint says which devices of a type a pod wants, and how they are counted (device-allocate-hint)."""
    selector: LabelSelector | None = None
    vf_selector: LabelSelector | None = None
    allocate_strategy: str = ""
    required_topology_scope: str = ""
    exclusive_policy: str = ""


DeviceHints = dict[str, DeviceHint]


def parse(annotations: Mapping[str, str]) -> DeviceHints | Malformed | None:
    return read(annotations, A_DEVICE_ALLOCATE_HINT, DeviceHints)


def dump(value: Mapping[str, DeviceHint]) -> str:
    return written(value)
