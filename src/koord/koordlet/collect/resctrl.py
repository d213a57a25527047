"""Measure how much last-level cache and memory bandwidth each QoS class uses, from resctrl's monitors."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.koordinator.qos_class import BE, LS, LSR
from koord.host import resctrl
from koord.host.filesystem import Host
from koord.host.io_error import IoError, unsupported
from koord.host.resctrl import CacheMonitor
from koord.koordlet.collect.collector import CollectorStatuses, IntervalTimer
from koord.koordlet.series import metric_kind
from koord.koordlet.series.counter_rate import CounterRates
from koord.koordlet.series.store import SeriesStore

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
