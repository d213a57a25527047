"""The strategy runner observes, decides and executes every strategy that is due, and returns what became of each.

It reads no clock: the agent runs it once a second in steps, a simulated node at once whenever its time moves on. It
keeps what must survive between ticks: the state of each strategy, pending evictions, and when each last ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from koord.koordlet.cgroup_writer.effects import FileEffect, FileWriteResult, WriteCgroup, WriteOutcome
from koord.koordlet.inputs.machine import NodeMachine
from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.registry import STRATEGIES, StrategyEntry
from koord.koordlet.strategies.strategy import (
    StrategyInputs,
    StrategyPlan,
    StrategySettings,
    WorkSteps,
    run_steps,
    timed_steps,
)

_SLACK_S = 0.05  # a tick that comes a little early still counts


class StrategyResult(msgspec.Struct, frozen=True, kw_only=True):
    """StrategyResult is what one strategy did in a tick. The caller carries out `evictions` and answers each with
    `StrategyRunner.evicted` or `StrategyRunner.eviction_failed`. An `error` is a bug of the program; the other
    strategies ran all the same.
    """

    strategy: str
    plan: StrategyPlan = StrategyPlan()
    results: tuple[FileWriteResult, ...] = ()
    evictions: tuple[EvictionRequest, ...] = ()
    error: Exception | None = None
    seconds: float = 0.0  # that it took, by the runner's timer


class StrategyRunner:
    def __init__(
        self,
        machine: NodeMachine,
        store: SeriesStore,
        gates: frozenset[str],
        settings: StrategySettings = StrategySettings(),  # noqa: B008 - a frozen value
        strategies: Sequence[StrategyEntry] = STRATEGIES,
        timer: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`gates` are the names of all enabled feature gates, those of runtime hooks included. `timer` returns seconds
        since some moment; without one nothing is timed.
        """
        self._timer = timer
        self._machine = machine
        self._inputs = StrategyInputs(machine, store, gates, settings)
        self._enabled = tuple(one for one in strategies if not one.gates or any(gate in gates for gate in one.gates))
        self._to_release = [one for one in strategies if one not in self._enabled]
        self._period_s = {one.name: settings.period_s.get(one.name, one.period_s) for one in self._enabled}
        self._last_run_s: dict[str, float] = {}
        self._last_inputs: dict[str, tuple[object, ...]] = {}  # of strategies that depend on some of them
        self._written_at_once: list[tuple[str, str]] = []  # group and knob, since the last tick ended

    def state_of(self, strategy: str) -> Any:
        """Return what the last plan of a strategy left for its next run; None before it ran."""
        return self._inputs.states.get(strategy)

    @property
    def enabled(self) -> tuple[str, ...]:
        return tuple(strategy.name for strategy in self._enabled)

    def tick(self, now_s: float, node_inputs: NodeInputs) -> tuple[StrategyResult, ...]:
        """Run every strategy that is due. Nothing is decided before the pods were listed once."""
        return run_steps(self.tick_steps(now_s, node_inputs))

    def tick_steps(self, now_s: float, node_inputs: NodeInputs) -> WorkSteps[tuple[StrategyResult, ...]]:
        """Run a tick in steps: between two strategies, and within one that decides or writes pod by pod."""
        try:
            if not node_inputs.pods_known:
                return ()
            self._inputs.begin_tick(now_s, node_inputs)
            released = [] if node_inputs.safe_mode else (yield from self._release_disabled())
            ran = yield from self._run_all(self._enabled)
            return (*released, *ran)
        finally:
            self._written_at_once.clear()  # the inputs of the next tick know of them

    def tick_changes(self, now_s: float, node_inputs: NodeInputs) -> tuple[StrategyResult, ...]:
        """Run the strategies whose own inputs changed, and no others: what the runtime calls hooks for."""
        if not node_inputs.pods_known:
            return ()
        self._inputs.begin_tick(now_s, node_inputs)
        return tuple(run_steps(self._run_all([one for one in self._enabled if one.depends_on is not None])))

    def execute_at_once(self, effects: Sequence[WriteCgroup]) -> Sequence[FileWriteResult]:
        """Execute effects that no tick decided. Between two steps of a tick they are of a pod that its inputs lack, so
        no plan of that tick restores these files.
        """
        self._written_at_once += [(effect.group, effect.file) for effect in effects]
        return self._machine.execute(effects)

    def evicted(self, now_s: float, uid: str, *, by_stopping: bool = False) -> None:
        """Record that a requested eviction was accepted, or that the pod's containers were stopped."""
        self._inputs.eviction_tracker.evicted(now_s, uid, by_stopping=by_stopping)

    def eviction_failed(self, now_s: float, uid: str, why: str) -> None:
        """Record that a requested eviction failed; the pod is left alone for a while, and others are considered."""
        self._inputs.eviction_tracker.eviction_failed(now_s, uid, why)

    def _run_all(self, strategies: Sequence[StrategyEntry]) -> WorkSteps[list[StrategyResult]]:
        ran: list[StrategyResult] = []
        for one in strategies:
            result = yield from self._run_if_due(one)
            if result is not None:
                ran.append(result)
                yield
        return ran

    def _run_if_due(self, strategy: StrategyEntry) -> WorkSteps[StrategyResult | None]:
        """Run a strategy when its period has passed, or when inputs on which it depends changed."""
        name, inputs = strategy.name, self._inputs
        periodic = self._is_due(name, inputs.now_s)
        if periodic:
            self._last_run_s[name] = inputs.now_s
        if strategy.depends_on is None:
            return (yield from self._run(strategy)) if periodic else None
        seen, before = strategy.depends_on(inputs), self._last_inputs.get(name)
        if not periodic and before is not None and not _differ(seen, before):
            return None
        self._last_inputs[name] = seen
        ran, seconds = yield from timed_steps(self._run(strategy, verify=periodic), self._timer)
        return msgspec.structs.replace(ran, seconds=seconds)

    def _run(self, strategy: StrategyEntry, *, verify: bool = False) -> WorkSteps[StrategyResult]:
        """Observe, decide and execute. In safe mode the plan is returned and nothing is executed."""
        name, inputs = strategy.name, self._inputs
        try:
            view = strategy.observe(inputs)
            if strategy.decide_steps is None:
                plan = strategy.decide(view)
            else:
                plan = yield from strategy.decide_steps(view)
            if plan.state is not None:
                inputs.states[name] = plan.state
            if inputs.node_inputs.safe_mode:
                return StrategyResult(strategy=name, plan=plan)
            results = yield from self._execute(strategy, plan, verify=verify)
            evictions = tuple(one for one in plan.effects if isinstance(one, EvictionRequest))
            inputs.eviction_tracker.request(inputs.now_s, name, evictions)
        except Exception as error:  # noqa: BLE001 - handed to the caller: one strategy's fault spares the others
            return StrategyResult(strategy=name, error=error)
        return StrategyResult(strategy=name, plan=plan, results=tuple(results), evictions=evictions)

    def _execute(
        self, strategy: StrategyEntry, plan: StrategyPlan, *, verify: bool
    ) -> WorkSteps[Sequence[FileWriteResult]]:
        """Execute the files of a plan, batch by batch where it has batches, and restore at the end what it omits."""
        files: list[FileEffect] = [one for one in plan.effects if not isinstance(one, EvictionRequest)]
        if not files and not plan.complete:
            return ()
        owners = strategy.restores if plan.complete else ()
        if not plan.batch_sizes:
            kept = [*plan.kept, *self._written_at_once]
            return self._machine.execute(files, complete_owners=owners, kept=kept, verify=verify)
        results: list[FileWriteResult] = []
        begin = 0
        for size in plan.batch_sizes:
            results += self._machine.execute(files[begin : begin + size], verify=verify)
            begin += size
            yield
        named = [*plan.kept, *((one.group, one.file) for one in files if isinstance(one, WriteCgroup))]
        for owner in owners:
            results += self._machine.execute((), complete_owners=(owner,), kept=[*named, *self._written_at_once])
            yield
        return results

    def _release_disabled(self) -> WorkSteps[list[StrategyResult]]:
        """Restore what disabled strategies wrote, also in an earlier process; what is refused is tried again."""
        ran: list[StrategyResult] = []
        why, refused = "its gate is off", list[StrategyEntry]()
        for strategy in self._to_release:
            results = tuple(one for owner in strategy.restores for one in self._machine.release(owner, why))
            if results:
                ran.append(StrategyResult(strategy=strategy.name, plan=StrategyPlan(why=why), results=results))
                yield
            if not all(result.is_settled for result in results):
                refused.append(strategy)
        self._to_release = refused
        return ran

    def _is_due(self, name: str, now_s: float) -> bool:
        """Return whether the strategy's period has passed; a clock that went back makes everything due."""
        last = self._last_run_s.get(name)
        return last is None or now_s < last or now_s - last >= self._period_s[name] - _SLACK_S


def _differ(seen: tuple[object, ...], before: tuple[object, ...]) -> bool:
    """Return whether inputs changed; most are the same objects, which spares comparing them."""
    return any(new is not old and new != old for new, old in zip(seen, before, strict=True))


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
    """StrategyStatus is what a strategy last did, as `/strategies` serves it."""

    strategy: str
    at: str = ""
    why: str = ""
    effects: int = 0
    written: int = 0
    refused: tuple[str, ...] = ()
    error: str = ""


def strategy_status(ran: StrategyResult, at: str) -> StrategyStatus:
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
