"""Find the fewest and least important pods that must leave one node for a pod to fit there.

The dry run works on a copy of the node: all eligible pods are removed, and if the pod fits then, they are added back
one by one, budget violations first and the more important before the less; each that the pod still fits beside is
spared. `VictimRules` say who is eligible: kinds of preemption differ in that and share everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from koord.api.kubernetes.meta import stored_label_selector
from koord.api.kubernetes.pod_policy import PodDisruptionBudget
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import LabelGroup, PodInfo
from koord.scheduler.framework.dry_run import DryRuns, RejectedBy
from koord.scheduler.framework.handle import Lister
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.preemption.reclaimable import ReclaimableResources
from koord.values.selector import Selector

_NOT_STARTED = datetime.max.replace(tzinfo=UTC)

Importance = tuple[int, datetime]


class DisruptionBudgets:
    """Hold the budgets of one moment; which of them cover a pod is computed once for all pods with equal labels."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget] = ()) -> None:
        self._by_namespace: dict[str, list[tuple[Selector, PodDisruptionBudget]]] = {}
        for budget in budgets:
            selector = _selector(budget)
            if selector is not None:
                self._by_namespace.setdefault(budget.metadata.namespace, []).append((selector, budget))
        self._covering: dict[LabelGroup, tuple[PodDisruptionBudget, ...]] = {}

    def split(self, pods: Sequence[PodInfo]) -> tuple[list[PodInfo], list[PodInfo]]:
        """Split the pods into those whose eviction violates a budget and the others, evicted in this order."""
        if not self._by_namespace:
            return [], list(pods)
        left: dict[str, int] = {}
        violating: list[PodInfo] = []
        fine: list[PodInfo] = []
        for pod in pods:
            exceeded = False
            for budget in self._covering_pod(pod):
                status, uid = budget.status, budget.metadata.uid
                if pod.name in status.disrupted_pods:  # it was granted already and is counted there
                    continue
                left[uid] = left.get(uid, status.disruptions_allowed) - 1
                exceeded = exceeded or left[uid] < 0
            (violating if exceeded else fine).append(pod)
        return violating, fine

    def _covering_pod(self, pod: PodInfo) -> tuple[PodDisruptionBudget, ...]:
        here = self._by_namespace.get(pod.namespace)
        if here is None or not pod.labels:
            return ()
        known = self._covering.get(pod.label_group)
        if known is None:
            found = tuple(budget for selector, budget in here if selector.matches(pod.labels))
            known = self._covering[pod.label_group] = found
        return known


class DisruptionBudgetLister:
    """Return the budgets of a lister, read again only after it changed."""

    def __init__(self, listed: Lister[PodDisruptionBudget]) -> None:
        self._listed = listed
        self._read: int | None = None
        self._budgets = DisruptionBudgets()

    def current(self) -> DisruptionBudgets:
        if self._read != self._listed.version:
            self._read = self._listed.version
            self._budgets = DisruptionBudgets(self._listed.list())
        return self._budgets


def _selector(budget: PodDisruptionBudget) -> Selector | None:
    """Return the budget's selector; None if it covers nobody: an empty selector does not mean everybody."""
    selector = stored_label_selector(budget.spec.selector)
    return None if selector.matches_nothing or selector.is_everything() else selector


class VictimRules:
    """Define who may be a victim as Kubernetes does: pods of lower priority that `may_evict` does not protect.

    Another kind of preemption overrides `may_preempt` and, if need be, `importance` and `objection`.
    """

    name = ""  # of the plugin whose refusal of the pod itself `objection` tells about

    def __init__(self, may_evict: Callable[[PodInfo], bool] | None = None) -> None:
        self._may_evict = may_evict

    def may_preempt(self, pod: PodInfo, victim: PodInfo) -> bool:
        """Return whether the pod may preempt this victim."""
        if victim.is_reserve_pod:  # room that is kept for somebody: whoever made the Reservation decides about it
            return False
        return victim.priority < pod.priority and (self._may_evict is None or self._may_evict(victim))

    def importance(self, pod: PodInfo) -> Importance:
        """Return a sort key: smaller is more important and is spared first, by higher priority, then earlier start."""
        return -pod.priority, victim_start_time(pod)

    def objection(self, pod: PodInfo, gone: Collection[PodInfo]) -> Reject | None:
        """Return what still rejects the pod itself once those pods are gone, wherever a node could take it."""
        return None

    @property
    def reclaimable(self) -> type[ReclaimableResources] | None:
        """Return the class that sums up what eligible victims hold; None where each pod must be looked at."""
        return (
            ReclaimableResources
            if self._may_evict is None and type(self).may_preempt is VictimRules.may_preempt
            else None
        )


def victim_start_time(pod: PodInfo) -> datetime:
    """Return when the pod started; one that has not started yet counts as the latest."""
    return pod.started or _NOT_STARTED


# Makes every priority positive, so that fewer victims of negative priority are not worse than more of them.
_PRIORITY_OFFSET = 1 << 31


class PreemptionCandidate(msgspec.Struct, frozen=True):
    """Name a node with the pods that would have to leave it."""

    node: str
    victims: tuple[PodInfo, ...]  # at least one, the most important first
    violations: int = 0  # victims that a disruption budget does not allow to go

    def harm(self) -> tuple[int, int, int, int]:
        """Return a sort key, smaller is better: budget violations, highest priority, sum of priorities, victims."""
        victims = self.victims
        return (
            self.violations,
            victims[0].priority,
            sum(victim.priority + _PRIORITY_OFFSET for victim in victims),
            len(victims),
        )

    def earliest_start_time(self) -> datetime:
        """Return when the longest running of its most important victims started."""
        highest = max(victim.priority for victim in self.victims)
        return min(victim_start_time(victim) for victim in self.victims if victim.priority == highest)


def pick_candidate(candidates: Sequence[PreemptionCandidate]) -> PreemptionCandidate:
    """Pick the candidate with the least harm; of equals the one whose victims started last; then the first."""
    harms = [candidate.harm() for candidate in candidates]
    least = min(harms)
    best = [candidate for candidate, harm in zip(candidates, harms, strict=True) if harm == least]
    return best[0] if len(best) == 1 else max(best, key=PreemptionCandidate.earliest_start_time)


def eligible_victims(pod: PodInfo, node: NodeInfo, rules: VictimRules) -> list[PodInfo]:
    return [victim for victim in node.pods.values() if rules.may_preempt(pod, victim)]


def rejection_without_victims(
    dry_runs: DryRuns, node: NodeInfo, ahead: Sequence[PodInfo], rules: VictimRules
) -> RejectedBy | None:
    """Return who rejects the node even without all eligible victims; None when the pod would fit."""
    dry_run = dry_runs.dry_run_on(node)
    for victim in eligible_victims(dry_runs.pod, node, rules):
        dry_run.remove(victim)
    return dry_run.run_filters(ahead)


def select_victims_on_node(
    dry_runs: DryRuns, node: NodeInfo, ahead: Sequence[PodInfo], rules: VictimRules, budgets: DisruptionBudgets
) -> PreemptionCandidate | RejectedBy | None:
    """Select the victims on a node; None when no pod is eligible, and the rejection when evicting all does not help.

    A candidate without victims says that the pod fits as it is.
    """
    possible = eligible_victims(dry_runs.pod, node, rules)
    if not possible:
        return None
    dry_run = dry_runs.dry_run_on(node)
    for victim in possible:
        dry_run.remove(victim)
    rejection = dry_run.run_filters(ahead)
    if rejection is not None:
        return rejection
    barred = rules.objection(dry_runs.pod, possible)
    if barred is not None:
        return rules.name, barred
    gone = {victim.uid: victim for victim in possible}
    possible.sort(key=rules.importance)
    violating, fine = budgets.split(possible)
    victims: list[PodInfo] = []
    violations = 0
    for spared in (violating, fine):
        for pod in spared:
            dry_run.add(pod)
            del gone[pod.uid]
            if dry_run.run_filters(ahead, again=True) or rules.objection(dry_runs.pod, gone.values()):
                dry_run.remove(pod)
                gone[pod.uid] = pod
                victims.append(pod)
                violations += spared is violating
    if violating and fine:
        victims.sort(key=rules.importance)
    return PreemptionCandidate(node.name, tuple(victims), violations)
