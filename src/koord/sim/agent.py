"""The koordlet of one simulated node: the same strategies and reports as the real one, on a machine in memory.

Synchronous: `advance` moves the machine on by one step and runs what is due. The API server is left to
`cluster_agents`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.resource_name import CPU, MEMORY
from koord.api.slo import NodeMetricSpec, NodeMetricStatus
from koord.koordlet.contention.files import MAINLINE
from koord.koordlet.contention.machine import Hardware, SimulatedMachine
from koord.koordlet.contention.moment import Moment, Wish
from koord.koordlet.contention.sampling import record
from koord.koordlet.facts import Facts
from koord.koordlet.observe.scene import Settings as RoundSettings
from koord.koordlet.plan import Evict
from koord.koordlet.pod import PodView
from koord.koordlet.report.model import Models
from koord.koordlet.report.policy import ReportPolicy, report_policy
from koord.koordlet.report.prediction import Limits, reclaimable_view, samples
from koord.koordlet.report.status import ReportView, Withheld, build_node_metric
from koord.koordlet.round import Ran, Round
from koord.koordlet.series import kind
from koord.koordlet.series.store import Store
from koord.policy.prediction.reclaimable import Amount, Prediction, Reclaimable, decide_reclaimable

TRAIN_S = 60.0
EXPIRE_S = 300.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of simulated agents. `step_s` is how far time moves at once, as a second does for a real agent."""

    gates: frozenset[str]
    step_s: float = 10.0
    files: frozenset[str] = MAINLINE  # that kernels of the nodes have
    cold_start_s: float = 24 * 3600.0  # nothing is reclaimed of the requests of pods younger than that


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    container: str  # its name
    why: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    moment: Moment
    ran: tuple[Ran, ...]
    killed: tuple[Killed, ...]

    @property
    def evictions(self) -> tuple[Evict, ...]:
        return tuple(one for ran in self.ran for one in ran.evictions)


class Agent:
    def __init__(self, name: str, hardware: Hardware, system: Wish, settings: Settings) -> None:
        self.name = name
        self.machine = SimulatedMachine(hardware)
        self._settings = settings
        self._system = system
        self.policy = ReportPolicy()
        step_s = settings.step_s
        keep = kind.keep_s(aggregate_s=self.policy.aggregate_s, longest_s=int(self.policy.longest_s))
        self.store = Store(keep, default_keep_s=max(60, int(4 * step_s)), interval_s=step_s)
        self.round = Round(self.machine, self.store, settings.gates, RoundSettings(collect_interval_s=step_s))
        self._models = Models()
        self._trained_s = self._expired_s = float("-inf")
        self._stepped_s: float | None = None
        self.last: Step | None = None
        self.ran: dict[str, tuple[float, Ran]] = {}  # by strategy: when it last ran, and what it did

    def advance(self, now_s: float, facts: Facts, wishes: Mapping[str, Wish]) -> Step:
        """Advance to `now_s` and run what is due. `wishes` is the resource demand by container id."""
        since = self._stepped_s
        step_s = self._settings.step_s if since is None else max(now_s - since, 0.001)
        self._stepped_s = now_s
        self.machine.house(facts.pods)
        moment = self.machine.step(now_s, step_s, wishes, self._system)
        record(self.store, moment)
        ran = self.round.tick(now_s, facts)
        self.ran.update({one.strategy: (now_s, one) for one in ran})
        if now_s - self._trained_s >= TRAIN_S:
            self._trained_s = now_s
            self._models.train(now_s, samples(self.store, now_s, facts.pods))
        if now_s - self._expired_s >= EXPIRE_S:
            self._expired_s = now_s
            self.store.expire(now_s)
            self._models.expire(now_s)
        self.last = Step(moment=moment, ran=ran, killed=_killed(facts.pods, moment))
        return self.last

    def asked(self, spec: NodeMetricSpec) -> ReportPolicy:
        self.policy = report_policy(spec)
        return self.policy

    def report(self, now_s: float, facts: Facts) -> NodeMetricStatus | Withheld:
        return build_node_metric(
            ReportView(
                series=self.store,
                now_s=now_s,
                policy=self.policy,
                pods=facts.pods,
                prediction=self.prediction(now_s, facts),
                fresh_s=3 * self._settings.step_s,
            )
        )

    def prediction(self, now_s: float, facts: Facts) -> Prediction | None:
        node = facts.node
        allocatable = None if node is None else node.allocatable
        seen = reclaimable_view(
            self._models,
            now_s,
            facts.pods,
            None if not allocatable else Amount(allocatable.get(CPU, 0), allocatable.get(MEMORY, 0)),
            Limits(cold_start_s=self._settings.cold_start_s),
        )
        found = decide_reclaimable(seen)
        return found.result if isinstance(found, Reclaimable) else None


def _killed(pods: tuple[PodView, ...], moment: Moment) -> tuple[Killed, ...]:
    if not moment.kills:
        return ()
    found = {one.group: (pod.uid, one.name) for pod in pods for one in pod.containers}
    return tuple(
        Killed(uid=found[kill.group][0], container=found[kill.group][1], why=kill.why)
        for kill in moment.kills
        if kill.group in found
    )
