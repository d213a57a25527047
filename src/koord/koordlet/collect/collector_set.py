"""Run all collectors of a node: one call per tick takes every sample that is due.

Timestamps are wall time, so that series and reports agree; rates and periods use the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.api.koordinator.slo import MEMORY_WITH_PAGE_CACHE, HostApplicationSpec
from koord.host.cgroup.tree import CgroupTree
from koord.host.cgroup.usage import FdBudget, Pressure
from koord.host.hardware import GpuCard, GpuInventory
from koord.host.resctrl import CacheMonitor
from koord.koordlet.collect import gpu, node_resource, performance, pod_resource
from koord.koordlet.collect import performance as stall
from koord.koordlet.collect.collector import (
    CollectContext,
    CollectorPlugin,
    CollectorStatus,
    CollectorStatuses,
    CollectSettings,
    IntervalTimer,
    PluginCollectors,
)
from koord.koordlet.collect.gpu import GpuCollector
from koord.koordlet.collect.node_resource import (
    BeResourceCollector,
    ColdMemoryCollector,
    NodeHardwareInfo,
    NodeInfoCollector,
    NodeResourceCollector,
    NodeUsageSample,
)
from koord.koordlet.collect.performance import CpiCollector, PsiCollector, ResctrlCollector
from koord.koordlet.collect.pod_resource import (
    HostApplicationCollector,
    HostApplicationsUsage,
    PodResourceCollector,
    PodsUsageSample,
    ThirdPartyCollector,
)
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.telemetry.clock import Clock


def sample_system(
    store: SeriesStore, now_s: float, node: NodeUsageSample, pods: PodsUsageSample, applications: HostApplicationsUsage
) -> None:
    """Sample the system's own usage: the node's less that of pods and host applications, all of the same tick.

    What the node did not report leaves no sample.
    """
    system: float | None = None
    if node.cores is not None:
        system = max(0.0, node.cores - pods.cores - applications.cores)
        store.add((metric_kind.SYSTEM_CPU,), now_s, system)
    if node.memory_bytes is not None:
        left = max(0, node.memory_bytes - pods.memory_bytes - applications.memory_bytes)
        store.add((metric_kind.SYSTEM_MEMORY,), now_s, left)
    if system is not None and node.numa_cores is not None:
        # Where on the machine the system runs is not counted: it is taken to be where everything runs.
        whole = sum(node.numa_cores.values())
        for number, cores in node.numa_cores.items():
            share = system * cores / whole if whole > 0 else 0.0
            store.add((metric_kind.NUMA_SYSTEM_CPU, str(number)), now_s, share)
    if node.numa_bytes is not None and pods.numa_bytes is not None:
        for number, held in node.numa_bytes.items():
            left = max(0, held - pods.numa_bytes.get(number, 0))
            store.add((metric_kind.NUMA_SYSTEM_MEMORY, str(number)), now_s, left)


_EXPIRE_S = 60.0


class CollectorSet:
    """The enabled collectors. `store` keeps samples `settings.interval_s` apart; `budget` bounds the open files."""

    def __init__(
        self,
        tree: CgroupTree,
        store: SeriesStore,
        clock: Clock,
        settings: CollectSettings = CollectSettings(),  # noqa: B008 - a frozen value
        *,
        budget: FdBudget | None = None,
        plugins: Sequence[CollectorPlugin] = (),
    ) -> None:
        """`plugins` are collectors of other packages."""
        budget = FdBudget.from_rlimit() if budget is None else budget
        self._store = store
        self._clock = clock
        self._settings = settings
        self._statuses = statuses = CollectorStatuses((*_collector_names(settings), *(one.name for one in plugins)))
        caches = settings.page_cache
        context = CollectContext(tree, store, clock, statuses, budget, settings.longest_gap_s)
        self._info = NodeInfoCollector(tree.host, statuses, settings)
        self._node = NodeResourceCollector(context, page_cache=caches)
        self._pods = PodResourceCollector(context, page_cache=caches)
        self._best_effort = BeResourceCollector(context)
        self._applications = HostApplicationCollector(context)
        self._third_party = ThirdPartyCollector(context)
        self._pressure = PsiCollector(tree, store, statuses, settings.psi_s) if settings.psi else None
        self._cycles = (
            CpiCollector(tree, store, statuses, settings.cpi_s, settings.cpi_window_s) if settings.cpi else None
        )
        self._cold = ColdMemoryCollector(tree, store, statuses, settings.cold_pages_s) if settings.cold_pages else None
        self._cache = ResctrlCollector(tree.host, store, statuses, settings.resctrl_s) if settings.resctrl else None
        self._gpu = GpuCollector(tree, store, statuses) if settings.gpu else None
        self._expiry = IntervalTimer(_EXPIRE_S)
        self._plugins = PluginCollectors(plugins, store, statuses)

    def sample(
        self,
        now_s: float,
        pods: Sequence[PodMeta] | None,
        applications: Sequence[HostApplicationSpec] = (),
        *,
        memory_policy: str = "",
        third_party: Sequence[PodMeta] = (),
    ) -> None:
        """Take the samples of one tick. `pods` is None until they are known: then neither they nor
        the system are sampled.

        The same sequence objects, given again, mean that nothing changed. `memory_policy` is that of the NodeMetric.
        """
        at_s = self._clock.monotonic()
        caches = memory_policy == MEMORY_WITH_PAGE_CACHE
        self._node.page_cache = self._pods.page_cache = caches or self._settings.page_cache
        self._applications.page_cache = caches
        known = self._info.sample(at_s)
        used = self._node.sample(now_s, known)
        outside = self._applications.sample(now_s, applications, known.cpus)
        if pods is not None:
            inside = self._pods.sample(now_s, pods, known.cpus, known.numa_ids)
            sample_system(self._store, now_s, used, inside, outside)
        self._best_effort.sample(now_s, pods, known.cpus, third_party)
        self._third_party.sample(now_s, third_party, known.cpus)
        self._sample_periodic(at_s, now_s, pods or ())

    @property
    def info(self) -> NodeHardwareInfo:
        return self._info.now

    @property
    def statuses(self) -> Mapping[str, CollectorStatus]:
        return self._statuses.current

    @property
    def all_answered(self) -> bool:
        """Return whether each collector has worked once, or has said that it cannot on this machine."""
        return self._statuses.all_answered

    @property
    def pressure(self) -> Mapping[tuple[str, str], Mapping[str, Pressure]]:
        """Return the last PSI sample by pod and container ("" for the pod itself), then by cpu, mem and io."""
        return {} if self._pressure is None else self._pressure.latest

    @property
    def cache_monitors(self) -> Mapping[str, tuple[CacheMonitor, ...]]:
        return {} if self._cache is None else self._cache.latest

    @property
    def knows_hot_pages(self) -> bool:
        """Return whether the kernel distinguishes hot memory from cold."""
        return self._cold is not None and self._cold.is_on

    @property
    def gpus(self) -> tuple[GpuCard, ...]:
        return () if self._gpu is None else self._gpu.cards

    @property
    def gpu_inventory(self) -> GpuInventory | None:
        """Return the NVIDIA cards; None until they were listed once, or it is clear that there are none."""
        if self._gpu is None:
            return GpuInventory()
        found = self._gpu
        return GpuInventory(found.cards, found.driver, found.health, found.unidentified) if found.known else None

    def close(self) -> None:
        self._pods.close()
        self._best_effort.close()
        self._applications.close()
        self._third_party.close()
        if self._cycles is not None:
            self._cycles.close()
        if self._gpu is not None:
            self._gpu.close()

    def _sample_periodic(self, at_s: float, now_s: float, pods: Sequence[PodMeta]) -> None:
        if self._pressure is not None:
            self._pressure.sample(at_s, now_s, pods)
        if self._cycles is not None:
            self._cycles.sample(at_s, now_s, pods, [one.cpu for one in self.info.processors])
        if self._cold is not None:
            self._cold.sample(at_s, now_s, pods, self._applications.groups())
        if self._cache is not None:
            self._cache.sample(at_s, now_s)
        if self._gpu is not None:
            self._gpu.sample(at_s, now_s, pods)
        self._plugins.sample(at_s, now_s, pods)
        if self._expiry.due(at_s):
            self._store.expire(now_s)
            late_s = self._clock.monotonic()  # counters were read after this tick began, and are not of the future
            for one in (self._node, self._pods, self._best_effort, self._applications, self._third_party):
                one.expire(late_s)


def _collector_names(settings: CollectSettings) -> tuple[str, ...]:
    optional = (
        (settings.storage, node_resource.STORAGE),
        (settings.psi, stall.PRESSURE),
        (settings.cpi, performance.CYCLES),
        (settings.cold_pages, node_resource.COLD_MEMORY),
        (settings.resctrl, performance.RESCTRL),
        (settings.gpu, gpu.GPU),
    )
    always = (
        node_resource.INFO,
        *node_resource.NODE_COLLECTORS,
        *pod_resource.POD_COLLECTORS,
        node_resource.BE_RESOURCE,
        pod_resource.HOST_APPLICATIONS,
    )
    return (*always, *(name for wanted, name in optional if wanted))
