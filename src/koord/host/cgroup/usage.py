"""Readers of one group: what it used, what it may use, how it was throttled and stalled, and which tasks are in it;
and a reader for every second, with prepared paths, open descriptors, and only the numbers that are needed.

The texts of cgroup files of both versions are parsed purely; which file to read is the reader's business. Every parser
returns None when a required key is missing: half of a record is worse than none.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import TypeVar

import msgspec

from koord.host.cgroup.codec import CFS_PERIOD_US, MAX_INT64
from koord.host.cgroup.knob import (
    CPU_PERIOD,
    CPU_QUOTA,
    CPU_SHARES,
    CPU_STAT,
    CPUACCT_USAGE,
    CPUSET,
    CPUSET_EFFECTIVE,
    MEMORY_IDLE_PAGES,
    MEMORY_NUMA_STAT,
    MEMORY_STAT,
    PROCS,
    TASKS,
    CgroupFile,
)
from koord.host.cgroup.tree import CgroupTree
from koord.host.io_error import OPEN, READ, IoError, malformed
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.go_format import parse_decimal_int

_V1_MEMORY_KEYS = (
    *("total_cache", "total_rss", "total_inactive_file", "total_active_file", "total_inactive_anon"),
    *("total_active_anon", "total_unevictable"),
)
_V2_MEMORY_KEYS = ("file", "anon", "inactive_file", "active_file", "inactive_anon", "active_anon", "unevictable")
_IDLE_LINES = 31
_COLD_KEYS = frozenset({"cfei", "dfei", "cfui", "dfui"})


class Throttling(msgspec.Struct, frozen=True):
    periods: int
    throttled: int
    throttled_ns: int


class MemoryStat(msgspec.Struct, frozen=True):
    """The bytes of the group and everything below it."""

    cache: int
    rss: int
    inactive_file: int
    active_file: int
    inactive_anon: int
    active_anon: int
    unevictable: int

    @property
    def usage(self) -> int:
        return self.inactive_anon + self.active_anon + self.unevictable

    @property
    def usage_with_page_cache(self) -> int:
        return self.usage + self.active_file + self.inactive_file


class PressureLine(msgspec.Struct, frozen=True):
    """The share of time stalled, in percent over 10, 60 and 300 seconds, and in microseconds since boot."""

    avg10: float = 0.0
    avg60: float = 0.0
    avg300: float = 0.0
    total_us: int = 0


class Pressure(msgspec.Struct, frozen=True):
    some: PressureLine
    full: PressureLine
    full_supported: bool


def numbers_of_keys(text: str, keys: tuple[str, ...]) -> list[int] | None:
    """Return the numbers of `key number` lines; None when one is missing."""
    words = text.split()
    have = dict(zip(words[::2], words[1::2]))
    try:
        return [int(have[key]) for key in keys]
    except (KeyError, ValueError):
        return None


def parse_usage_ns(text: str, version: int) -> int | None:
    if version == 1:
        return parse_decimal_int(text.strip())
    found = numbers_of_keys(text, ("usage_usec",))
    return None if found is None else found[0] * 1000


def parse_throttling(text: str, version: int) -> Throttling | None:
    time_key, scale = ("throttled_time", 1) if version == 1 else ("throttled_usec", 1000)
    found = numbers_of_keys(text, ("nr_periods", "nr_throttled", time_key))
    return None if found is None else Throttling(found[0], found[1], found[2] * scale)


def parse_memory_stat(text: str, version: int) -> MemoryStat | None:
    found = numbers_of_keys(text, _V1_MEMORY_KEYS if version == 1 else _V2_MEMORY_KEYS)
    return None if found is None else MemoryStat(*found)


def parse_amount(text: str) -> int | None:
    """Parse a byte count; `max` is the largest integer."""
    text = text.strip()
    return MAX_INT64 if text == "max" else parse_decimal_int(text)


def parse_numa_bytes(text: str, version: int, page_bytes: int) -> dict[int, int] | None:
    """Parse the unreclaimable bytes by NUMA node: anonymous and unevictable memory of the group and all below it.

    Version 1 counts pages, and its lines without `hierarchical_` leave out what is below: for a pod, everything.
    """
    by_name: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        words = line.split(maxsplit=1)
        nodes = _v1_numa(line) if words else None
        if nodes is not None:
            by_name[words[0].partition("=")[0]] = nodes
    names: tuple[str, ...] = ("inactive_anon", "active_anon", "unevictable")
    if version == 1:
        above = "hierarchical_" if "hierarchical_anon" in by_name else ""
        names = (f"{above}anon", f"{above}unevictable")
    if any(name not in by_name for name in names):
        return None
    scale = page_bytes if version == 1 else 1
    return {node: sum(by_name[name].get(node, 0) for name in names) * scale for node in by_name[names[0]]}


def parse_pressure(text: str) -> Pressure | None:
    lines: dict[str, PressureLine] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name not in ("some", "full"):
            return None
        parsed = _pressure_line(rest)
        if parsed is None:
            return None
        lines[name] = parsed
    if "some" not in lines:
        return None
    return Pressure(lines["some"], lines.get("full", PressureLine()), "full" in lines)


def parse_cold_bytes(text: str, boundary: int = 5) -> int | None:
    """Parse the bytes untouched for `boundary` or more scan buckets, from a vendor kernel's memory.idle_page_stats."""
    lines = text.strip("\n").split("\n")
    if len(lines) != _IDLE_LINES:
        return None
    total = 0
    for line in lines[14:]:
        words = line.split()
        if words and words[0] in _COLD_KEYS:
            cold = [parse_decimal_int(word) for word in words[1 + boundary :]]
            if any(number is None for number in cold):
                return None
            total += sum(number for number in cold if number is not None)
    return total


def parse_ids(text: str) -> list[int]:
    """Parse process or thread ids, one per line."""
    return [int(line) for line in text.split() if line.isdecimal()]


def _pressure_line(text: str) -> PressureLine | None:
    have = dict(word.partition("=")[::2] for word in text.split())
    try:
        return PressureLine(float(have["avg10"]), float(have["avg60"]), float(have["avg300"]), int(have["total"]))
    except (KeyError, ValueError):
        return None


def _v1_numa(line: str) -> dict[int, int] | None:
    found: dict[int, int] = {}
    for word in line.split()[1:]:
        node, _, pages = word.partition("=")
        if not node.startswith("N") or not node[1:].isdecimal() or not pages.isdecimal():
            return None
        found[int(node[1:])] = int(pages)
    return found


T = TypeVar("T")


def cpu_usage_ns(tree: CgroupTree, group: str) -> int | IoError:
    """Return the CPU time since the group was made."""
    return _read_parsed(tree, CPUACCT_USAGE, group, lambda text: parse_usage_ns(text, tree.version))


def throttling(tree: CgroupTree, group: str) -> Throttling | IoError:
    return _read_parsed(tree, CPU_STAT, group, lambda text: parse_throttling(text, tree.version))


def memory_stat(tree: CgroupTree, group: str) -> MemoryStat | IoError:
    return _read_parsed(tree, MEMORY_STAT, group, lambda text: parse_memory_stat(text, tree.version))


def cold_bytes(tree: CgroupTree, group: str, boundary: int = 5) -> int | IoError:
    return _read_parsed(tree, MEMORY_IDLE_PAGES, group, lambda text: parse_cold_bytes(text, boundary))


def pressure(tree: CgroupTree, knob: str, group: str) -> Pressure | IoError:
    """Return the PSI of a group; `knob` is cpu.pressure, memory.pressure or io.pressure."""
    return _read_parsed(tree, knob, group, parse_pressure)


def cpu_quota_us(tree: CgroupTree, group: str) -> int | IoError:
    """Return the CFS quota; -1 is no limit."""
    return _read_number(tree, CPU_QUOTA, group)


def cpu_period_us(tree: CgroupTree, group: str) -> int | IoError:
    return _read_number(tree, CPU_PERIOD, group)


def cpu_shares(tree: CgroupTree, group: str) -> int | IoError:
    """Return the CPU shares, in cgroup v1's shares on both versions."""
    return _read_number(tree, CPU_SHARES, group)


def cpu_limit_milli(tree: CgroupTree, group: str) -> int | IoError | None:
    """Return the quota in milli-cores; None when there is none."""
    quota = cpu_quota_us(tree, group)
    if isinstance(quota, IoError):
        return quota
    if quota < 0:
        return None
    period = cpu_period_us(tree, group)
    if isinstance(period, IoError):
        return period
    return quota * 1000 // (period or CFS_PERIOD_US)


def cpuset(tree: CgroupTree, group: str) -> CPUSet | IoError:
    """Return the CPUs that the group really has: on cgroup v2 an empty cpuset.cpus means the parent's."""
    return _read_parsed(tree, CPUSET if tree.version == 1 else CPUSET_EFFECTIVE, group, _parse_cpus)


def processes(tree: CgroupTree, group: str) -> list[int] | IoError:
    return _read_parsed(tree, PROCS, group, parse_ids)


def processes_below(tree: CgroupTree, group: str) -> list[int] | IoError:
    """Return the processes of a group and of the groups below it, which a container may make for itself.

    A group below that is gone, or whose processes count in the one above it (a threaded one), adds none.
    """
    found = processes(tree, group)
    if isinstance(found, IoError):
        return found
    below = tree.children(group)
    for one in [] if isinstance(below, IoError) else below:
        more = processes_below(tree, one)
        found += [] if isinstance(more, IoError) else more
    return found


def threads(tree: CgroupTree, group: str) -> list[int] | IoError:
    return _read_parsed(tree, TASKS, group, parse_ids)


def threads_below(tree: CgroupTree, group: str) -> list[int]:
    """Return the threads of a group and of the groups below it; none of those that are gone."""
    found, below = threads(tree, group), tree.children(group)
    here = [] if isinstance(found, IoError) else found
    return here + [one for child in ([] if isinstance(below, IoError) else below) for one in threads_below(tree, child)]


def _read_parsed(tree: CgroupTree, knob: str, group: str, parse: Callable[[str], T | None]) -> T | IoError:
    text = tree.read(knob, group)
    if isinstance(text, IoError):
        return text
    value = parse(text)
    return (
        malformed(tree.path(CgroupFile(knob, group)) or knob, f"unexpected text {text[:80]!r}")
        if value is None
        else value
    )


def _read_number(tree: CgroupTree, knob: str, group: str) -> int | IoError:
    value = tree.value(knob, group)
    if isinstance(value, IoError):
        return value
    number = parse_decimal_int(value)
    return (
        malformed(tree.path(CgroupFile(knob, group)) or knob, f"{value[:40]!r} is no number")
        if number is None
        else number
    )


def _parse_cpus(text: str) -> CPUSet | None:
    try:
        return CPUSet.parse(text)
    except CPUSetError:
        return None


# Memory that cannot be dropped, then the page cache.
_V1_MEMORY = (
    b"\ntotal_inactive_anon ",
    b"\ntotal_active_anon ",
    b"\ntotal_unevictable ",
    b"\ntotal_inactive_file ",
    b"\ntotal_active_file ",
)
_V2_MEMORY = (b"\ninactive_anon ", b"\nactive_anon ", b"\nunevictable ", b"\ninactive_file ", b"\nactive_file ")
_THROTTLING = (b"\nnr_periods ", b"\nnr_throttled ")
_USAGE = (b"\nusage_usec ",)


class CgroupUsageReader:
    __slots__ = ("_cpu", "_memory", "_numa", "_page_bytes", "_stat", "_text", "_version", "group")

    def __init__(self, tree: CgroupTree, group: str, budget: FdBudget) -> None:
        self.group = group
        self._version = tree.version
        self._page_bytes = tree.host.page_bytes
        self._stat = KeepOpenFile(tree.path(CgroupFile(CPU_STAT, group)) or "", budget)
        # One file holds both on cgroup v2.
        same = tree.version == 2
        self._cpu = self._stat if same else KeepOpenFile(tree.path(CgroupFile(CPUACCT_USAGE, group)) or "", budget)
        self._memory = KeepOpenFile(tree.path(CgroupFile(MEMORY_STAT, group)) or "", budget)
        self._numa = KeepOpenFile(tree.path(CgroupFile(MEMORY_NUMA_STAT, group)) or "", budget)
        self._text: bytes | IoError = b""

    def cpu_ns(self) -> int | IoError:
        self._text = text = self._cpu.read()
        if isinstance(text, IoError):
            return text
        if self._version == 2:
            found = _find_numbers(text, _USAGE)
            return self._bad(self._cpu, text) if found is None else found[0] * 1000
        try:
            return int(text)
        except ValueError:
            return self._bad(self._cpu, text)

    def throttling(self) -> tuple[int, int] | IoError:
        """Return the periods, and how many of them were throttled; on cgroup v2 of the text that `cpu_ns` read last."""
        text = self._text if self._version == 2 else self._stat.read()
        if isinstance(text, IoError):
            return text
        found = _find_numbers(text, _THROTTLING)
        return self._bad(self._stat, text) if found is None else (found[0], found[1])

    def memory(self) -> tuple[int, int] | IoError:
        """Return the bytes in use without page cache, and with it."""
        text = self._memory.read()
        if isinstance(text, IoError):
            return text
        found = _find_numbers(text, _V1_MEMORY if self._version == 1 else _V2_MEMORY)
        if found is None:
            return self._bad(self._memory, text)
        used = found[0] + found[1] + found[2]
        return used, used + found[3] + found[4]

    def numa_bytes(self) -> dict[int, int] | IoError:
        """Return the bytes in use without page cache by NUMA node, of the group and all below it."""
        text = self._numa.read()
        if isinstance(text, IoError):
            return text
        found = parse_numa_bytes(text.decode("utf-8", "replace"), self._version, self._page_bytes)
        return self._bad(self._numa, text) if found is None else found

    def close(self) -> None:
        for file in (self._cpu, self._stat, self._memory, self._numa):
            file.close()

    def _bad(self, file: KeepOpenFile, text: bytes) -> IoError:
        return malformed(file.path, f"unexpected text {text[:80]!r}")


def _find_numbers(text: bytes, keys: tuple[bytes, ...]) -> list[int] | None:
    """Return the numbers of these keys, None when one is missing. Files have up to sixty lines, and few are needed."""
    text = b"\n" + text
    found: list[int] = []
    for key in keys:
        place = text.find(key)
        if place < 0:
            return None
        start = place + len(key)
        end = text.find(b"\n", start)
        try:
            found.append(int(text[start : end if end >= 0 else len(text)]))
        except ValueError:
            return None
    return found


_FIRST_BUFFER_BYTES = 4096
_RLIMIT_DIVISOR = 4  # one descriptor in so many may be kept open; sockets, counters and watches need the others


class FdBudget:
    __slots__ = ("max_open", "open_count")

    def __init__(self, most: int) -> None:
        self.max_open = most
        self.open_count = 0

    @staticmethod
    def from_rlimit() -> FdBudget:
        """Return a budget of a quarter of RLIMIT_NOFILE."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return FdBudget((1024 if soft < 0 else min(soft, 65_536)) // _RLIMIT_DIVISOR)


class KeepOpenFile:
    """A file that is read every second keeps its descriptor open while the budget allows, as opening costs more than
    reading. A file whose group was removed answers ENODEV on its old descriptor and is reopened.
    """

    __slots__ = ("_budget", "_descriptor", "_room", "path")

    def __init__(self, path: str, budget: FdBudget) -> None:
        self.path = path
        self._budget = budget
        self._descriptor = -1
        self._room = (
            _FIRST_BUFFER_BYTES  # what the text has fitted in so far: the kernel makes the whole text for every read
        )

    def read(self) -> bytes | IoError:
        if self._descriptor >= 0:
            try:
                return self._whole(self._descriptor)
            except OSError:
                self.close()  # the group is gone, or another one has its name now: look at the path again
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return IoError(self.path, OPEN, error.errno or 0)
        try:
            text = self._whole(descriptor)
        except OSError as error:
            os.close(descriptor)
            return IoError(self.path, READ, error.errno or 0)
        if self._budget.open_count < self._budget.max_open:
            self._budget.open_count += 1
            self._descriptor = descriptor
        else:
            os.close(descriptor)
        return text

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._budget.open_count -= 1

    def _whole(self, descriptor: int) -> bytes:
        text = os.pread(descriptor, self._room, 0)
        while len(text) == self._room:  # a file of a group is one record, so a short read is its end
            self._room *= 4
            text = os.pread(descriptor, self._room, 0)
        return text
