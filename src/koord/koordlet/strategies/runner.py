"""The strategy runner observes, decides and executes every strategy that is due, and returns what became of each.

It is synchronous and reads no clock: the agent calls it once a second, a simulated node whenever its time moves on. It
keeps what must survive between ticks: burst tokens, pending evictions, and when each strategy last ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from koord.api.koordinator.qos_class import BATCH, MID
from koord.api.koordinator.resource_name import TIER_RESOURCE_NAMES
from koord.koordlet.cgroup_writer.effects import FileEffect, FileWriteResult, WriteOutcome
from koord.koordlet.eviction.tracker import EvictionRequest, EvictionTracker
from koord.koordlet.inputs.machine import NodeMachine
from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies import blkio, cpu_burst, cpu_suppress, group_identity, memory_qos, resctrl, system_config
from koord.koordlet.strategies.blkio import observe_blkio
from koord.koordlet.strategies.burst_limiter import BurstTokens
from koord.koordlet.strategies.cpu_burst import observe_cpu_burst
from koord.koordlet.strategies.cpu_evict import decide_cpu_evict, observe_cpu_evict
from koord.koordlet.strategies.cpu_suppress import observe_cpu_suppress
from koord.koordlet.strategies.group_identity import observe_group_identity
from koord.koordlet.strategies.memory_evict import decide_memory_evict, observe_memory_evict
from koord.koordlet.strategies.memory_qos import observe_memory_qos
from koord.koordlet.strategies.registry import STRATEGIES, StrategyEntry
from koord.koordlet.strategies.resctrl import observe_resctrl
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan, StrategySettings
from koord.koordlet.strategies.system_config import observe_system_config

_SLACK_S = 0.05  # a tick that comes a little early still counts
_BATCH_AND_MID_RESOURCES = tuple(name for tier in (BATCH, MID) for name in TIER_RESOURCE_NAMES[tier].values())
# The file owners of each strategy's plan; strategies that only evict have none.
FILE_OWNERS: Mapping[str, tuple[str, ...]] = {
    cpu_suppress.OWNER: (cpu_suppress.OWNER,),
    cpu_burst.OWNER: (cpu_burst.OWNER,),
    resctrl.OWNER: (resctrl.OWNER,),
    blkio.OWNER: (blkio.OWNER,),
    memory_qos.OWNER: (memory_qos.OWNER,),
    system_config.OWNER: (system_config.OWNER,),
    group_identity.OWNER: (group_identity.OWNER, group_identity.SWITCH_OWNER),
}


class StrategyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one strategy did in a tick. The caller carries out `evictions` and answers each with
    `StrategyRunner.evicted` or `StrategyRunner.eviction_failed`. An `error` is a bug of the program; the other
    strategies ran all the same.
    """

    strategy: str
    plan: StrategyPlan = StrategyPlan()
    results: tuple[FileWriteResult, ...] = ()
    evictions: tuple[EvictionRequest, ...] = ()
    error: Exception | None = None


class StrategyRunner:
    """The runner owns the state of all strategies of one machine."""

    def __init__(
        self,
        machine: NodeMachine,
        store: SeriesStore,
        gates: frozenset[str],
        settings: StrategySettings = StrategySettings(),  # noqa: B008 - a frozen value
    ) -> None:
        """`gates` are the names of all enabled feature gates, those of runtime hooks included."""
        self._machine = machine
        self._store = store
        self._gates = gates
        self._settings = settings
        self._eviction_tracker = EvictionTracker()
        self._tokens: Mapping[str, BurstTokens] = {}
        self._last_run_s: dict[str, float] = {}
        self._released: set[str] = set()
        self._batch_allocatable: tuple[int | None, ...] | None = None
        self._batch_allocatable_since_s = 0.0
        self._decide: Mapping[str, Callable[[StrategyInputs], tuple[StrategyPlan, bool]]] = {
            cpu_suppress.OWNER: _suppress,
            cpu_burst.OWNER: self._burst,
            "CPUEvict": lambda inputs: (decide_cpu_evict(observe_cpu_evict(inputs)), False),
            "memoryEvict": lambda inputs: (decide_memory_evict(observe_memory_evict(inputs)), False),
            resctrl.OWNER: _resctrl,
            blkio.OWNER: _blkio,
            memory_qos.OWNER: _memory_qos,
            system_config.OWNER: _system_config,
            group_identity.OWNER: _group_identity,
        }

    @property
    def enabled(self) -> tuple[str, ...]:
        """Return the names of the strategies whose gates are on."""
        return tuple(strategy.name for strategy in STRATEGIES if self._is_on(strategy))

    def tick(self, now_s: float, node_inputs: NodeInputs) -> tuple[StrategyResult, ...]:
        """Run every strategy that is due. Nothing is decided before the pods were listed once."""
        if not node_inputs.pods_known:
            return ()
        self._eviction_tracker.begin_tick(now_s, node_inputs.pods)
        inputs = self._inputs(now_s, node_inputs)
        ran: list[StrategyResult] = []
        for strategy in STRATEGIES:
            if not self._is_on(strategy):
                ran += self._release(strategy.name, node_inputs)
            elif self._is_due(strategy, now_s):
                self._last_run_s[strategy.name] = now_s
                ran.append(self._run(strategy.name, inputs))
        return tuple(ran)

    def evicted(self, now_s: float, uid: str) -> None:
        """Record that a requested eviction was accepted: the pod is leaving."""
        self._eviction_tracker.evicted(now_s, uid)

    def eviction_failed(self, now_s: float, uid: str, why: str) -> None:
        """Record that a requested eviction failed; the pod is left alone for a while, and others are considered."""
        self._eviction_tracker.eviction_failed(now_s, uid, why)

    def _run(self, name: str, inputs: StrategyInputs) -> StrategyResult:
        try:
            plan, whole = self._decide[name](inputs)
            if inputs.node_inputs.safe_mode:
                return StrategyResult(strategy=name, plan=plan)
            evictions = tuple(one for one in plan.effects if isinstance(one, EvictionRequest))
            files: list[FileEffect] = [one for one in plan.effects if not isinstance(one, EvictionRequest)]
            results: Sequence[FileWriteResult] = ()
            if files or whole:
                results = self._machine.execute(files, complete_owners=FILE_OWNERS[name] if whole else ())
            self._eviction_tracker.request(inputs.now_s, name, evictions)
        except Exception as error:  # noqa: BLE001 - handed to the caller: one strategy's fault spares the others
            return StrategyResult(strategy=name, error=error)
        return StrategyResult(strategy=name, plan=plan, results=tuple(results), evictions=evictions)

    def _release(self, name: str, node_inputs: NodeInputs) -> list[StrategyResult]:
        """Restore once what a strategy wrote, also in an earlier process, when its gates are off."""
        if node_inputs.safe_mode or name in self._released or name not in FILE_OWNERS:
            return []
        self._released.add(name)
        results = [one for owner in FILE_OWNERS[name] for one in self._machine.release(owner, "its gate is off")]
        return (
            [StrategyResult(strategy=name, plan=StrategyPlan(why="its gate is off"), results=tuple(results))]
            if results
            else []
        )

    def _inputs(self, now_s: float, node_inputs: NodeInputs) -> StrategyInputs:
        node = node_inputs.node
        lent = None if node is None else tuple(node.allocatable.get(name) for name in _BATCH_AND_MID_RESOURCES)
        if lent != self._batch_allocatable or now_s < self._batch_allocatable_since_s:
            self._batch_allocatable, self._batch_allocatable_since_s = lent, now_s
        return StrategyInputs(
            now_s=now_s,
            node_inputs=node_inputs,
            store=self._store,
            machine=self._machine,
            settings=self._settings,
            gates=self._gates,
            eviction_tracker=self._eviction_tracker,
            tokens=self._tokens,
            lent_for_s=now_s - self._batch_allocatable_since_s,
        )

    def _burst(self, inputs: StrategyInputs) -> tuple[StrategyPlan, bool]:
        decided = cpu_burst.decide_cpu_burst(observe_cpu_burst(inputs))
        self._tokens = decided.tokens
        return decided.plan, False

    def _is_on(self, strategy: StrategyEntry) -> bool:
        return any(gate in self._gates for gate in strategy.gates)

    def _is_due(self, strategy: StrategyEntry, now_s: float) -> bool:
        """Return whether the strategy's period has passed; a clock that went back makes everything due."""
        last = self._last_run_s.get(strategy.name)
        period_s = self._settings.period_s.get(strategy.name, strategy.period_s)
        return last is None or now_s < last or now_s - last >= period_s - _SLACK_S


# Each returns its plan, and whether that is all that the owner wants: then what it wrote before and does not
# mention any more is restored. CPU suppression and burst leave out what need not change, so theirs never is.


def _suppress(inputs: StrategyInputs) -> tuple[StrategyPlan, bool]:
    return cpu_suppress.decide_cpu_suppress(observe_cpu_suppress(inputs)), False


def _resctrl(inputs: StrategyInputs) -> tuple[StrategyPlan, bool]:
    view = observe_resctrl(inputs)
    return resctrl.decide_resctrl(view), view.strategy is not None and view.supported


def _blkio(inputs: StrategyInputs) -> tuple[StrategyPlan, bool]:
    """Decide about disks. A disk that cannot be found now is named in `why`, and its limits must stay."""
    plan = blkio.decide_blkio(observe_blkio(inputs))
    return plan, not plan.why


def _memory_qos(inputs: StrategyInputs) -> tuple[StrategyPlan, bool]:
    view = observe_memory_qos(inputs)
    return memory_qos.decide_memory_qos(view), view.strategy is not None and bool(view.allocatable_bytes)


def _system_config(inputs: StrategyInputs) -> tuple[StrategyPlan, bool]:
    view = observe_system_config(inputs)
    return system_config.decide_system_config(view), view.strategy is not None and bool(view.capacity_bytes)


def _group_identity(inputs: StrategyInputs) -> tuple[StrategyPlan, bool]:
    view = observe_group_identity(inputs)
    return group_identity.decide_group_identity(view), view.strategy is not None


_REFUSED = (
    WriteOutcome.REJECTED,
    WriteOutcome.FAILED,
    WriteOutcome.OFF,
    WriteOutcome.INVALID,
    WriteOutcome.HELD,
    WriteOutcome.WAITING,
)
_MAX_REFUSALS = 20  # refusals that are listed


class StrategyStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a strategy last did, as `/strategies` serves it."""

    strategy: str
    at: str = ""
    why: str = ""
    effects: int = 0
    written: int = 0
    refused: tuple[str, ...] = ()
    error: str = ""


def strategy_status(ran: StrategyResult, at: str) -> StrategyStatus:
    """Summarise the result of one strategy."""
    refused = tuple(
        f"{result.status.value}: {result.detail or result.io_error}"
        for result in ran.results
        if result.status in _REFUSED
    )
    return StrategyStatus(
        strategy=ran.strategy,
        at=at,
        why=ran.plan.why,
        effects=len(ran.plan.effects),
        written=sum(result.status is WriteOutcome.WRITTEN for result in ran.results),
        refused=refused[:_MAX_REFUSALS],
        error="" if ran.error is None else repr(ran.error),
    )
