"""The devices and folders of the host that a decision names, found or made on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from koord.host.filesystem import Host
from koord.host.io_error import OPEN, IoError
from koord.host.rdma_devices import character_device, verbs_device
from koord.koordlet.hooks.hook import DeviceNode, Mount, RdmaFunction
from koord.koordlet.hooks.registry import HookDecision
from koord.wire.nri_objects import LinuxDevice

_CHARACTER = "c"
_OPEN_TO_ALL = 0o777


def find_devices(host: Host, decision: HookDecision) -> list[LinuxDevice] | IoError:
    """Return the devices with their numbers; one that is missing leaves the container without any."""
    wanted = list(decision.devices)
    for function in decision.rdma:
        node = _verbs_node(host, function)
        if isinstance(node, IoError):
            return node
        wanted.append(node)
    found: list[LinuxDevice] = []
    for one in wanted:
        device = character_device(host, one.path)
        if isinstance(device, IoError):
            return device
        found.append(
            LinuxDevice(path=one.path, type=_CHARACTER, major=device.major, minor=device.minor, file_mode=one.mode)
        )
    return found


def make_fresh_folders(mounts: Iterable[Mount]) -> IoError | None:
    """Make the folders that belong to one container alone, empty and open to all of its users."""
    for mount in mounts:
        if not mount.fresh_directory:
            continue
        folder = Path(mount.source)
        try:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
            folder.chmod(_OPEN_TO_ALL)
        except OSError as error:
            return IoError(mount.source, OPEN, error.errno or 0, str(error))
    return None


def _verbs_node(host: Host, function: RdmaFunction) -> DeviceNode | IoError:
    path = verbs_device(host, function.pci_address)
    return path if isinstance(path, IoError) else DeviceNode(path=path)
