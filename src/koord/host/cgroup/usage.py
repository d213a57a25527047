"""Readers of one group: what it used, what it may use, how it was throttled and stalled, and which tasks are in it."""

from __future__ import annotations

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
    MEMORY_STAT,
    PROCS,
    TASKS,
    CgroupFile,
)
from koord.host.cgroup.tree import CgroupTree
from koord.host.io_error import IoError, malformed
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
