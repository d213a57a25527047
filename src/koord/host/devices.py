"""Devices: PCI and RDMA cards from sysfs (where they are attached, their ports' health, their virtual functions), and
accelerators that a vendor's plugin describes in files, one JSON list of devices per file.
"""

from __future__ import annotations

import re

import msgspec

from koord.api.model import decode
from koord.host.filesystem import Host
from koord.host.hardware import PciLocation, RdmaCard, Xpu
from koord.host.io_error import IoError, malformed
from koord.values.go_format import parse_decimal_int

_PCI_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")


def pci_addresses(host: Host) -> list[str] | IoError:
    return host.list_names(f"{host.paths.sys}/bus/pci/devices")


def pci_device_dir(host: Host, address: str) -> str:
    return f"{host.paths.sys}/bus/pci/devices/{address}"


def pci_attribute(host: Host, address: str, name: str) -> str:
    """Return the text of one of the device's files; "" when it has none."""
    text = host.read(f"{pci_device_dir(host, address)}/{name}")
    return "" if isinstance(text, IoError) else text.strip()


def pci_location(host: Host, address: str) -> PciLocation:
    found = _PCI_ROOT.search(host.real_path(pci_device_dir(host, address)))
    return PciLocation(
        max(parse_decimal_int(pci_attribute(host, address, "numa_node")) or 0, 0), found[0] if found else ""
    )


_NETWORK = "0x02"  # the class of network controllers
_NUMBERED = re.compile(r"mlx\d+_(\d+)")


def rdma_cards(host: Host) -> list[RdmaCard] | IoError:
    """Return the cards by minor. Cards whose name has no number cannot be told apart and are left out."""
    addresses = pci_addresses(host)
    if isinstance(addresses, IoError):
        return addresses
    found: list[RdmaCard] = []
    for address in addresses:
        folder = pci_device_dir(host, address)
        if not pci_attribute(host, address, "class").startswith(_NETWORK) or host.exists(f"{folder}/physfn"):
            continue  # no network card, or itself a virtual function
        names = host.list_names(f"{folder}/infiniband")
        numbered = _NUMBERED.fullmatch(names[0]) if not isinstance(names, IoError) and names else None
        if isinstance(names, IoError) or numbered is None:
            continue
        found.append(
            RdmaCard(
                address=address,
                minor=int(numbered[1]),
                healthy=all(_active(host, f"{folder}/infiniband/{name}/ports") for name in names),
                location=pci_location(host, address),
                virtual_functions=_functions(host, address),
            )
        )
    return sorted(found, key=lambda card: card.minor)


def _active(host: Host, ports: str) -> bool:
    numbers = host.list_names(ports)
    if isinstance(numbers, IoError) or not numbers:
        return False
    states = [host.read(f"{ports}/{number}/state") for number in numbers]
    return all(isinstance(state, str) and "ACTIVE" in state for state in states)


def _functions(host: Host, address: str) -> tuple[str, ...]:
    if (parse_decimal_int(pci_attribute(host, address, "sriov_numvfs")) or 0) <= 0:
        return ()
    names = host.list_names(pci_device_dir(host, address))
    links = [name for name in ([] if isinstance(names, IoError) else names) if name.startswith("virtfn")]
    links.sort(key=lambda name: parse_decimal_int(name.removeprefix("virtfn")) or 0)
    targets = [host.read_link(f"{pci_device_dir(host, address)}/{name}") for name in links]
    return tuple(target.rpartition("/")[2] for target in targets if isinstance(target, str))


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
