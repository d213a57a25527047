"""The contract of a strategy: its settings, the inputs that it observes in a tick, and the plan that it decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from koord.api.koordinator.slo_strategy import ResourceQOSStrategy, ResourceThresholdStrategy
from koord.koordlet.cgroup_writer.effects import AddTasks, WriteCgroup, WriteSchemata, WriteSystem
from koord.koordlet.eviction.tracker import EvictionRequest, EvictionTracker
from koord.koordlet.inputs.machine import NodeMachine
from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies.burst_limiter import BurstTokens
from koord.values.cpuset import EMPTY, CPUSet, CPUSetError
from koord.values.go_format import integer

Effect: TypeAlias = WriteCgroup | WriteSystem | WriteSchemata | AddTasks | EvictionRequest


class StrategyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The effects that a strategy wants, in an order in which each single one is safe; an executor that knows the
    present values may find a better order.

    `why` explains a plan that does nothing, and `figures` are the numbers that gauges show.
    """

    effects: tuple[Effect, ...] = ()
    why: str = ""
    figures: Mapping[str, float] = {}


class StrategySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's flags that decisions depend on."""

    collect_interval_s: float = 1.0
    period_s: Mapping[str, float] = {}  # by strategy, where it is not the table's
    cpu_evict_cooldown_s: float = 20.0
    memory_evict_cooldown_s: float = 4.0
    idle_stands_in: bool = True  # for group identity, on kernels without


class StrategyInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All that strategies observe in one tick, with the reads that more than one of them needs."""

    now_s: float
    node_inputs: NodeInputs
    store: SeriesStore
    machine: NodeMachine
    settings: StrategySettings
    gates: frozenset[str]  # that are on
    eviction_tracker: EvictionTracker
    tokens: Mapping[str, BurstTokens] = {}  # of bursts, as the last tick left them
    lent_for_s: float = 0.0
    latest_by_kind: dict[str, dict[str, float]] = msgspec.field(
        default_factory=dict
    )  # by kind of series, then by subject

    @property
    def pods(self) -> tuple[PodMeta, ...]:
        return self.node_inputs.pods

    @property
    def threshold(self) -> ResourceThresholdStrategy:
        """Return the threshold strategy of the NodeSLO; an empty one until a NodeSLO was seen."""
        slo = self.node_inputs.slo
        found = None if slo is None else slo.resource_used_threshold_with_be
        return ResourceThresholdStrategy() if found is None else found

    @property
    def threshold_enabled(self) -> bool | None:
        """Return whether the threshold strategy is enabled; None until a NodeSLO was seen."""
        return None if self.node_inputs.slo is None else bool(self.threshold.enable)

    def capacity(self, resource: str) -> int | None:
        node = self.node_inputs.node
        return None if node is None else node.capacity.get(resource)

    def allocatable(self, resource: str) -> int | None:
        node = self.node_inputs.node
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
        return {uid: int(value * 1000) for uid, value in self._latest(metric_kind.POD_CPU).items()}

    def pod_used_bytes(self) -> dict[str, int]:
        return {uid: int(value) for uid, value in self._latest(metric_kind.POD_MEMORY).items()}

    def number(self, group: str, file: str) -> int | None:
        value = self.machine.read_knob(group, file)
        return None if value is None else integer(value)

    def cpus(self, group: str, file: str) -> CPUSet:
        try:
            return CPUSet.parse(self.machine.read_knob(group, file) or "")
        except CPUSetError:
            return EMPTY

    def _latest(self, name: str) -> dict[str, float]:
        """Return the latest values of a kind by subject; cached, as several strategies of a tick need them."""
        found = self.latest_by_kind.get(name)
        if found is None:
            found = {key[1]: value for key, value in self.store.latest_of(name, self.now_s).items()}
            self.latest_by_kind[name] = found
        return found


def resource_qos_strategy(inputs: StrategyInputs) -> ResourceQOSStrategy | None:
    """Return the resource QoS strategy of the NodeSLO; None until a NodeSLO was seen."""
    return None if inputs.node_inputs.slo is None else inputs.node_inputs.slo.resource_qos_strategy
