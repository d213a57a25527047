"""The resctrl file system: whether it is supported and mounted, its groups, their threads and monitors.

Schemata are written through the knob table; masks and percentages are decided by strategies.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.host import libc
from koord.host.cgroup.device_codec import Schemata
from koord.host.cgroup.stat import parse_ids
from koord.host.fault import Fault, lacking, malformed
from koord.host.host import Host
from koord.host.processor import cpu_model
from koord.values.quotation import integer

_CAT, _MBA = "cat_l3", "mba"


class Monitor(msgspec.Struct, frozen=True):
    """The monitors of one cache domain of one group."""

    cache: int
    llc_bytes: int
    mbm_local_bytes: int
    mbm_total_bytes: int


class Allocation(msgspec.Struct, frozen=True):
    """A group's schemata by cache id."""

    l3: dict[int, int]
    mb: dict[int, int]


def folder(host: Host, group: str = "") -> str:
    """Return the directory of a group."""
    return "/".join(filter(None, (host.paths.sys_fs, "resctrl", group)))


def supported(host: Host) -> Fault | None:
    """Return None when the processor supports both kinds of allocation (CAT and MBA)."""
    model = cpu_model(host)
    if isinstance(model, Fault):
        return model
    missing = [flag for flag in (_CAT, _MBA) if flag not in model.flags]
    return lacking(f"{host.paths.proc}/cpuinfo", f"no {' and no '.join(missing)} in flags") if missing else None


def mounted(host: Host) -> bool:
    return host.exists(f"{folder(host)}/info/L3/cbm_mask")


def mount(host: Host) -> Fault | None:
    """Mount the file system at its usual path; a processor without the feature refuses."""
    return None if mounted(host) else libc.mount("resctrl", folder(host), "resctrl")


def cbm_mask(host: Host) -> int | Fault:
    """Return the full L3 mask, which must be contiguous ones."""
    path = f"{folder(host)}/info/L3/cbm_mask"
    text = host.read(path)
    if isinstance(text, Fault):
        return text
    try:
        mask = int(text.strip(), 16)
    except ValueError:
        mask = 0
    return mask if mask > 0 and mask & (mask + 1) == 0 else malformed(path, f"{text.strip()!r} is no run of ones")


def allocation(host: Host, group: str = "") -> Allocation | Fault:
    path = f"{folder(host, group)}/schemata"
    text = host.read(path)
    if isinstance(text, Fault):
        return text
    l3, mb = Schemata("L3", 16), Schemata("MB", 10)
    found = Allocation(l3.domains(l3.pick(text, "L3") or ""), mb.domains(mb.pick(text, "MB") or ""))
    return found if found.l3 or found.mb else malformed(path, "neither L3 nor MB")


def make_group(host: Host, group: str) -> Fault | None:
    return host.make_folder(folder(host, group))


def remove_group(host: Host, group: str) -> Fault | None:
    return host.remove_folder(folder(host, group))


def groups(host: Host) -> list[str] | Fault:
    names = host.folders(folder(host))
    if isinstance(names, Fault):
        return names
    return [name for name in names if name not in ("info", "mon_data", "mon_groups")]


def tasks(host: Host, group: str) -> list[int] | Fault:
    text = host.read(f"{folder(host, group)}/tasks")
    return text if isinstance(text, Fault) else parse_ids(text)


def add_tasks(host: Host, group: str, ids: Iterable[int]) -> list[Fault]:
    """Add each thread by a write of its own: a thread that ended meanwhile must not keep the others out."""
    path = f"{folder(host, group)}/tasks"
    faults = [host.write_each(path, (f"{one}\n",)) for one in sorted(ids)]
    return [fault for fault in faults if fault is not None]


def monitors(host: Host, group: str) -> list[Monitor] | Fault:
    """Return the monitors of a group by cache."""
    base = f"{folder(host, group)}/mon_data"
    domains = host.folders(base)
    if isinstance(domains, Fault):
        return domains
    found: list[Monitor] = []
    for domain in domains:
        parts = domain.split("_")  # mon_L3_00
        cache = integer(parts[2]) if len(parts) > 2 else None
        if cache is None:
            return malformed(f"{base}/{domain}", "no cache id in the name")
        counts: list[int] = []
        for name in ("llc_occupancy", "mbm_local_bytes", "mbm_total_bytes"):
            text = host.read(f"{base}/{domain}/{name}")
            if isinstance(text, Fault):
                return text
            number = integer(text.strip())
            if number is None:  # "Unavailable" while the hardware counts for another group
                return malformed(f"{base}/{domain}/{name}", text.strip())
            counts.append(number)
        found.append(Monitor(cache, *counts))
    return found
