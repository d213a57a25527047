"""Find which victims would exceed their PodDisruptionBudgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from koord.api.kubernetes.meta import stored_label_selector
from koord.api.kubernetes.pod_policy import PodDisruptionBudget
from koord.scheduler.cache.pod_info import LabelGroup, PodInfo
from koord.scheduler.framework.handle import Lister
from koord.values.selector import Selector


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
