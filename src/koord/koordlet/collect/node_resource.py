"""Measure the whole node and its NUMA nodes from /proc and sysfs, and read its hardware once a minute."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.host import hardware_topology, procfs
from koord.host.devices import storage
from koord.host.filesystem import Host
from koord.host.hardware import BlockDevices, CpuModel, HugePages, MachineCpu, NumaNode
from koord.host.hardware_topology import cpu_model, online_cpus
from koord.host.io_error import IoError
from koord.host.procfs import CpuTimes
from koord.koordlet.collect.collector import (
    CollectContext,
    CollectorStatuses,
    CollectSettings,
    IntervalTimer,
    UsageCollector,
)
from koord.koordlet.series import metric_kind

INFO, STORAGE = "node-info", "storage"


class NodeHardwareInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware of the node: CPUs, NUMA nodes, CPU model, disks. A later failure keeps what is known."""

    processors: tuple[MachineCpu, ...] = ()
    model: CpuModel = CpuModel()
    numa_nodes: tuple[NumaNode, ...] = ()
    huge_pages: tuple[HugePages, ...] = ()
    storage: BlockDevices | None = None
    numa_of_cpu: Mapping[int, int] = {}

    @property
    def numa_ids(self) -> tuple[int, ...]:
        return tuple(node.id for node in self.numa_nodes)

    @property
    def cpus(self) -> int:
        return len(self.processors)


class NodeInfoCollector:
    """Reads the node's hardware periodically and keeps the last result in `now`."""

    def __init__(self, host: Host, statuses: CollectorStatuses, settings: CollectSettings) -> None:
        self._host = host
        self._statuses = statuses
        self._timer = IntervalTimer(settings.info_s)
        self._storage_timer = IntervalTimer(settings.storage_s) if settings.storage else None
        self.now = NodeHardwareInfo()

    def sample(self, at_s: float) -> NodeHardwareInfo:
        if self._timer.due(at_s):
            self._look()
        if self._storage_timer is not None and self._storage_timer.due(at_s):
            found = storage(self._host)
            if isinstance(found, IoError):
                self._statuses.fails(STORAGE, found)
            else:
                self._statuses.works(STORAGE)
                self.now = msgspec.structs.replace(self.now, storage=found)
        return self.now

    def _look(self) -> None:
        cpus, model = online_cpus(self._host), cpu_model(self._host)
        if isinstance(cpus, IoError):
            self._statuses.fails(INFO, cpus)
            return
        if isinstance(model, IoError):
            self._statuses.fails(INFO, model)
            return
        # Missing NUMA memory is reported by its own collector; the CPUs are known all the same.
        nodes, huge = hardware_topology.numa_nodes(self._host), hardware_topology.huge_pages(self._host)
        self.now = msgspec.structs.replace(
            self.now,
            processors=tuple(cpus),
            model=model,
            numa_nodes=() if isinstance(nodes, IoError) else tuple(nodes),
            huge_pages=() if isinstance(huge, IoError) else tuple(huge),
            numa_of_cpu={one.cpu: one.node for one in cpus},
        )
        self._statuses.works(INFO)


CPU, MEMORY, NUMA = "node-cpu", "node-memory", "node-numa"
NODE_COLLECTORS = (CPU, MEMORY, NUMA)


class NodeUsageSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """NodeUsageSample is what the node used in one tick, in cores and bytes; None where there is no number."""

    cores: float | None = None
    memory_bytes: int | None = None
    numa_cores: dict[int, float] | None = None
    numa_bytes: dict[int, int] | None = None


class NodeResourceCollector(UsageCollector):
    """Samples CPU and memory of the node and of each NUMA node."""

    def __init__(self, context: CollectContext, *, page_cache: bool) -> None:
        super().__init__(context)
        self._host = context.tree.host
        self.page_cache = page_cache

    def sample(self, now_s: float, info: NodeHardwareInfo) -> NodeUsageSample:
        cores, by_numa = self._cpu(now_s, info)
        return NodeUsageSample(
            cores=cores, memory_bytes=self._memory(now_s), numa_cores=by_numa, numa_bytes=self._numa_memory(now_s)
        )

    def _cpu(self, now_s: float, info: NodeHardwareInfo) -> tuple[float | None, dict[int, float] | None]:
        times = procfs.cpu_times(self._host)
        if isinstance(times, IoError):
            self._statuses.fails(CPU, times)
            return None, None
        at_s, ticks = self._clock.monotonic(), self._host.ticks_per_s
        ceiling = max(len(times.by_cpu), 1)
        total = self._counters.rate("all", at_s, times.total / ticks, 2 * ceiling)
        by_numa = self._by_numa(times, at_s, info)
        if total is None:
            return None, None  # the first look, or a counter that went back: the next tick has a number again
        # Ticks are whole, so the sum over a second may lie a little above what there is.
        cores = min(total, float(ceiling))
        self._store.add((metric_kind.NODE_CPU,), now_s, cores)
        self._statuses.works(CPU)
        for node, used in by_numa.items():
            self._store.add((metric_kind.NUMA_CPU, str(node)), now_s, used)
        return cores, by_numa or None

    def _by_numa(self, times: CpuTimes, at_s: float, info: NodeHardwareInfo) -> dict[int, float]:
        """Return the used cores by NUMA node; a CPU that came online just now has no rate yet."""
        found: dict[int, float] = {}
        known = set(info.numa_ids)
        for number, node in info.numa_of_cpu.items():
            busy = times.by_cpu.get(number)
            if busy is None or node not in known:
                continue
            rate = self._counters.rate(number, at_s, busy / self._host.ticks_per_s, 2.0)
            if rate is not None:
                found[node] = found.get(node, 0.0) + min(rate, 1.0)
        return found

    def _memory(self, now_s: float) -> int | None:
        memory = procfs.meminfo(self._host)
        if isinstance(memory, IoError):
            self._statuses.fails(MEMORY, memory)
            return None
        used = max(memory.used, 0)
        self._store.add((metric_kind.NODE_MEMORY,), now_s, used)
        if self.page_cache:
            self._store.add((metric_kind.NODE_MEMORY_WITH_PAGE_CACHE,), now_s, max(memory.used_with_page_cache, 0))
        self._statuses.works(MEMORY)
        return used

    def _numa_memory(self, now_s: float) -> dict[int, int] | None:
        nodes = hardware_topology.numa_nodes(self._host)
        if isinstance(nodes, IoError):
            self._statuses.fails(NUMA, nodes, permanent=nodes.vanished)  # a kernel without NUMA has no such folder
            return None
        for node in nodes:
            self._store.add((metric_kind.NUMA_MEMORY, str(node.id)), now_s, node.used)
        self._statuses.works(NUMA)
        return {node.id: node.used for node in nodes}
