"""Which disk stands behind a device, a volume group or a pod's volume, by the kernel's major and minor numbers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

DEVICE = "device"
VOLUME_GROUP = "volumegroup"
POD_VOLUME = "podvolume"


class Disks(msgspec.Struct, frozen=True, kw_only=True):
    """The storage of a node; devices are paths such as /dev/vda."""

    numbers: Mapping[str, str] = {}  # disk: major:minor
    partitions: Mapping[str, str] = {}  # partition: disk
    volume_groups: Mapping[str, str] = {}  # name: disk
    logical_volumes: Mapping[str, str] = {}  # device: volume group
    mounts: Mapping[str, str] = {}  # mount point: device

    def of_device(self, device: str) -> str | None:
        return self.numbers.get(self.partitions.get(device, device))

    def of_volume_group(self, name: str) -> str | None:
        disk = self.volume_groups.get(name)
        return None if disk is None else self.of_device(disk)

    def of_mount(self, point: str) -> str | None:
        device = self.mounts.get(point)
        if device is None:
            return None
        return self.of_device(device) or self.of_volume_group(self.logical_volumes.get(device, ""))
