"""Readers of /proc: CPU time, memory and boot id."""

from __future__ import annotations

import msgspec

from koord.host.filesystem import Host
from koord.host.io_error import IoError, malformed
from koord.values.go_format import parse_decimal_int


class CpuTimes(msgspec.Struct, frozen=True):
    """Busy ticks since boot: user, nice, system, irq and softirq. Iowait and steal are not counted."""

    total: int
    by_cpu: dict[int, int]


class MemInfo(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    free: int
    available: int
    buffers: int = 0
    cached: int = 0
    active_file: int = 0
    inactive_file: int = 0
    s_reclaimable: int = 0
    swap_total: int = 0
    swap_free: int = 0

    @property
    def used(self) -> int:
        return self.total - self.available

    @property
    def used_with_page_cache(self) -> int:
        return self.total - self.free


def cpu_times(host: Host) -> CpuTimes | IoError:
    path = f"{host.paths.proc}/stat"
    text = host.read(path)
    if isinstance(text, IoError):
        return text
    total: int | None = None
    by_cpu: dict[int, int] = {}
    for line in text.splitlines():
        if not line.startswith("cpu"):
            break  # interrupt counters of a big machine are longer than all the rest
        words = line.split()
        if len(words) <= 7:
            return malformed(path, f"short line {line!r}")
        try:
            busy = sum(int(words[column]) for column in (1, 2, 3, 6, 7))
        except ValueError:
            return malformed(path, f"no number in {line!r}")
        if words[0] == "cpu":
            total = busy
        else:
            by_cpu[int(words[0][3:])] = busy
    return malformed(path, "no line of all CPUs") if total is None else CpuTimes(total, by_cpu)


def meminfo(host: Host) -> MemInfo | IoError:
    path = f"{host.paths.proc}/meminfo"
    text = host.read(path)
    if isinstance(text, IoError):
        return text
    have = parse_kilobytes(text)
    if not {"MemTotal", "MemFree", "MemAvailable"} <= have.keys():
        return malformed(path, "MemTotal, MemFree or MemAvailable is missing")
    return MemInfo(
        total=have["MemTotal"],
        free=have["MemFree"],
        available=have["MemAvailable"],
        buffers=have.get("Buffers", 0),
        cached=have.get("Cached", 0),
        active_file=have.get("Active(file)", 0),
        inactive_file=have.get("Inactive(file)", 0),
        s_reclaimable=have.get("SReclaimable", 0),
        swap_total=have.get("SwapTotal", 0),
        swap_free=have.get("SwapFree", 0),
    )


def parse_kilobytes(text: str) -> dict[str, int]:
    """Parse `Name:   12 kB` lines to bytes; a NUMA node's lines start with `Node 0 `."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        head, colon, rest = line.partition(":")
        words = rest.split()
        number = parse_decimal_int(words[0]) if colon and words else None
        if number is not None:
            name = head.split()[-1] if head.startswith("Node ") else head
            found[name] = number * 1024 if words[-1] == "kB" else number
    return found


def boot_id(host: Host) -> str | IoError:
    text = host.read(f"{host.paths.proc}/sys/kernel/random/boot_id")
    return text if isinstance(text, IoError) else text.strip()
