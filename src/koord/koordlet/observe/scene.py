"""The contract of a strategy: its settings, the inputs that it observes in a tick, and the plan that it decides."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.slo_strategy import ResourceThresholdStrategy
from koord.koordlet.departure import Departures
from koord.koordlet.facts import Facts
from koord.koordlet.machine import Machine
from koord.koordlet.pod import PodView
from koord.koordlet.series import kind
from koord.koordlet.series.store import Store
from koord.koordlet.strategies.burst_limiter import Tokens
from koord.values.cpuset import EMPTY, CPUSet, CPUSetError
from koord.values.quotation import integer


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's flags that decisions depend on."""

    collect_interval_s: float = 1.0
    period_s: Mapping[str, float] = {}  # by strategy, where it is not the table's
    cpu_evict_cool_s: float = 20.0
    memory_evict_cool_s: float = 4.0
    idle_stands_in: bool = True  # for group identity, on kernels without


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """All that strategies observe in one tick, with the reads that more than one of them needs."""
    now_s: float
    facts: Facts
    store: Store
    machine: Machine
    settings: Settings
    gates: frozenset[str]  # that are on
    departures: Departures
    tokens: Mapping[str, Tokens] = {}  # of bursts, as the last tick left them
    lent_for_s: float = 0.0
    seen: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)  # by kind of series, then by subject

    @property
    def pods(self) -> tuple[PodView, ...]:
        return self.facts.pods

    @property
    def threshold(self) -> ResourceThresholdStrategy:
        """Return the threshold strategy of the NodeSLO; an empty one until a NodeSLO was seen."""
        slo = self.facts.slo
        found = None if slo is None else slo.resource_used_threshold_with_be
        return ResourceThresholdStrategy() if found is None else found

    @property
    def threshold_enabled(self) -> bool | None:
        """Return whether the threshold strategy is enabled; None until a NodeSLO was seen."""
        return None if self.facts.slo is None else bool(self.threshold.enable)

    def capacity(self, resource: str) -> int | None:
        node = self.facts.node
        return None if node is None else node.capacity.get(resource)

    def allocatable(self, resource: str) -> int | None:
        node = self.facts.node
        return None if node is None else node.allocatable.get(resource)

    def latest_milli(self, *key: str) -> int | None:
        """Return the last value of a series in cores, as milli-cores."""
        value = self.store.latest(key, self.now_s)
        return None if value is None else int(value * 1000)

    def average_milli(self, length_s: float, *key: str) -> int | None:
        """Return the average of a series in cores over a window, as milli-cores."""
        value = self.store.window(key, self.now_s, length_s).avg
        return None if value is None else int(value * 1000)

    def pod_used_milli(self) -> dict[str, int]:
        """Return the used CPU by uid, also of pods that are measured but not listed (any more)."""
        return {uid: int(value * 1000) for uid, value in self._latest(kind.POD_CPU).items()}

    def pod_used_bytes(self) -> dict[str, int]:
        return {uid: int(value) for uid, value in self._latest(kind.POD_MEMORY).items()}

    def number(self, group: str, file: str) -> int | None:
        value = self.machine.knob(group, file)
        return None if value is None else integer(value)

    def cpus(self, group: str, file: str) -> CPUSet:
        try:
            return CPUSet.parse(self.machine.knob(group, file) or "")
        except CPUSetError:
            return EMPTY

    def _latest(self, name: str) -> dict[str, float]:
        """Return the latest values of a kind by subject; cached, as several strategies of a tick need them."""
        found = self.seen.get(name)
        if found is None:
            found = {key[1]: value for key, value in self.store.latest_of(name, self.now_s).items()}
            self.seen[name] = found
        return found
