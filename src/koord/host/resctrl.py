"""The resctrl file system: whether it is supported and mounted, its groups, their threads and monitors.

Schemata are written through the knob table; masks and percentages are decided by strategies.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.host import libc
from koord.host.cgroup.codec import SchemataCodec
from koord.host.cgroup.usage import parse_ids
from koord.host.filesystem import Host
from koord.host.hardware import ResctrlLimits
from koord.host.hardware_topology import cpu_model
from koord.host.io_error import IoError, malformed, unsupported
from koord.values.go_format import parse_decimal_int

_CAT, _MBA = "cat_l3", "mba"
_ARM = "0x"  # ARM processors have a number of their implementer instead of a vendor


class CacheMonitor(msgspec.Struct, frozen=True):
    cache: int
    llc_bytes: int
    mbm_local_bytes: int
    mbm_total_bytes: int


class CacheAllocation(msgspec.Struct, frozen=True):
    l3: dict[int, int]
    mb: dict[int, int]


def group_dir(host: Host, group: str = "") -> str:
    return "/".join(filter(None, (host.paths.sys_fs, "resctrl", group)))


def check_supported(host: Host) -> IoError | None:
    """Return None when the processor supports both kinds of allocation (CAT and MBA), or MPAM on ARM."""
    model = cpu_model(host)
    if isinstance(model, IoError):
        return model
    if model.vendor.startswith(_ARM):
        # MPAM has no flags there. The kernel registers the file system only where the machine divides something.
        known = host.read(f"{host.paths.proc}/filesystems")
        if isinstance(known, IoError) or "resctrl" in known.split():
            return known if isinstance(known, IoError) else None
        return unsupported(f"{host.paths.proc}/filesystems", "no resctrl: this machine or kernel has no MPAM")
    missing = [flag for flag in (_CAT, _MBA) if flag not in model.flags]
    return unsupported(f"{host.paths.proc}/cpuinfo", f"no {' and no '.join(missing)} in flags") if missing else None


def is_mounted(host: Host) -> bool:
    return host.exists(f"{group_dir(host)}/info/L3/cbm_mask")


def mount(host: Host) -> IoError | None:
    """Mount the file system at its usual path; a processor without the feature refuses."""
    return None if is_mounted(host) else libc.mount("resctrl", group_dir(host), "resctrl")


def cbm_mask(host: Host) -> int | IoError:
    """Return the full L3 mask, which must be contiguous ones."""
    path = f"{group_dir(host)}/info/L3/cbm_mask"
    text = host.read(path)
    if isinstance(text, IoError):
        return text
    try:
        mask = int(text.strip(), 16)
    except ValueError:
        mask = 0
    return mask if mask > 0 and mask & (mask + 1) == 0 else malformed(path, f"{text.strip()!r} is no run of ones")


def limits(host: Host) -> ResctrlLimits:
    """Return which values the kernel takes; what it does not tell has Intel's value."""
    info, usual = f"{group_dir(host)}/info", ResctrlLimits()

    def number(path: str, default: int) -> int:
        text = host.read(f"{info}/{path}")
        found = None if isinstance(text, IoError) else parse_decimal_int(text.strip())
        return default if found is None or found < 1 else found

    return ResctrlLimits(
        min_ways=number("L3/min_cbm_bits", usual.min_ways),
        has_bandwidth=host.is_folder(f"{info}/MB"),
        min_bandwidth=number("MB/min_bandwidth", usual.min_bandwidth),
        bandwidth_step=number("MB/bandwidth_gran", usual.bandwidth_step),
    )


def read_schemata(host: Host, group: str = "") -> CacheAllocation | IoError:
    path = f"{group_dir(host, group)}/schemata"
    text = host.read(path)
    if isinstance(text, IoError):
        return text
    l3, mb = SchemataCodec("L3", 16), SchemataCodec("MB", 10)
    found = CacheAllocation(l3.domains(l3.extract(text, "L3") or ""), mb.domains(mb.extract(text, "MB") or ""))
    return found if found.l3 or found.mb else malformed(path, "neither L3 nor MB")


def make_group(host: Host, group: str) -> IoError | None:
    return host.make_folder(group_dir(host, group))


def remove_group(host: Host, group: str) -> IoError | None:
    return host.remove_folder(group_dir(host, group))


def groups(host: Host) -> list[str] | IoError:
    names = host.list_folders(group_dir(host))
    if isinstance(names, IoError):
        return names
    return [name for name in names if name not in ("info", "mon_data", "mon_groups")]


def tasks(host: Host, group: str) -> list[int] | IoError:
    text = host.read(f"{group_dir(host, group)}/tasks")
    return text if isinstance(text, IoError) else parse_ids(text)


def add_tasks(host: Host, group: str, ids: Iterable[int]) -> list[IoError]:
    """Add each thread by a write of its own: a thread that ended meanwhile must not keep the others out."""
    path = f"{group_dir(host, group)}/tasks"
    io_errors = [host.write_each(path, (f"{one}\n",)) for one in sorted(ids)]
    return [io_error for io_error in io_errors if io_error is not None]


def monitors(host: Host, group: str) -> list[CacheMonitor] | IoError:
    base = f"{group_dir(host, group)}/mon_data"
    domains = host.list_folders(base)
    if isinstance(domains, IoError):
        return domains
    found: list[CacheMonitor] = []
    for domain in domains:
        parts = domain.split("_")  # mon_L3_00
        cache = parse_decimal_int(parts[2]) if len(parts) > 2 else None
        if cache is None:
            return malformed(f"{base}/{domain}", "no cache id in the name")
        counts: list[int] = []
        for name in ("llc_occupancy", "mbm_local_bytes", "mbm_total_bytes"):
            text = host.read(f"{base}/{domain}/{name}")
            if isinstance(text, IoError):
                return text
            number = parse_decimal_int(text.strip())
            if number is None:  # "Unavailable" while the hardware counts for another group
                return malformed(f"{base}/{domain}/{name}", text.strip())
            counts.append(number)
        found.append(CacheMonitor(cache, *counts))
    return found
