"""Readers of one group: what it used, what it may use, how it was throttled and stalled, and which tasks are in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from koord.host.cgroup.conversion import PERIOD_US
from koord.host.cgroup.knob import (
    CPU_PERIOD,
    CPU_QUOTA,
    CPU_SHARES,
    CPU_STAT,
    CPUACCT_USAGE,
    CPUSET,
    CPUSET_EFFECTIVE,
    MEMORY_IDLE_PAGES,
    MEMORY_LIMIT,
    MEMORY_NUMA_STAT,
    MEMORY_STAT,
    MEMORY_USAGE,
    PROCS,
    TASKS,
)
from koord.host.cgroup.stat import (
    MemoryStat,
    Pressure,
    Throttling,
    parse_amount,
    parse_cold_bytes,
    parse_ids,
    parse_memory_stat,
    parse_numa_pages,
    parse_pressure,
    parse_throttling,
    parse_usage_ns,
)
from koord.host.cgroup.tree import File, Tree
from koord.host.fault import Fault, malformed
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.quotation import integer

T = TypeVar("T")


def cpu_usage_ns(tree: Tree, group: str) -> int | Fault:
    """Return the CPU time since the group was made."""
    return _parsed(tree, CPUACCT_USAGE, group, lambda text: parse_usage_ns(text, tree.version))


def throttling(tree: Tree, group: str) -> Throttling | Fault:
    return _parsed(tree, CPU_STAT, group, lambda text: parse_throttling(text, tree.version))


def memory_stat(tree: Tree, group: str) -> MemoryStat | Fault:
    return _parsed(tree, MEMORY_STAT, group, lambda text: parse_memory_stat(text, tree.version))


def memory_usage_bytes(tree: Tree, group: str) -> int | Fault:
    """Return everything charged to the group, its page cache included."""
    return _parsed(tree, MEMORY_USAGE, group, parse_amount)


def memory_limit_bytes(tree: Tree, group: str) -> int | Fault:
    """Return the memory limit; -1 is no limit."""
    return _number(tree, MEMORY_LIMIT, group)


def memory_numa_pages(tree: Tree, group: str) -> dict[int, int] | Fault:
    """Return the pages by NUMA node."""
    return _parsed(tree, MEMORY_NUMA_STAT, group, lambda text: parse_numa_pages(text, tree.version))


def cold_bytes(tree: Tree, group: str, boundary: int = 5) -> int | Fault:
    return _parsed(tree, MEMORY_IDLE_PAGES, group, lambda text: parse_cold_bytes(text, boundary))


def pressure(tree: Tree, knob: str, group: str) -> Pressure | Fault:
    """Return the PSI of a group; `knob` is cpu.pressure, memory.pressure or io.pressure."""
    return _parsed(tree, knob, group, parse_pressure)


def cpu_quota_us(tree: Tree, group: str) -> int | Fault:
    """Return the CFS quota; -1 is no limit."""
    return _number(tree, CPU_QUOTA, group)


def cpu_period_us(tree: Tree, group: str) -> int | Fault:
    return _number(tree, CPU_PERIOD, group)


def cpu_shares(tree: Tree, group: str) -> int | Fault:
    """Return the CPU shares, in cgroup v1's shares on both versions."""
    return _number(tree, CPU_SHARES, group)


def cpu_limit_milli(tree: Tree, group: str) -> int | Fault | None:
    """Return the quota in milli-cores; None when there is none."""
    quota = cpu_quota_us(tree, group)
    if isinstance(quota, Fault):
        return quota
    if quota < 0:
        return None
    period = cpu_period_us(tree, group)
    if isinstance(period, Fault):
        return period
    return quota * 1000 // (period or PERIOD_US)


def cpuset(tree: Tree, group: str) -> CPUSet | Fault:
    """Return the CPUs that the group really has: on cgroup v2 an empty cpuset.cpus means the parent's."""
    return _parsed(tree, CPUSET if tree.version == 1 else CPUSET_EFFECTIVE, group, _cpus)


def processes(tree: Tree, group: str) -> list[int] | Fault:
    return _parsed(tree, PROCS, group, parse_ids)


def threads(tree: Tree, group: str) -> list[int] | Fault:
    return _parsed(tree, TASKS, group, parse_ids)


def sandbox_group(tree: Tree, pod_dir: str, container_ids: list[str]) -> str | Fault | None:
    """Return the group of the pod's pause container: the one group of the pod that no known container has.

    None when it cannot be determined, because no container is known yet or more than one group is left.
    """
    known = {name for name in map(tree.layout.container_name, container_ids) if name}
    if not known:
        return None
    groups = tree.children(pod_dir, "cpuset")
    if isinstance(groups, Fault):
        return groups
    names = [group.rpartition("/")[2] for group in groups]
    # cri-o keeps a sandbox in a plain group and its scopes are containers
    left = [name for name in names if name not in known and not (name.startswith("crio-") and name.endswith(".scope"))]
    return f"{pod_dir}/{left[0]}" if len(left) == 1 else None


def _parsed(tree: Tree, knob: str, group: str, parse: Callable[[str], T | None]) -> T | Fault:
    text = tree.read(knob, group)
    if isinstance(text, Fault):
        return text
    value = parse(text)
    return malformed(tree.path(File(knob, group)) or knob, f"unexpected text {text[:80]!r}") if value is None else value


def _number(tree: Tree, knob: str, group: str) -> int | Fault:
    value = tree.value(knob, group)
    if isinstance(value, Fault):
        return value
    number = integer(value)
    return malformed(tree.path(File(knob, group)) or knob, f"{value[:40]!r} is no number") if number is None else number


def _cpus(text: str) -> CPUSet | None:
    try:
        return CPUSet.parse(text)
    except CPUSetError:
        return None
