"""Measure how much last-level cache and memory bandwidth each QoS class uses, from resctrl's monitors."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.qos_class import BE, LS, LSR
from koord.host import resctrl
from koord.host.fault import Fault, lacking
from koord.host.host import Host
from koord.host.resctrl import Monitor
from koord.koordlet.collect.condition import Conditions
from koord.koordlet.collect.settings import Timer
from koord.koordlet.series import kind
from koord.koordlet.series.counter import Counters
from koord.koordlet.series.store import Store

CACHE = "resctrl"
CLASSES = (LSR, LS, BE)


class CacheCollector:
    def __init__(self, host: Host, store: Store, conditions: Conditions, every_s: float) -> None:
        self._host = host
        self._store = store
        self._conditions = conditions
        self._timer = Timer(every_s)
        self._counters = Counters(20 * every_s)
        self.latest: Mapping[str, tuple[Monitor, ...]] = {}  # by class

    def sample(self, at_s: float, now_s: float) -> None:
        """Take one sample: occupancy in bytes, bandwidth in bytes per second as the rate of the monitors' counters."""
        if not self._timer.due(at_s):
            return
        if not resctrl.mounted(self._host):
            why = lacking(resctrl.folder(self._host), "the resctrl file system is not mounted here")
            self._conditions.fails(CACHE, why, for_good=True)
            return
        latest: dict[str, tuple[Monitor, ...]] = {}
        trouble: Fault | None = None
        for name in CLASSES:
            found = resctrl.monitors(self._host, name)
            if isinstance(found, Fault):
                trouble = trouble if found.vanished else found  # a class without a group has no samples
                continue
            latest[name] = tuple(found)
            for one in found:
                self._keep(name, one, at_s, now_s)
        self.latest = latest
        if trouble is None:
            self._conditions.works(CACHE)
        else:
            self._conditions.fails(CACHE, trouble)

    def _keep(self, name: str, one: Monitor, at_s: float, now_s: float) -> None:
        cache = str(one.cache)
        self._store.add((kind.CACHE_OCCUPANCY, name, cache), now_s, one.llc_bytes)
        for scope, total in (("local", one.mbm_local_bytes), ("total", one.mbm_total_bytes)):
            rate = self._counters.rate((name, cache, scope), at_s, total)
            if rate is not None:
                self._store.add((kind.MEMORY_BANDWIDTH, name, cache, scope), now_s, rate)
