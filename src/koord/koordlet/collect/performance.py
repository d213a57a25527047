"""Measure how well work runs: cycles and instructions (CPI) from perf events, stalls (PSI), use of caches (resctrl).

CPI is counted for a window every minute. Each container needs two counters per CPU; when there are more containers than
descriptors, they take turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from koord.api.koordinator.protocol import BE, LS, LSR
from koord.host import perf, resctrl
from koord.host.cgroup.knob import CPU_PRESSURE, IO_PRESSURE, MEMORY_PRESSURE
from koord.host.cgroup.tree import CgroupTree
from koord.host.cgroup.usage import Pressure, pressure
from koord.host.filesystem import Host
from koord.host.io_error import IoError, unsupported
from koord.host.perf import Cpi
from koord.host.resctrl import CacheMonitor
from koord.koordlet.collect.collector import CollectorStatuses, CounterRates, IntervalTimer
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore

CYCLES = "cycles"
MAX_PERF_FDS = 4096


class PerfCounter(Protocol):
    """An open pair of perf counters of one container."""

    def read(self) -> Cpi | IoError: ...

    def close(self) -> None: ...


class PerfBackend(Protocol):
    """The interface of `koord.host.perf`."""

    def available(self) -> IoError | None: ...

    def open_cpi(self, host: Host, folder: str, cpus: list[int]) -> PerfCounter | IoError: ...


class CpiCollector:
    """Counts cycles and instructions of running containers over a window."""

    def __init__(
        self,
        tree: CgroupTree,
        store: SeriesStore,
        statuses: CollectorStatuses,
        every_s: float,
        window_s: float,
        most_descriptors: int = MAX_PERF_FDS,
        counting: PerfBackend = perf,
    ) -> None:
        self._tree = tree
        self._store = store
        self._statuses = statuses
        self._timer = IntervalTimer(every_s)
        self._window_s = window_s
        self._most = most_descriptors
        self._counting = counting
        self._open: dict[str, PerfCounter] = {}
        self._opened_s = 0.0
        self._turn = 0  # where the next round begins when not all fit

    def sample(self, at_s: float, now_s: float, pods: Sequence[PodMeta], cpus: Sequence[int]) -> None:
        if self._open and at_s - self._opened_s >= self._window_s:
            self._finish(now_s)
        if not self._open and self._timer.due(at_s):
            self._begin(at_s, pods, cpus)

    def close(self) -> None:
        for counter in self._open.values():
            counter.close()
        self._open = {}

    def _begin(self, at_s: float, pods: Sequence[PodMeta], cpus: Sequence[int]) -> None:
        refused = self._counting.available()
        if refused is not None:
            self._statuses.fails(CYCLES, refused, permanent=True)
            return
        running = [one for pod in pods for one in pod.containers if one.running and one.group]
        room = max(self._most // max(2 * len(cpus), 1), 1)
        if len(running) > room:
            start = self._turn % len(running)
            self._turn = start + room
            running = (running[start:] + running[:start])[:room]
        trouble: IoError | None = None
        for one in running:
            folder = self._tree.group_path("perf_event", one.group)
            counter = self._counting.open_cpi(self._tree.host, folder, list(cpus))
            if isinstance(counter, IoError):
                trouble = trouble if counter.vanished else counter
            else:
                self._open[one.id] = counter
        self._opened_s = at_s
        if trouble is None:
            self._statuses.works(CYCLES)
        else:
            self._statuses.fails(CYCLES, trouble)

    def _finish(self, now_s: float) -> None:
        for identity, counter in self._open.items():
            counted = counter.read()
            if not isinstance(counted, IoError):
                self._store.add((metric_kind.CONTAINER_CPI, identity, "cycle"), now_s, counted.cycles)
                self._store.add((metric_kind.CONTAINER_CPI, identity, "instruction"), now_s, counted.instructions)
        self.close()


PRESSURE = "pressure"
PSI_RESOURCES = (("cpu", CPU_PRESSURE), ("mem", MEMORY_PRESSURE), ("io", IO_PRESSURE))


class PsiCollector:
    """Samples the PSI of pods and containers: shares of time in which work waited for CPU, memory or I/O."""

    def __init__(self, tree: CgroupTree, store: SeriesStore, statuses: CollectorStatuses, every_s: float) -> None:
        self._tree = tree
        self._store = store
        self._statuses = statuses
        self._timer = IntervalTimer(every_s)
        self.latest: Mapping[tuple[str, str], Mapping[str, Pressure]] = {}  # by pod and container ("" for the pod)

    def sample(self, at_s: float, now_s: float, pods: Sequence[PodMeta]) -> None:
        if not self._timer.due(at_s):
            return
        missing = next((name for _, name in PSI_RESOURCES if not self._tree.is_supported(name)), None)
        if missing is not None:
            why = "this kernel tells no pressure of groups (it may have to be booted with psi=1)"
            self._statuses.fails(PRESSURE, unsupported(missing, why), permanent=True)
            return
        latest: dict[tuple[str, str], Mapping[str, Pressure]] = {}
        trouble: IoError | None = None
        for pod in pods:
            if not pod.is_alive or not pod.group:
                continue
            targets = [(pod.group, "", metric_kind.POD_PSI, metric_kind.POD_PSI_CPU_FULL_SUPPORTED, pod.uid)]
            targets += [
                (one.group, one.id, metric_kind.CONTAINER_PSI, metric_kind.CONTAINER_PSI_CPU_FULL_SUPPORTED, one.id)
                for one in pod.containers
                if one.id and one.group
            ]
            for group, container, series, full, subject in targets:
                found = self._read(group)
                if isinstance(found, IoError):
                    trouble = trouble if found.vanished else found
                    continue
                latest[pod.uid, container] = found
                self._keep(series, full, subject, now_s, found)
        self.latest = latest
        if trouble is None:
            self._statuses.works(PRESSURE)
        else:
            self._statuses.fails(PRESSURE, trouble)

    def _read(self, group: str) -> dict[str, Pressure] | IoError:
        found: dict[str, Pressure] = {}
        for name, knob in PSI_RESOURCES:
            one = pressure(self._tree, knob, group)
            if isinstance(one, IoError):
                return one
            found[name] = one
        return found

    def _keep(self, series: str, full: str, subject: str, now_s: float, found: dict[str, Pressure]) -> None:
        for name, one in found.items():
            self._store.add((series, subject, name, "10", "some"), now_s, one.some.avg10)
            self._store.add((series, subject, name, "10", "full"), now_s, one.full.avg10)
        self._store.add((full, subject), now_s, float(found["cpu"].full_supported))


RESCTRL = "resctrl"
CLASSES = (LSR, LS, BE)


class ResctrlCollector:
    def __init__(self, host: Host, store: SeriesStore, statuses: CollectorStatuses, every_s: float) -> None:
        self._host = host
        self._store = store
        self._statuses = statuses
        self._timer = IntervalTimer(every_s)
        self._counters = CounterRates(20 * every_s)
        self.latest: Mapping[str, tuple[CacheMonitor, ...]] = {}  # by class

    def sample(self, at_s: float, now_s: float) -> None:
        """Take one sample: occupancy in bytes, bandwidth in bytes per second as the rate of the monitors' counters."""
        if not self._timer.due(at_s):
            return
        if not resctrl.is_mounted(self._host):
            why = unsupported(resctrl.group_dir(self._host), "the resctrl file system is not mounted here")
            self._statuses.fails(RESCTRL, why, permanent=True)
            return
        latest: dict[str, tuple[CacheMonitor, ...]] = {}
        trouble: IoError | None = None
        for name in CLASSES:
            found = resctrl.monitors(self._host, name)
            if isinstance(found, IoError):
                trouble = trouble if found.vanished else found  # a class without a group has no samples
                continue
            latest[name] = tuple(found)
            for one in found:
                self._keep(name, one, at_s, now_s)
        self.latest = latest
        if trouble is None:
            self._statuses.works(RESCTRL)
        else:
            self._statuses.fails(RESCTRL, trouble)

    def _keep(self, name: str, one: CacheMonitor, at_s: float, now_s: float) -> None:
        cache = str(one.cache)
        self._store.add((metric_kind.CACHE_OCCUPANCY, name, cache), now_s, one.llc_bytes)
        for scope, total in (("local", one.mbm_local_bytes), ("total", one.mbm_total_bytes)):
            rate = self._counters.rate((name, cache, scope), at_s, total)
            if rate is not None:
                self._store.add((metric_kind.MEMORY_BANDWIDTH, name, cache, scope), now_s, rate)
