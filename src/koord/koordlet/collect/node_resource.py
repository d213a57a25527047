"""Measure the whole node and its NUMA nodes from /proc and sysfs, and read its hardware once a minute.

BeResourceCollector measures what best-effort pods use together, what they request, and what they may really use now,
in milli-cores. ColdMemoryCollector measures memory that nobody touched for a while, where the kernel's kidled reports
it, and what remains without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.api.koordinator.protocol import BE, BEST_EFFORT
from koord.api.koordinator.resource_name import BATCH_CPU
from koord.host import hardware_topology, procfs
from koord.host.capability import check_kidled, kidled_folder
from koord.host.cgroup import usage
from koord.host.cgroup.knob import CPUSET, CPUSET_EFFECTIVE, CgroupFile
from koord.host.cgroup.tree import CgroupTree
from koord.host.cgroup.usage import CgroupUsageReader, KeepOpenFile
from koord.host.devices import storage
from koord.host.filesystem import Host
from koord.host.hardware import BlockDevices, CpuModel, HugePages, MachineCpu, NumaNode
from koord.host.hardware_topology import cpu_model, online_cpus
from koord.host.io_error import IoError, malformed
from koord.host.procfs import CpuTimes
from koord.koordlet.collect.collector import (
    CollectContext,
    CollectorStatuses,
    CollectSettings,
    IntervalTimer,
    UsageCollector,
)
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.values.cpuset import CPUSet, CPUSetError

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


BE_RESOURCE = "best-effort"
_KEY = (metric_kind.NODE_BE, metric_kind.BE_USAGE)


class BeResourceCollector(UsageCollector):
    def __init__(self, context: CollectContext) -> None:
        super().__init__(context)
        self._root = context.tree.layout.qos_dir(BEST_EFFORT)
        self._usage_reader = CgroupUsageReader(context.tree, self._root, context.budget)
        self._cpusets: dict[str, _CpusetReader] = {}
        self._seen: Sequence[PodMeta] | None = None
        self._request_milli = 0

    def sample(
        self, now_s: float, pods: Sequence[PodMeta] | None, cpus: int, third_party: Sequence[PodMeta] = ()
    ) -> None:
        """Take one sample. While the pods are unknown there is still a usage, and a limit of the group of them all.

        Containers of other orchestrators request as well; they run below the group of best-effort pods.
        """
        if pods is not self._seen:
            self._track_pods(pods or ())
            self._seen = pods
        io_error = self._usage(now_s, cpus)
        limit = self._limit_milli()
        if isinstance(limit, IoError):
            io_error = io_error or limit
        else:
            self._store.add((metric_kind.NODE_BE, metric_kind.BE_REAL_LIMIT), now_s, limit)
        if pods is not None:
            others = sum(max(one.requests.get(BATCH_CPU, 0), 0) for one in third_party)
            self._store.add((metric_kind.NODE_BE, metric_kind.BE_REQUEST), now_s, self._request_milli + others)
        # A kubelet that never had a best-effort pod may not have made the group: nobody needs to wait for it.
        self._set_status(BE_RESOURCE, io_error, permanent=io_error is not None and io_error.vanished)

    def _usage(self, now_s: float, cpus: int) -> IoError | None:
        usage_ns = self._usage_reader.cpu_ns()
        if isinstance(usage_ns, IoError):
            return usage_ns
        ceiling = float(cpus) if cpus else float("inf")
        cores = self._counters.rate(_KEY, self._clock.monotonic(), usage_ns / 1e9, 2 * ceiling)
        if cores is not None:
            self._store.add(_KEY, now_s, int(min(cores, ceiling) * 1000))
        return None

    def close(self) -> None:
        self._usage_reader.close()
        for one in self._cpusets.values():
            one.file.close()
        self._cpusets = {}

    def _limit_milli(self) -> int | IoError:
        """Return the smallest number of CPUs of the group or one of its containers, or the quota if that is less."""
        least: int | None = None
        for group, held in self._cpusets.items():
            found = held.count()
            if isinstance(found, IoError):
                if found.vanished and group != self._root:
                    continue  # it ended meanwhile
                return found
            if found:
                least = found if least is None else min(least, found)
        quota = usage.cpu_limit_milli(self._tree, self._root)
        if isinstance(quota, IoError):
            return quota
        by_cpus = 1000 * (least or 0)
        return by_cpus if quota is None else min(by_cpus, quota)

    def _track_pods(self, pods: Sequence[PodMeta]) -> None:
        alive = [pod for pod in pods if pod.is_alive]
        self._request_milli = sum(
            max(container.requests.get(BATCH_CPU, 0), 0)
            for pod in alive
            if pod.qos == BE
            for container in pod.containers
        )
        groups = [self._root]
        for pod in alive:
            if pod.kube_qos == BEST_EFFORT:
                groups += [one.group for one in pod.containers if one.group and one.running]
        before, self._cpusets = self._cpusets, {}
        name = CPUSET if self._tree.version == 1 else CPUSET_EFFECTIVE
        for group in groups:
            path = self._tree.path(CgroupFile(name, group)) or ""
            known = before.pop(group) if group in before else None
            self._cpusets[group] = known or _CpusetReader(KeepOpenFile(path, self._budget))
        for gone in before.values():
            gone.file.close()


class _CpusetReader:
    """Reads how many CPUs a group has; the text is parsed only when it changed."""

    __slots__ = ("_count", "_text", "file")

    def __init__(self, file: KeepOpenFile) -> None:
        self.file = file
        self._text: bytes | None = None
        self._count = 0

    def count(self) -> int | IoError:
        text = self.file.read()
        if isinstance(text, IoError):
            return text
        if text != self._text:
            try:
                self._count = len(CPUSet.parse(text.decode("ascii", "replace")))
            except CPUSetError as error:
                return malformed(self.file.path, str(error))
            self._text = text
        return self._count


COLD_MEMORY = "cold-memory"
_SCAN_S = "5"


class ColdMemoryCollector:
    def __init__(self, tree: CgroupTree, store: SeriesStore, statuses: CollectorStatuses, every_s: float) -> None:
        self._tree = tree
        self._store = store
        self._statuses = statuses
        self._timer = IntervalTimer(every_s)
        self.is_on = False  # whether the kernel's scanner runs for us

    def sample(self, at_s: float, now_s: float, pods: Sequence[PodMeta], applications: Mapping[str, str]) -> None:
        """Take one sample of the node, the pods and the host applications. `applications` are groups by name."""
        if not self._timer.due(at_s) or not self._switched_on():
            return
        io_error = self._node(now_s)
        for pod in pods:
            if pod.is_alive and pod.group:
                keys = (metric_kind.POD_MEMORY_COLD_PAGES, metric_kind.POD_MEMORY_WITH_HOT_PAGES)
                io_error = self._group(now_s, pod.group, keys, pod.uid) or io_error
                keys = (metric_kind.CONTAINER_MEMORY_COLD_PAGES, metric_kind.CONTAINER_MEMORY_WITH_HOT_PAGES)
                for one in pod.containers:
                    if one.id and one.group:
                        io_error = self._group(now_s, one.group, keys, one.id) or io_error
        keys = (metric_kind.APPLICATION_MEMORY_COLD_PAGES, metric_kind.APPLICATION_MEMORY_WITH_HOT_PAGES)
        for name, group in applications.items():
            io_error = self._group(now_s, group, keys, name) or io_error
        if io_error is None:
            self._statuses.works(COLD_MEMORY)
        else:
            self._statuses.fails(COLD_MEMORY, io_error)

    def _switched_on(self) -> bool:
        if self.is_on:
            return True
        missing = check_kidled(self._tree.host)
        if missing is not None:
            self._statuses.fails(COLD_MEMORY, missing, permanent=True)
            return False
        for name, value in (("scan_period_in_seconds", _SCAN_S), ("use_hierarchy", "1")):
            refused = self._tree.host.write(f"{kidled_folder(self._tree.host)}/{name}", value)
            if refused is not None:
                self._statuses.fails(COLD_MEMORY, refused, permanent=True)
                return False
        self.is_on = True
        return True

    def _node(self, now_s: float) -> IoError | None:
        cold, memory = usage.cold_bytes(self._tree, ""), procfs.meminfo(self._tree.host)
        if isinstance(cold, IoError):
            return cold
        if isinstance(memory, IoError):
            return memory
        self._store.add((metric_kind.NODE_MEMORY_COLD_PAGES,), now_s, cold)
        self._store.add((metric_kind.NODE_MEMORY_WITH_HOT_PAGES,), now_s, max(memory.used_with_page_cache - cold, 0))
        return None

    def _group(self, now_s: float, group: str, keys: tuple[str, str], subject: str) -> IoError | None:
        """Sample one group; a group that is gone is no error."""
        cold, held = usage.cold_bytes(self._tree, group), usage.memory_stat(self._tree, group)
        if isinstance(cold, IoError):
            return None if cold.vanished else cold
        if isinstance(held, IoError):
            return None if held.vanished else held
        self._store.add((keys[0], subject), now_s, cold)
        # Two files, read one after the other: what was freed in between must not become a huge number.
        self._store.add((keys[1], subject), now_s, max(held.usage_with_page_cache - cold, 0))
        return None
