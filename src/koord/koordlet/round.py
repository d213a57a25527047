"""The strategy runner observes, decides and executes every strategy that is due, and returns what became of each.

It is synchronous and reads no clock: the agent calls it once a second, a simulated node whenever its time moves on. It
keeps what must survive between ticks: burst tokens, pending evictions, and when each strategy last ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from koord.api.qos_class import BATCH, MID
from koord.api.resource_name import TIERS
from koord.koordlet.apply.result import FileEffect, Result
from koord.koordlet.departure import Departures
from koord.koordlet.facts import Facts
from koord.koordlet.machine import Machine
from koord.koordlet.observe.burst import observe_burst
from koord.koordlet.observe.evict import observe_cpu_evict, observe_memory_evict
from koord.koordlet.observe.scene import Scene, Settings
from koord.koordlet.observe.setting import (
    observe_blkio,
    observe_group_identity,
    observe_memory_qos,
    observe_resctrl,
    observe_system_config,
)
from koord.koordlet.observe.suppress import observe_suppress
from koord.koordlet.plan import Evict, Plan
from koord.koordlet.series.store import Store
from koord.koordlet.strategies import blkio, burst, group_identity, memory_qos, resctrl, suppress, system_config
from koord.koordlet.strategies.burst_limiter import Tokens
from koord.koordlet.strategies.cpu_evict import decide_cpu_evict
from koord.koordlet.strategies.memory_evict import decide_memory_evict
from koord.koordlet.strategies.table import STRATEGIES, Strategy

_SLACK_S = 0.05  # a tick that comes a little early still counts
_LENT = tuple(name for tier in (BATCH, MID) for name in TIERS[tier].values())
# The file owners of each strategy's plan; strategies that only evict have none.
OWNERS: Mapping[str, tuple[str, ...]] = {
    suppress.OWNER: (suppress.OWNER,),
    burst.OWNER: (burst.OWNER,),
    resctrl.OWNER: (resctrl.OWNER,),
    blkio.OWNER: (blkio.OWNER,),
    memory_qos.OWNER: (memory_qos.OWNER,),
    system_config.OWNER: (system_config.OWNER,),
    group_identity.OWNER: (group_identity.OWNER, group_identity.SWITCH_OWNER),
}


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What one strategy did in a tick. The caller carries out `evictions` and answers each with
    `StrategyRunner.evicted` or `StrategyRunner.eviction_failed`. An `error` is a bug of the program; the other
    strategies ran all the same.
    """

    strategy: str
    plan: Plan = Plan()
    results: tuple[Result, ...] = ()
    evictions: tuple[Evict, ...] = ()
    error: Exception | None = None


class Round:
    """The runner owns the state of all strategies of one machine."""
    def __init__(
        self,
        machine: Machine,
        store: Store,
        gates: frozenset[str],
        settings: Settings = Settings(),  # noqa: B008 - a frozen value
    ) -> None:
        """`gates` are the names of all enabled feature gates, those of runtime hooks included."""
        self._machine = machine
        self._store = store
        self._gates = gates
        self._settings = settings
        self._departures = Departures()
        self._tokens: Mapping[str, Tokens] = {}
        self._ran_s: dict[str, float] = {}
        self._given_back: set[str] = set()
        self._lent: tuple[int | None, ...] | None = None
        self._lent_since_s = 0.0
        self._decide: Mapping[str, Callable[[Scene], tuple[Plan, bool]]] = {
            suppress.OWNER: _suppress,
            burst.OWNER: self._burst,
            "CPUEvict": lambda scene: (decide_cpu_evict(observe_cpu_evict(scene)), False),
            "memoryEvict": lambda scene: (decide_memory_evict(observe_memory_evict(scene)), False),
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

    def tick(self, now_s: float, facts: Facts) -> tuple[Ran, ...]:
        """Run every strategy that is due. Nothing is decided before the pods were listed once."""
        if not facts.pods_known:
            return ()
        self._departures.look(now_s, facts.pods)
        scene = self._scene(now_s, facts)
        ran: list[Ran] = []
        for strategy in STRATEGIES:
            if not self._is_on(strategy):
                ran += self._give_back(strategy.name, facts)
            elif self._is_due(strategy, now_s):
                self._ran_s[strategy.name] = now_s
                ran.append(self._run(strategy.name, scene))
        return tuple(ran)

    def went(self, now_s: float, uid: str) -> None:
        """Record that a requested eviction was accepted: the pod is leaving."""
        self._departures.went(now_s, uid)

    def stayed(self, now_s: float, uid: str, why: str) -> None:
        """Record that a requested eviction failed; the pod is left alone for a while, and others are considered."""
        self._departures.stayed(now_s, uid, why)

    def _run(self, name: str, scene: Scene) -> Ran:
        try:
            plan, whole = self._decide[name](scene)
            if scene.facts.safe_mode:
                return Ran(strategy=name, plan=plan)
            evictions = tuple(one for one in plan.effects if isinstance(one, Evict))
            files: list[FileEffect] = [one for one in plan.effects if not isinstance(one, Evict)]
            results: Sequence[Result] = ()
            if files or whole:
                results = self._machine.carry_out(files, whole_of=OWNERS[name] if whole else ())
            self._departures.ask(scene.now_s, name, evictions)
        except Exception as error:  # noqa: BLE001 - handed to the caller: one strategy's fault spares the others
            return Ran(strategy=name, error=error)
        return Ran(strategy=name, plan=plan, results=tuple(results), evictions=evictions)

    def _give_back(self, name: str, facts: Facts) -> list[Ran]:
        """Restore once what a strategy wrote, also in an earlier process, when its gates are off."""
        if facts.safe_mode or name in self._given_back or name not in OWNERS:
            return []
        self._given_back.add(name)
        results = [one for owner in OWNERS[name] for one in self._machine.release(owner, "its gate is off")]
        return [Ran(strategy=name, plan=Plan(why="its gate is off"), results=tuple(results))] if results else []

    def _scene(self, now_s: float, facts: Facts) -> Scene:
        node = facts.node
        lent = None if node is None else tuple(node.allocatable.get(name) for name in _LENT)
        if lent != self._lent or now_s < self._lent_since_s:
            self._lent, self._lent_since_s = lent, now_s
        return Scene(
            now_s=now_s,
            facts=facts,
            store=self._store,
            machine=self._machine,
            settings=self._settings,
            gates=self._gates,
            departures=self._departures,
            tokens=self._tokens,
            lent_for_s=now_s - self._lent_since_s,
        )

    def _burst(self, scene: Scene) -> tuple[Plan, bool]:
        decided = burst.decide_burst(observe_burst(scene))
        self._tokens = decided.tokens
        return decided.plan, False

    def _is_on(self, strategy: Strategy) -> bool:
        return any(gate in self._gates for gate in strategy.gates)

    def _is_due(self, strategy: Strategy, now_s: float) -> bool:
        """Return whether the strategy's period has passed; a clock that went back makes everything due."""
        last = self._ran_s.get(strategy.name)
        period_s = self._settings.period_s.get(strategy.name, strategy.period_s)
        return last is None or now_s < last or now_s - last >= period_s - _SLACK_S


# Each returns its plan, and whether that is all that the owner wants: then what it wrote before and does not
# mention any more is restored. CPU suppression and burst leave out what need not change, so theirs never is.


def _suppress(scene: Scene) -> tuple[Plan, bool]:
    return suppress.decide_suppress(observe_suppress(scene)), False


def _resctrl(scene: Scene) -> tuple[Plan, bool]:
    seen = observe_resctrl(scene)
    return resctrl.decide_resctrl(seen), seen.strategy is not None and seen.supported


def _blkio(scene: Scene) -> tuple[Plan, bool]:
    """Decide about disks. A disk that cannot be found now is named in `why`, and its limits must stay."""
    plan = blkio.decide_blkio(observe_blkio(scene))
    return plan, not plan.why


def _memory_qos(scene: Scene) -> tuple[Plan, bool]:
    seen = observe_memory_qos(scene)
    return memory_qos.decide_memory_qos(seen), seen.strategy is not None and bool(seen.allocatable_bytes)


def _system_config(scene: Scene) -> tuple[Plan, bool]:
    seen = observe_system_config(scene)
    return system_config.decide_system_config(seen), seen.strategy is not None and bool(seen.capacity_bytes)


def _group_identity(scene: Scene) -> tuple[Plan, bool]:
    seen = observe_group_identity(scene)
    return group_identity.decide_group_identity(seen), seen.strategy is not None
