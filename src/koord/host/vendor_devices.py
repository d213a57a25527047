"""Accelerators that a vendor's plugin describes in files: one JSON list of devices per file."""

from __future__ import annotations

import msgspec

from koord.api.model import Model, ResourceList, decode
from koord.host.filesystem import Host
from koord.host.io_error import IoError, malformed


class XpuLink(Model, frozen=True, kw_only=True):
    """A peer-to-peer link. `peer_minor` is a list such as 0,1."""

    peer_minor: str = ""
    type: str = ""


class XpuTopology(Model, frozen=True, kw_only=True):
    p2p_links: tuple[XpuLink, ...] = msgspec.field(default=(), name="p2pLinks")
    must_honor_partition: bool = False
    socket_id: str = msgspec.field(default="", name="socketID")
    node_id: str = msgspec.field(default="", name="nodeID")
    pcie_id: str = msgspec.field(default="", name="pcieID")
    bus_id: str = msgspec.field(default="", name="busID")


class XpuStatus(Model, frozen=True, kw_only=True):
    healthy: bool = False
    err_code: str = ""
    err_message: str = ""


class Xpu(Model, frozen=True, kw_only=True):
    vendor: str = ""
    model: str = ""
    uuid: str = ""
    minor: str = ""
    resources: ResourceList = {}
    topology: XpuTopology | None = None
    status: XpuStatus | None = None


def xpus(host: Host, folder: str) -> list[Xpu] | IoError:
    """Return the devices of all files; none without the directory. One bad file is an error: half of the devices would
    look like all of them.
    """
    names = host.list_names(folder)
    if isinstance(names, IoError):
        return [] if names.vanished else names
    found: list[Xpu] = []
    for name in names:
        path = f"{folder.rstrip('/')}/{name}"
        if host.is_folder(path):
            continue
        text = host.read(path)
        if isinstance(text, IoError):
            return text
        try:
            devices = decode(text.encode(), list[Xpu])
        except msgspec.DecodeError as wrong:
            return malformed(path, str(wrong))
        for one in devices:
            if not one.minor.isdecimal():
                return malformed(path, f"device {one.uuid!r} has no number but {one.minor!r}")
        found += devices
    return sorted(found, key=lambda one: int(one.minor))
