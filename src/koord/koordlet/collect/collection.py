"""All collectors of a node under one roof: one call per tick takes every sample that is due.

Stamps are wall time, so that series and reports agree; rates and waiting go by a clock that never jumps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.api.slo import MEMORY_WITH_PAGE_CACHE
from koord.api.slo_strategy import HostApplicationSpec
from koord.host.cgroup.stat import Pressure
from koord.host.cgroup.tree import Tree
from koord.host.held_file import Descriptors
from koord.host.nvml import GpuCard
from koord.host.resctrl import Monitor
from koord.koordlet.collect import application, best_effort, cache_monitor, cold_memory, cycles, gpu, info, node, pod
from koord.koordlet.collect import pressure as stall
from koord.koordlet.collect.application import ApplicationCollector
from koord.koordlet.collect.best_effort import BestEffortCollector
from koord.koordlet.collect.cache_monitor import CacheCollector
from koord.koordlet.collect.cold_memory import ColdMemoryCollector
from koord.koordlet.collect.condition import Condition, Conditions
from koord.koordlet.collect.cycles import CyclesCollector
from koord.koordlet.collect.gpu import GpuCollector
from koord.koordlet.collect.info import Info, InfoCollector
from koord.koordlet.collect.node import NodeCollector
from koord.koordlet.collect.pod import PodCollector
from koord.koordlet.collect.pressure import PressureCollector
from koord.koordlet.collect.settings import Settings, Timer
from koord.koordlet.collect.system import sample_system
from koord.koordlet.pod import PodView
from koord.koordlet.series.store import Store
from koord.telemetry.clock import Clock

_EXPIRE_S = 60.0


class Collection:
    """The set of enabled collectors. `store` keeps samples `settings.interval_s` apart; `budget` bounds the open
    files.
    """

    def __init__(
        self,
        tree: Tree,
        store: Store,
        clock: Clock,
        settings: Settings = Settings(),  # noqa: B008 - a frozen value
        *,
        budget: Descriptors | None = None,
    ) -> None:
        budget = Descriptors.allowed() if budget is None else budget
        self._store = store
        self._clock = clock
        self._settings = settings
        self._conditions = conditions = Conditions(_names(settings))
        gap_s, caches = settings.longest_gap_s, settings.page_cache
        self._info = InfoCollector(tree.host, conditions, settings)
        self._node = NodeCollector(tree.host, store, clock, conditions, gap_s, page_cache=caches)
        self._pods = PodCollector(tree, store, clock, conditions, budget, gap_s, page_cache=caches)
        self._best_effort = BestEffortCollector(tree, store, clock, conditions, budget, gap_s)
        self._applications = ApplicationCollector(tree, store, clock, conditions, budget, gap_s)
        self._pressure = PressureCollector(tree, store, conditions, settings.psi_s) if settings.psi else None
        self._cycles = (
            CyclesCollector(tree, store, conditions, settings.cpi_s, settings.cpi_window_s) if settings.cpi else None
        )
        self._cold = (
            ColdMemoryCollector(tree, store, conditions, settings.cold_pages_s) if settings.cold_pages else None
        )
        self._cache = CacheCollector(tree.host, store, conditions, settings.resctrl_s) if settings.resctrl else None
        self._gpu = GpuCollector(tree, store, conditions) if settings.gpu else None
        self._expiry = Timer(_EXPIRE_S)

    def sample(
        self,
        now_s: float,
        pods: Sequence[PodView] | None,
        applications: Sequence[HostApplicationSpec] = (),
        *,
        memory_policy: str = "",
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
        self._best_effort.sample(now_s, pods, known.cpus)
        self._now_and_then(at_s, now_s, pods or ())

    @property
    def info(self) -> Info:
        return self._info.now

    @property
    def conditions(self) -> Mapping[str, Condition]:
        """Return the status of each enabled collector."""
        return self._conditions.now

    @property
    def started(self) -> bool:
        """Return whether each collector has worked once, or has said that it cannot on this machine."""
        return self._conditions.started

    @property
    def pressure(self) -> Mapping[tuple[str, str], Mapping[str, Pressure]]:
        """Return the last PSI sample by pod and container ("" for the pod itself), then by cpu, mem and io."""
        return {} if self._pressure is None else self._pressure.latest

    @property
    def cache_monitors(self) -> Mapping[str, tuple[Monitor, ...]]:
        """Return the last resctrl sample by QoS class."""
        return {} if self._cache is None else self._cache.latest

    @property
    def hot_pages(self) -> bool:
        """Return whether the kernel distinguishes hot memory from cold."""
        return self._cold is not None and self._cold.is_on

    @property
    def gpus(self) -> tuple[GpuCard, ...]:
        return () if self._gpu is None else self._gpu.cards

    @property
    def gpus_known(self) -> bool:
        """Return False until the cards were listed once, or it is clear that there are none."""
        return self._gpu is None or self._gpu.known

    @property
    def gpu_driver(self) -> str:
        return "" if self._gpu is None else self._gpu.driver

    def close(self) -> None:
        self._pods.close()
        self._best_effort.close()
        self._applications.close()
        if self._cycles is not None:
            self._cycles.close()
        if self._gpu is not None:
            self._gpu.close()

    def _now_and_then(self, at_s: float, now_s: float, pods: Sequence[PodView]) -> None:
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
        if self._expiry.due(at_s):
            self._store.expire(now_s)
            late_s = self._clock.monotonic()  # counters were read after this tick began, and are not of the future
            for one in (self._node, self._pods, self._best_effort, self._applications):
                one.expire(late_s)


def _names(settings: Settings) -> tuple[str, ...]:
    optional = (
        (settings.storage, info.STORAGE),
        (settings.psi, stall.PRESSURE),
        (settings.cpi, cycles.CYCLES),
        (settings.cold_pages, cold_memory.COLD_MEMORY),
        (settings.resctrl, cache_monitor.CACHE),
        (settings.gpu, gpu.GPU),
    )
    always = (info.INFO, *node.NAMES, *pod.NAMES, best_effort.BEST_EFFORT_USE, application.APPLICATION)
    return (*always, *(name for wanted, name in optional if wanted))
