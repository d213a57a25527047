"""Find which victims would exceed their PodDisruptionBudgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from koord.api.policy import PodDisruptionBudget
from koord.scheduler.framework.handle import Lister
from koord.scheduler.state.peers import Peers
from koord.scheduler.state.pod import PodInfo
from koord.values.requirement import SelectorError
from koord.values.selector import Selector


class Budgets:
    """Hold the budgets of one moment; which of them cover a pod is computed once for all pods with equal labels."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget] = ()) -> None:
        self._in: dict[str, list[tuple[Selector, PodDisruptionBudget]]] = {}
        for budget in budgets:
            selector = _selector(budget)
            if selector is not None:
                self._in.setdefault(budget.metadata.namespace, []).append((selector, budget))
        self._covering: dict[Peers, tuple[PodDisruptionBudget, ...]] = {}

    def split(self, pods: Sequence[PodInfo]) -> tuple[list[PodInfo], list[PodInfo]]:
        """Split the pods into those whose eviction violates a budget and the others, if they are evicted in this
        order.
        """
        if not self._in:
            return [], list(pods)
        left: dict[str, int] = {}
        violating: list[PodInfo] = []
        fine: list[PodInfo] = []
        for pod in pods:
            exceeded = False
            for budget in self._of(pod):
                status, uid = budget.status, budget.metadata.uid
                if pod.name in status.disrupted_pods:  # it was granted already and is counted there
                    continue
                left[uid] = left.get(uid, status.disruptions_allowed) - 1
                exceeded = exceeded or left[uid] < 0
            (violating if exceeded else fine).append(pod)
        return violating, fine

    def _of(self, pod: PodInfo) -> tuple[PodDisruptionBudget, ...]:
        here = self._in.get(pod.namespace)
        if here is None or not pod.labels:
            return ()
        known = self._covering.get(pod.peers)
        if known is None:
            found = tuple(budget for selector, budget in here if selector.matches(pod.labels))
            known = self._covering[pod.peers] = found
        return known


class ListedBudgets:
    """Return the budgets of a lister, read again only after it changed."""

    def __init__(self, listed: Lister[PodDisruptionBudget]) -> None:
        self._listed = listed
        self._read: int | None = None
        self._budgets = Budgets()

    def current(self) -> Budgets:
        if self._read != self._listed.version:
            self._read = self._listed.version
            self._budgets = Budgets(self._listed.list())
        return self._budgets


def _selector(budget: PodDisruptionBudget) -> Selector | None:
    """Return the budget's selector; None if it covers nobody: to preemption an empty selector does not mean everybody.

    """
    spec = budget.spec.selector
    if spec is None:
        return None
    try:
        selector = Selector.of(spec.match_labels, [(e.key, e.operator, e.values) for e in spec.match_expressions])
    except SelectorError:  # some other client stored what no selector can be made of
        return None
    return None if selector.is_everything() else selector
