"""Accelerators that a vendor's plugin describes in files: one JSON list of devices per file."""

from __future__ import annotations

import msgspec

from koord.api.model import decode
from koord.host.filesystem import Host
from koord.host.hardware import Xpu
from koord.host.io_error import IoError, malformed


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
