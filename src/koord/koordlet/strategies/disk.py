"""The machine as strategies see it: its hardware, its block devices, and the interface to its cgroup files.

The real machine is `koord.koordlet.host_machine`; simulated nodes have their own. No method waits, and none raises for
what a node may do: an absent file reads as None, and every write gets a result.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

DEVICE = "device"
VOLUME_GROUP = "volumegroup"
POD_VOLUME = "podvolume"


class Disks(msgspec.Struct, frozen=True, kw_only=True):
    """The block devices of a node: disks, partitions, volume groups and mounts. Devices are paths such as /dev/vda."""

    numbers: Mapping[str, str] = {}  # disk: major:minor
    partitions: Mapping[str, str] = {}  # partition: disk
    volume_groups: Mapping[str, str] = {}  # name: disk
    logical_volumes: Mapping[str, str] = {}  # device: volume group
    mounts: Mapping[str, str] = {}  # mount point: device

    def of_device(self, device: str) -> str | None:
        """Return the major:minor number of the disk that holds a device."""
        return self.numbers.get(self.partitions.get(device, device))

    def of_volume_group(self, name: str) -> str | None:
        """Return the number of the disk that holds a volume group."""
        disk = self.volume_groups.get(name)
        return None if disk is None else self.of_device(disk)

    def of_mount(self, point: str) -> str | None:
        """Return the number of the disk that holds a mount point."""
        device = self.mounts.get(point)
        if device is None:
            return None
        return self.of_device(device) or self.of_volume_group(self.logical_volumes.get(device, ""))
