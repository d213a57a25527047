"""Devices from sysfs: PCI and RDMA cards with their character devices and the numbers by which the kernel knows these,
disks, volume groups and mounts (lsblk, vgs and lvs need not be installed).

Accelerators that a vendor's plugin describes come from files, one JSON list of devices per file.
"""

from __future__ import annotations

import os
import re
import stat
from itertools import count

import msgspec

from koord.api.model import decode
from koord.host.filesystem import Host
from koord.host.hardware import BlockDevices, PciLocation, RdmaCard, Xpu
from koord.host.io_error import OPEN, IoError, malformed, unsupported
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
    """Return the cards by minor: the number in a name such as mlx5_2. Cards that are named otherwise, such as
    rocep59s0, have the numbers that are left, in order of their addresses.
    """
    addresses = pci_addresses(host)
    if isinstance(addresses, IoError):
        return addresses
    first_names: dict[str, str] = {}
    for address in addresses:
        folder = pci_device_dir(host, address)
        if not pci_attribute(host, address, "class").startswith(_NETWORK) or host.exists(f"{folder}/physfn"):
            continue  # no network card, or itself a virtual function
        names = host.list_names(f"{folder}/infiniband")
        if not isinstance(names, IoError) and names:
            first_names[address] = names[0]
    numbered = {address: int(match[1]) for address, name in first_names.items() if (match := _NUMBERED.fullmatch(name))}
    taken = set(numbered.values())
    free = (number for number in count() if number not in taken)
    found = [
        RdmaCard(
            address=address,
            minor=numbered[address] if address in numbered else next(free),
            healthy=_active(host, f"{pci_device_dir(host, address)}/infiniband/{name}/ports"),
            location=pci_location(host, address),
            virtual_functions=_functions(host, address),
        )
        for address, name in sorted(first_names.items())
    ]
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
    """Return the devices of all files, none without the directory. One bad file is an error: half is not all."""
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


_LVM = "LVM-"
_OCTAL = re.compile(r"\\([0-7]{3})")


def storage(host: Host) -> BlockDevices | IoError:
    block = f"{host.paths.sys}/block"
    names = host.list_names(block)
    if isinstance(names, IoError):
        return names
    disks: dict[str, str] = {}
    partitions: dict[str, str] = {}
    for name in names:
        number = _text(host, f"{block}/{name}/dev")
        if not number or name.startswith(("dm-", "loop", "ram", "zram")):
            continue
        disks[f"/dev/{name}"] = number
        for part in _names(host, f"{block}/{name}"):
            if part.startswith(name) and host.exists(f"{block}/{name}/{part}/partition"):
                partitions[f"/dev/{part}"] = f"/dev/{name}"
    groups: dict[str, set[str]] = {}
    volumes: dict[str, str] = {}
    for name in names:
        label = _text(host, f"{block}/{name}/dm/name")
        if not label or not _text(host, f"{block}/{name}/dm/uuid").startswith(_LVM):
            continue
        group = volume_group_of_mapper_name(label)
        volumes[f"/dev/mapper/{label}"] = group
        groups.setdefault(group, set()).update(_names(host, f"{block}/{name}/slaves"))
    on_one = {group: f"/dev/{next(iter(below))}" for group, below in groups.items() if len(below) == 1}
    mounts = _mounts(host)
    if isinstance(mounts, IoError):
        return mounts
    return BlockDevices(
        disks=disks,
        partitions=partitions,
        volume_groups={group: partitions.get(device, device) for group, device in on_one.items()},
        logical_volumes=volumes,
        mounts=mounts,
    )


def volume_group_of_mapper_name(label: str) -> str:
    """Return the volume group of a device-mapper name such as `my--group-data`: two dashes stand for one."""
    return label.replace("--", "\0").partition("-")[0].replace("\0", "-")


def _mounts(host: Host) -> dict[str, str] | IoError:
    """Return the mounts as the machine's first process sees them, not the agent's container."""
    text = host.read(f"{host.paths.proc}/1/mountinfo")
    if isinstance(text, IoError):
        return text
    found: dict[str, str] = {}
    for line in text.splitlines():
        head, dash, tail = line.partition(" - ")
        words, rest = head.split(), tail.split()
        if dash and len(words) > 4 and len(rest) > 1:
            found[_unescape_octal(words[4])] = _unescape_octal(rest[1])
    return found


def _unescape_octal(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)


def _names(host: Host, path: str) -> list[str]:
    names = host.list_names(path)
    return [] if isinstance(names, IoError) else names


def _text(host: Host, path: str) -> str:
    text = host.read(path)
    return "" if isinstance(text, IoError) else text.strip()


DEV = "/dev"
INFINIBAND = f"{DEV}/infiniband"


class CharacterDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A character device of the host. `path` is as the host and the container name it."""

    path: str
    major: int
    minor: int


def verbs_device(host: Host, pci_address: str) -> str | IoError:
    """Return the path of the verbs device of a PCI function, such as /dev/infiniband/uverbs0."""
    folder = f"{pci_device_dir(host, pci_address)}/infiniband_verbs"
    names = host.list_names(folder)
    if isinstance(names, IoError):
        return names
    return f"{INFINIBAND}/{names[0]}" if names else unsupported(folder, "the function has no verbs device")


def character_device(host: Host, path: str) -> CharacterDevice | IoError:
    """Return a device below /dev with its numbers. Where the agent sees the host's /dev is one of the host's paths."""
    seen = f"{host.paths.dev}/{path.removeprefix(f'{DEV}/')}"
    try:
        found = os.stat(seen)
    except OSError as error:
        return IoError(seen, OPEN, error.errno or 0, "" if error.errno else str(error))
    if not stat.S_ISCHR(found.st_mode):
        return malformed(seen, "not a character device")
    return CharacterDevice(path=path, major=os.major(found.st_rdev), minor=os.minor(found.st_rdev))
