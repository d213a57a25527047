"""The contract of a strategy: its settings, the inputs that it observes in a tick, and the plan that it decides."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from koord.api.koordinator.protocol import BATCH, MID
from koord.api.koordinator.resource_name import TIER_RESOURCE_NAMES
from koord.api.koordinator.slo import NodeSLOSpec, ResourceQOSStrategy, ResourceThresholdStrategy
from koord.host.cgroup.knob import CPUSET
from koord.koordlet.cgroup_writer.effects import FileEffect
from koord.koordlet.hooks.hook import HookSettings
from koord.koordlet.inputs.machine import NodeMachine
from koord.koordlet.inputs.node_inputs import NodeInputs, NodeProperties
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies.eviction_tracker import EvictionRequest, EvictionTracker
from koord.values.cpuset import CPUSet
from koord.values.go_format import parse_decimal_int

Effect: TypeAlias = FileEffect | EvictionRequest


class StrategyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The effects that a strategy wants, in an order in which each single one is safe; an executor that knows the
    present values may find a better order.

    `why` explains a plan that does nothing, and `figures` are the numbers that gauges show. A `complete` plan names all
    files that the strategy wants: what it wrote before and does not name any more is restored, except the `kept` files,
    which are named by group and knob and stay as they are. `state` is what the strategy finds in the inputs of its next
    tick; None leaves the last one.

    `batch_sizes` divide the effects, in their order, into batches that are independent of each other, as those of two
    pods are: others may act between two of them. Without any, all are one batch.
    """

    effects: tuple[Effect, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    why: str = ""
    figures: Mapping[str, float] = {}
    complete: bool = False
    state: Any = None
    batch_sizes: tuple[int, ...] = ()


class StrategySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's flags that decisions depend on."""

    collect_interval_s: float = 1.0
    period_s: Mapping[str, float] = {}  # by strategy, where it is not the table's
    cpu_evict_cooldown_s: float = 20.0
    memory_evict_cooldown_s: float = 4.0
    idle_stands_in: bool = True  # for group identity, on kernels without
    hooks: HookSettings = HookSettings()


_BATCH_AND_MID_RESOURCES = tuple(name for tier in (BATCH, MID) for name in TIER_RESOURCE_NAMES[tier].values())


class StrategyInputs:
    """StrategyInputs holds what strategies read in a tick: what is known of the node, its machine and its series, with
    the reads that more
    than one of them needs.

    One object serves all ticks of a machine. `states` holds what the last plan of each strategy left for its next tick.
    """

    def __init__(
        self, machine: NodeMachine, store: SeriesStore, gates: frozenset[str], settings: StrategySettings
    ) -> None:
        """`gates` are the names of all enabled feature gates, those of runtime hooks included."""
        self.machine = machine
        self.store = store
        self.gates = gates
        self.settings = settings
        self.eviction_tracker = EvictionTracker()
        self.states: dict[str, Any] = {}
        self.now_s = 0.0
        self.node_inputs = NodeInputs()
        self._batch_allocatable: tuple[int | None, ...] | None = None
        self._batch_allocatable_since_s = 0.0
        self._latest_by_kind: dict[str, dict[str, float]] = {}  # by kind of series, then by subject

    def begin_tick(self, now_s: float, node_inputs: NodeInputs) -> None:
        self.now_s = now_s
        self.node_inputs = node_inputs
        self._latest_by_kind = {}
        self.eviction_tracker.begin_tick(now_s, (*node_inputs.pods, *node_inputs.third_party))
        node = node_inputs.node
        lent = None if node is None else tuple(node.allocatable.get(name) for name in _BATCH_AND_MID_RESOURCES)
        if lent != self._batch_allocatable or now_s < self._batch_allocatable_since_s:
            self._batch_allocatable, self._batch_allocatable_since_s = lent, now_s

    @property
    def lent_for_s(self) -> float:
        """Return for how long the node has had its present batch and mid allocatable."""
        return self.now_s - self._batch_allocatable_since_s

    @property
    def node(self) -> NodeProperties | None:
        return self.node_inputs.node

    @property
    def slo(self) -> NodeSLOSpec | None:
        return self.node_inputs.slo

    @property
    def pods(self) -> tuple[PodMeta, ...]:
        return self.node_inputs.pods

    @property
    def third_party(self) -> tuple[PodMeta, ...]:
        return self.node_inputs.third_party

    @property
    def threshold(self) -> ResourceThresholdStrategy:
        """Return the threshold strategy of the NodeSLO; an empty one until a NodeSLO was seen."""
        found = None if self.slo is None else self.slo.resource_used_threshold_with_be
        return ResourceThresholdStrategy() if found is None else found

    @property
    def threshold_enabled(self) -> bool | None:
        """Return whether the threshold strategy is enabled; None until a NodeSLO was seen."""
        return None if self.slo is None else bool(self.threshold.enable)

    @property
    def resource_qos_strategy(self) -> ResourceQOSStrategy | None:
        """Return the resource QoS strategy of the NodeSLO; None until a NodeSLO was seen."""
        return None if self.slo is None else self.slo.resource_qos_strategy

    def capacity(self, resource: str) -> int | None:
        node = self.node
        return None if node is None else node.capacity.get(resource)

    def allocatable(self, resource: str) -> int | None:
        node = self.node
        return None if node is None else node.allocatable.get(resource)

    def latest_milli(self, *key: str) -> int | None:
        value = self.store.latest(key, self.now_s)
        return None if value is None else int(value * 1000)

    def average_milli(self, length_s: float, *key: str) -> int | None:
        value = self.store.window(key, self.now_s, length_s).avg
        return None if value is None else int(value * 1000)

    def pod_used_milli(self) -> dict[str, int]:
        """Return the used CPU by uid, also of pods that are measured but not listed (any more)."""
        return {uid: int(value * 1000) for uid, value in self._latest(metric_kind.POD_CPU).items()}

    def pod_used_bytes(self) -> dict[str, int]:
        return {uid: int(value) for uid, value in self._latest(metric_kind.POD_MEMORY).items()}

    def third_party_used_milli(self) -> dict[str, int]:
        return {uid: int(value * 1000) for uid, value in self._latest(metric_kind.THIRD_PARTY_CPU).items()}

    def third_party_used_bytes(self) -> dict[str, int]:
        return {uid: int(value) for uid, value in self._latest(metric_kind.THIRD_PARTY_MEMORY).items()}

    def number(self, group: str, file: str) -> int | None:
        value = self.machine.read_knob(group, file)
        return None if value is None else parse_decimal_int(value)

    def cpus(self, group: str, file: str) -> CPUSet:
        return CPUSet.parse_or_empty(self.machine.read_knob(group, file) or "")

    @property
    def unbound_cpus(self) -> str | None:
        """Return the CPUs of a group of pods that nobody bound, as its file has them: version 2 says nothing there.
        None where the kubelet binds some, or may.
        """
        shape, kubelet = self.machine.shape, self.node_inputs.kubelet
        if kubelet.is_static or not kubelet.known:
            return None
        return "" if shape.cgroup_version != 1 else self.machine.read_knob(shape.kubepods, CPUSET)

    def _latest(self, name: str) -> dict[str, float]:
        """Return the latest values of a kind by subject; cached, as several strategies of a tick need them."""
        found = self._latest_by_kind.get(name)
        if found is None:
            found = {key[1]: value for key, value in self.store.latest_of(name, self.now_s).items()}
            self._latest_by_kind[name] = found
        return found


T = TypeVar("T")
# Work that yields wherever other tasks of the same event loop may run in between: what must not be divided lies between
# two yields. A simulated node waits for all of it; the agent runs it cooperatively, as its runtime expects answers.
WorkSteps: TypeAlias = Generator[None, None, T]


def run_steps(steps: WorkSteps[T]) -> T:
    """Run all steps at once and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def timed_steps(steps: WorkSteps[T], timer: Callable[[], float]) -> WorkSteps[tuple[T, float]]:
    """Return the result and the seconds that the steps took themselves, without what ran in between."""
    seconds = 0.0
    while True:
        began = timer()
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result, seconds + timer() - began
        seconds += timer() - began
        yield
