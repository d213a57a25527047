"""Disks, partitions, volume groups and mounts from sysfs and mountinfo; lsblk, vgs and lvs need not be installed."""

from __future__ import annotations

import re

from koord.host.filesystem import Host
from koord.host.hardware import BlockDevices
from koord.host.io_error import IoError

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
    """Return the volume group of a device-mapper name such as `my--group-data`: one dash separates the names, two stand
    for a dash inside a name.
    """
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
