"""The character devices of RDMA: which one belongs to a PCI function, and the numbers by which the kernel knows it."""

from __future__ import annotations

import os
import stat

import msgspec

from koord.host.devices import pci_device_dir
from koord.host.filesystem import Host
from koord.host.io_error import OPEN, IoError, malformed, unsupported

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
