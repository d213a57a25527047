"""The strategy runner observes, decides and executes every strategy that is due, and returns what became of each.

It is synchronous and reads no clock: the agent calls it once a second, a simulated node whenever its time moves on. It
keeps what must survive between ticks: the state of each strategy, pending evictions, and when each last ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from koord.api.koordinator.qos_class import BATCH, MID
from koord.api.koordinator.resource_name import TIER_RESOURCE_NAMES
from koord.koordlet.cgroup_writer.effects import FileEffect, FileWriteResult, WriteOutcome
from koord.koordlet.eviction.ledger import EvictionRequest
from koord.koordlet.eviction.tracker import EvictionTracker
from koord.koordlet.inputs.machine import NodeMachine
from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies.registry import STRATEGIES, StrategyEntry
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan, StrategySettings

_SLACK_S = 0.05  # a tick that comes a little early still counts
_BATCH_AND_MID_RESOURCES = tuple(name for tier in (BATCH, MID) for name in TIER_RESOURCE_NAMES[tier].values())


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
        self._states: dict[str, Any] = {}  # by strategy
        self._last_run_s: dict[str, float] = {}
        self._released: set[str] = set()
        self._batch_allocatable: tuple[int | None, ...] | None = None
        self._batch_allocatable_since_s = 0.0

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
                ran += self._release(strategy, node_inputs)
            elif self._is_due(strategy, now_s):
                self._last_run_s[strategy.name] = now_s
                ran.append(self._run(strategy, inputs))
        return tuple(ran)

    def evicted(self, now_s: float, uid: str) -> None:
        """Record that a requested eviction was accepted: the pod is leaving."""
        self._eviction_tracker.evicted(now_s, uid)

    def eviction_failed(self, now_s: float, uid: str, why: str) -> None:
        """Record that a requested eviction failed; the pod is left alone for a while, and others are considered."""
        self._eviction_tracker.eviction_failed(now_s, uid, why)

    def _run(self, strategy: StrategyEntry, inputs: StrategyInputs) -> StrategyResult:
        name = strategy.name
        try:
            plan = strategy.decide(strategy.observe(inputs))
            if plan.state is not None:
                self._states[name] = plan.state
            if inputs.node_inputs.safe_mode:
                return StrategyResult(strategy=name, plan=plan)
            evictions = tuple(one for one in plan.effects if isinstance(one, EvictionRequest))
            files: list[FileEffect] = [one for one in plan.effects if not isinstance(one, EvictionRequest)]
            results: Sequence[FileWriteResult] = ()
            if files or plan.complete:
                results = self._machine.execute(files, complete_owners=strategy.restores if plan.complete else ())
            self._eviction_tracker.request(inputs.now_s, name, evictions)
        except Exception as error:  # noqa: BLE001 - handed to the caller: one strategy's fault spares the others
            return StrategyResult(strategy=name, error=error)
        return StrategyResult(strategy=name, plan=plan, results=tuple(results), evictions=evictions)

    def _release(self, strategy: StrategyEntry, node_inputs: NodeInputs) -> list[StrategyResult]:
        """Restore once what a strategy wrote, also in an earlier process, when its gates are off."""
        name, why = strategy.name, "its gate is off"
        if node_inputs.safe_mode or name in self._released:
            return []
        self._released.add(name)
        results = tuple(one for owner in strategy.restores for one in self._machine.release(owner, why))
        return [StrategyResult(strategy=name, plan=StrategyPlan(why=why), results=results)] if results else []

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
            states=self._states,
            lent_for_s=now_s - self._batch_allocatable_since_s,
        )

    def _is_on(self, strategy: StrategyEntry) -> bool:
        return any(gate in self._gates for gate in strategy.gates)

    def _is_due(self, strategy: StrategyEntry, now_s: float) -> bool:
        """Return whether the strategy's period has passed; a clock that went back makes everything due."""
        last = self._last_run_s.get(strategy.name)
        period_s = self._settings.period_s.get(strategy.name, strategy.period_s)
        return last is None or now_s < last or now_s - last >= period_s - _SLACK_S


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
