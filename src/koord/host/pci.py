"""PCI and RDMA devices from sysfs: where they are attached, their ports' health and their virtual functions."""

from __future__ import annotations

import re

import msgspec

from koord.host.fault import Fault
from koord.host.host import Host
from koord.values.quotation import integer

_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")


class Seat(msgspec.Struct, frozen=True):
    """Where a PCI device is attached. `numa` is 0 where the machine does not say; `root` is such as pci0000:00."""

    numa: int
    root: str


def addresses(host: Host) -> list[str] | Fault:
    return host.names(f"{host.paths.sys}/bus/pci/devices")


def folder(host: Host, address: str) -> str:
    return f"{host.paths.sys}/bus/pci/devices/{address}"


def attribute(host: Host, address: str, name: str) -> str:
    """Return the text of one of the device's files; "" when it has none."""
    text = host.read(f"{folder(host, address)}/{name}")
    return "" if isinstance(text, Fault) else text.strip()


def seat(host: Host, address: str) -> Seat:
    found = _ROOT.search(host.resolved(folder(host, address)))
    return Seat(max(integer(attribute(host, address, "numa_node")) or 0, 0), found[0] if found else "")
