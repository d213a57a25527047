"""The control loop of one machine: each tick takes samples, runs the strategies and publishes what changed.

It is built as soon as the machine's cgroups are found. Evictions are returned to the caller, as they
go over the network.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from koord.host.audit_log import AuditLog
from koord.host.capability import Capability, capabilities
from koord.host.cgroup.tree import Tree
from koord.koordlet.apply.executor import Executor
from koord.koordlet.apply.journal import Journal
from koord.koordlet.apply.result import Record
from koord.koordlet.apply.trail import PodName, trail
from koord.koordlet.collect.collection import Collection
from koord.koordlet.doing import Doing, doing_of
from koord.koordlet.facts import Facts
from koord.koordlet.host_machine import HostMachine
from koord.koordlet.metrics import Metrics
from koord.koordlet.plan import Evict
from koord.koordlet.pod import PodView
from koord.koordlet.round import Ran, Round
from koord.koordlet.series.store import Store
from koord.koordlet.settings import Settings
from koord.telemetry.clock import Clock
from koord.values import instant

_LOG = logging.getLogger(__name__)

JOURNAL = "journal.jsonl"


class Engine:
    """The control loop owns the executor, the collectors and the strategy runner of one machine."""
    def __init__(
        self,
        tree: Tree,
        store: Store,
        clock: Clock,
        settings: Settings,
        metrics: Metrics,
        audit_log: AuditLog | None,
    ) -> None:
        self.tree = tree
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._store = store
        self._names: Mapping[str, PodName] = {}
        self._pods: tuple[PodView, ...] | None = None
        audit = self._ignore if audit_log is None else trail(audit_log, tree.layout, self._pod_name)
        self.executor = Executor(
            tree,
            clock,
            journal=Journal(tree.host, f"{settings.state_dir}/{JOURNAL}"),
            audit=audit,
            measure=metrics.wrote,
            refresh_s=settings.refresh_s,
        )
        self.machine = HostMachine(
            tree,
            self.executor,
            may_write=not settings.safe_mode,
            resctrl="RdtResctrl" in settings.gates,
            disks="BlkIOReconcile" in settings.gates,
        )
        self.collection = Collection(tree, store, clock, settings.collect)
        self.round = Round(self.machine, store, settings.gates, settings.round)
        self._doings: dict[str, Doing] = {name: Doing(strategy=name, why="not run yet") for name in self.round.enabled}
        self._states: dict[str, str] = {}

    def tick(self, facts: Facts, *, memory_policy: str = "") -> tuple[Evict, ...]:
        """Take the samples, run the strategies that are due, and return the evictions that they want."""
        now_s = self._clock.time()
        if facts.pods is not self._pods:
            self._pods = facts.pods
            self._names = {pod.uid: _named(pod) for pod in facts.pods}
            self._metrics.pods_changed(facts.pods)
        applications = () if facts.slo is None else facts.slo.host_applications
        pods = facts.pods if facts.pods_known else None
        self.collection.sample(now_s, pods, applications, memory_policy=memory_policy)
        self._metrics.sampled(self._store, now_s)
        ran = self.round.tick(now_s, facts)
        self._tell(now_s, ran, facts)
        return tuple(victim for one in ran for victim in one.evictions)

    def capabilities(self) -> list[Capability]:
        """Return what the kernel supports; knobs are probed unless safe mode forbids writes."""
        return capabilities(self.tree, probe=not self._settings.safe_mode)

    def doings(self) -> list[Doing]:
        """Return what each enabled strategy last did."""
        return list(self._doings.values())

    def close(self) -> None:
        """Close the collectors. Files keep their values: an agent that is replaced must not release what it holds."""
        self.collection.close()

    def _tell(self, now_s: float, ran: Sequence[Ran], facts: Facts) -> None:
        threshold = None if facts.slo is None else facts.slo.resource_used_threshold_with_be
        self._metrics.ran(ran, facts.pods, "" if threshold is None else threshold.cpu_suppress_policy)
        at = instant.text(datetime.fromtimestamp(now_s, UTC))
        for one in ran:
            self._doings[one.strategy] = doing_of(one, at)
            self._say(one, facts)

    def _say(self, ran: Ran, facts: Facts) -> None:
        """Log one line whenever a strategy's state changes; single writes are in the audit log."""
        if ran.error is not None:
            state = f"failed: {ran.error!r}"
        elif facts.slo is None:
            state = "waits for a NodeSLO"
        elif facts.node is None:
            state = "waits for the Node"
        else:
            state = "only tells what it would do (safe mode)" if facts.safe_mode else "runs"
        if self._states.get(ran.strategy) == state:
            return
        self._states[ran.strategy] = state
        if ran.error is not None:
            _LOG.error("strategy %s %s", ran.strategy, state, exc_info=ran.error)
        else:
            _LOG.info("strategy %s %s", ran.strategy, state)

    def _pod_name(self, uid: str) -> PodName | None:
        return self._names.get(uid)

    def _ignore(self, record: Record) -> None:
        """Drop the record, because the gate of the audit log is off."""


def _named(pod: PodView) -> PodName:
    return PodName(pod.namespace, pod.name, {one.id.partition("://")[2]: one.name for one in pod.containers if one.id})
