"""Readers of one group: what it used, what it may use, how it was throttled and stalled, and which tasks are in it;
and a reader for every second, with prepared paths, open descriptors, and only the numbers that are needed.

`koord.host.cgroup.usage` has the readers for everything that is read now and then.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import TypeVar

from koord.host.cgroup import stat
from koord.host.cgroup.codec import CFS_PERIOD_US
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
from koord.host.cgroup.stat import parse_numa_bytes
from koord.host.cgroup.tree import CgroupTree
from koord.host.io_error import OPEN, READ, IoError, malformed
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.go_format import parse_decimal_int

T = TypeVar("T")


def cpu_usage_ns(tree: CgroupTree, group: str) -> int | IoError:
    """Return the CPU time since the group was made."""
    return _read_parsed(tree, CPUACCT_USAGE, group, lambda text: stat.parse_usage_ns(text, tree.version))


def throttling(tree: CgroupTree, group: str) -> stat.Throttling | IoError:
    return _read_parsed(tree, CPU_STAT, group, lambda text: stat.parse_throttling(text, tree.version))


def memory_stat(tree: CgroupTree, group: str) -> stat.MemoryStat | IoError:
    return _read_parsed(tree, MEMORY_STAT, group, lambda text: stat.parse_memory_stat(text, tree.version))


def cold_bytes(tree: CgroupTree, group: str, boundary: int = 5) -> int | IoError:
    return _read_parsed(tree, MEMORY_IDLE_PAGES, group, lambda text: stat.parse_cold_bytes(text, boundary))


def pressure(tree: CgroupTree, knob: str, group: str) -> stat.Pressure | IoError:
    """Return the PSI of a group; `knob` is cpu.pressure, memory.pressure or io.pressure."""
    return _read_parsed(tree, knob, group, stat.parse_pressure)


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
    return _read_parsed(tree, PROCS, group, stat.parse_ids)


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
    return _read_parsed(tree, TASKS, group, stat.parse_ids)


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
