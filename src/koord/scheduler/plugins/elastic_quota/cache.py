"""ElasticQuotaCache keeps the quotas of one cluster state in line with the watched quotas, pods and nodes.

Requests come from the list of all pods; usage comes from the cluster state, so that an assumed pod counts
from the moment it is assumed and no longer than it is. Nothing else is remembered: a cache made anew from
the same lists and the same state has the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Literal, Protocol

from koord.api.koordinator.custom_kinds import ELASTIC_QUOTAS
from koord.api.koordinator.protocol import A_RESERVE_POD
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import PODS_RESOURCE, NodeInfo
from koord.scheduler.cache.node_table import NodeTable
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS, Pod, is_terminal
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.elastic_quota import admission
from koord.scheduler.plugins.elastic_quota.admission import QuotaRefusal
from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition, QuotaPod, QuotaRules
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from koord.values.quantity import QuantityError
from koord.values.resources import Amounts, Counts, add_in_place

# One that has not started yet is the youngest of all.
_NOT_STARTED = float("inf")


def quota_pod_from(pod: PodInfo, *, with_overhead: bool = True) -> QuotaPod:
    """Return the pod as quotas count it, without its placement: assumed and bound are the same to quotas."""
    return QuotaPod.from_pod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        labels=pod.labels,
        requests=pod.requests if with_overhead else _without_overhead(pod),
        priority=pod.priority,
        since=_NOT_STARTED if pod.started is None else pod.started.timestamp(),
    )


def counts_towards_quota(pod: PodInfo) -> bool:
    """Return whether the pod counts towards a quota: a reserve pod does not, the owners of its reservation do."""
    return A_RESERVE_POD not in pod.annotations


def _without_overhead(pod: PodInfo) -> Counts:
    extra = resource_amounts(pod.shape.spec.overhead or {})
    if not extra:
        return pod.requests
    return {name: left for name, n in pod.requests.items() if (left := n - extra.get(name, 0)) > 0}


class ClusterTotal:
    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.position = -1  # in the log of changed nodes, up to which it holds
        self._rows: dict[int, Counts] = {}
        self._total: Amounts = {}

    def refresh(self) -> Counts | None:
        """Return the new total, or None when it is unchanged."""
        changes = self._table.node_changes
        position = changes.position
        if position == self.position:
            return None
        rows = changes.since(self.position)
        self.position = position
        before = dict(self._total)
        if rows is None:
            self._total = {}
            self._rows = {}
        for row in range(self._table.size) if rows is None else rows:
            add_in_place(self._total, self._rows.pop(row, {}), -1)
            node = self._table.nodes[row]
            if node is not None and node.node is not None:
                held = {**node.allocatable, PODS_RESOURCE: node.allowed_pods}
                self._rows[row] = held
                add_in_place(self._total, held)
        return dict(self._total) if self._total != before else None


QuotaKey = tuple[str, str]  # namespace and name of the object


class QuotaOperationTimer(Protocol):
    def now(self) -> float: ...

    def took(self, operation: str, since: float) -> None: ...


class ElasticQuotaCache:
    """The quotas of one cluster state for one set of rules."""

    def __init__(self, rules: QuotaRules, handle: Handle, *, with_overhead: bool = True) -> None:
        self.rules = rules
        self.with_overhead = with_overhead
        self.invalid_quotas: dict[QuotaKey, str] = {}  # quotas that count as absent, and why
        # Called when quota is released without a placement event.
        self.on_quota_released: Callable[[], None] | None = None
        self.timer: QuotaOperationTimer | None = None  # measures the duration of operations, if set
        self._now = handle.now
        self._ignored: set[str] = set()  # uids of terminating pods that do not count any more
        self._grace_ends: list[tuple[float, str]] = []  # a heap of when terminating pods stop counting, with their uids
        self._state = handle.state
        self._manager = GroupQuotaManager(rules)
        self._manager.count_placement = self._count_placement
        self._manager.on_trees_changed = self._on_trees_changed
        self._unlimited_namespaces: dict[str, bool] = {}  # of pods without labels of Koordinator
        self._total = ClusterTotal(handle.state.table)
        self._nodes = handle.state.table.node_changes
        self._pods = handle.lister(PODS)
        quotas = handle.lister(ELASTIC_QUOTAS)
        quotas.on_change(self._on_quota_timed)
        self._pods.on_change(self._on_pod_timed)
        handle.state.add_placement_listener(self._on_placement, plain_adds=False)
        handle.state.add_plain_add_log(self._manager.placements)

    # Reading -----------------------------------------------------------------------------------------------------

    @property
    def manager(self) -> GroupQuotaManager:
        """Return the quota manager, with the cluster total up to date."""
        self._manager.count_placements()
        total = self._total.refresh()
        if total is not None:
            self._manager.handle(admission.ClusterTotalChanged(total))
        return self._manager

    def quota_pod(self, pod: PodInfo) -> QuotaPod:
        return self._manager.pods.get(pod.uid) or quota_pod_from(pod, with_overhead=self.with_overhead)

    def is_unlimited(self, pod: PodInfo) -> bool:
        """Return whether pods like this one, which has no label of Koordinator, count in a quota without a max."""
        known = self._unlimited_namespaces.get(pod.namespace)
        if known is None:
            known = self._manager.is_unlimited(quota_pod_from(pod, with_overhead=self.with_overhead))
            self._unlimited_namespaces[pod.namespace] = known
        return known

    def _on_trees_changed(self) -> None:
        self._unlimited_namespaces.clear()
        self._state.invalidate_idle()

    def check_admission(self, pod: PodInfo) -> QuotaRefusal | None:
        """Return why the pod may not start; None when its quota admits it."""
        manager = self._manager if self._total.position == self._nodes.position else self.manager
        return manager.check_pod(manager.pods.get(pod.uid) or self.quota_pod(pod))

    def could_admit_by_preemption(self, pod: PodInfo) -> bool:
        """Return whether the pod may start if all that it could preempt in its quota were gone."""
        return self.manager.could_admit_by_preemption(self.quota_pod(pod))

    def check_admission_without(self, pod: PodInfo, gone: Iterable[PodInfo]) -> QuotaRefusal | None:
        """Return why the pod may not start if those other pods were gone."""
        return self.manager.check_pod(self.quota_pod(pod), without=[self.quota_pod(other) for other in gone])

    def pods_in_quota(self, quota: str) -> Iterator[PodInfo]:
        """Yield the pods that use a quota itself, not one of its children."""
        for quota_pod in self.manager.pods_of(quota):
            pod = self._state.placed_pod(quota_pod.uid)
            if pod is not None:
                yield pod

    # What happens ------------------------------------------------------------------------------------------------

    def record_refusal(self, pod: PodInfo, refusal: QuotaRefusal, at: float) -> None:
        """Record a refusal with the quota that the pod belongs to, whichever parent quota was exhausted."""
        quota = self._manager.quota_of_pod(self.quota_pod(pod)) or refusal.quota
        self._manager.handle(admission.QuotaPodRefused(pod.key, quota, refusal, at))

    def _on_quota_timed(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        started = 0.0 if self.timer is None else self.timer.now()
        self._on_quota(old, new)
        if self.timer is not None:
            self.timer.took("DeleteQuota" if new is None else "UpdateQuota", started)

    def _on_pod_timed(self, old: Pod | None, new: Pod | None) -> None:
        started = 0.0 if self.timer is None else self.timer.now()
        self._on_pod(old, new)
        if self.timer is not None:
            self.timer.took("OnPodDelete" if new is None else "OnPodAdd" if old is None else "OnPodUpdate", started)

    def _on_quota(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        shown = new if new is not None else old
        assert shown is not None
        key = (shown.metadata.namespace, shown.metadata.name)
        self.invalid_quotas.pop(key, None)
        if new is None:
            self._manager.handle(admission.QuotaDeleted(*key))
            return
        try:
            quota = QuotaDefinition.from_elastic_quota(new)
        except QuantityError as error:
            self.invalid_quotas[key] = str(error)
            self._manager.handle(admission.QuotaDeleted(*key))
            return
        self._manager.handle(admission.QuotaUpdated(quota))

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        released = False
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._ignored.discard(old.metadata.uid)
            released = bool(self._manager.handle(admission.QuotaPodRemoved(old.metadata.uid)))
        if new is not None:
            gone = is_terminal(new) or self._ignores(new)
            info = None if gone else self._state.pod_info(new)
            event: admission.QuotaEvent = admission.QuotaPodRemoved(new.metadata.uid)
            if info is not None and counts_towards_quota(info):
                event = admission.QuotaPodUpdated(quota_pod_from(info, with_overhead=self.with_overhead))
            released = bool(self._manager.handle(event)) or released
        released = self._end_grace_periods() or released
        if released and self.on_quota_released is not None:
            self.on_quota_released()

    def _ignores(self, pod: Pod) -> bool:
        """Return whether the pod is being deleted and does not count any more."""
        meta, rules = pod.metadata, self.rules
        if meta.deletion_timestamp is None or not (rules.ignore_terminating or rules.ignore_terminating_immediately):
            return False
        ends = meta.deletion_timestamp.timestamp() + (meta.deletion_grace_period_seconds or 0)
        if rules.ignore_terminating_immediately or ends < self._now():
            self._ignored.add(meta.uid)
            return True
        heappush(self._grace_ends, (ends, meta.uid))
        return False

    def end_grace_periods(self) -> None:
        """Stop counting pods whose grace period is over; nothing else tells of the time."""
        if self._end_grace_periods() and self.on_quota_released is not None:
            self.on_quota_released()

    def _end_grace_periods(self) -> bool:
        released = False
        while self._grace_ends and self._grace_ends[0][0] < self._now():
            _, uid = heappop(self._grace_ends)
            if uid in self._manager.pods:
                self._ignored.add(uid)
                released = bool(self._manager.handle(admission.QuotaPodRemoved(uid))) or released
        return released

    def _on_placement(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        if what == "add":
            self._count_placement(pod.uid)
            return
        uid, manager, timer = pod.uid, self._manager, self.timer
        started = 0.0 if timer is None else timer.now()
        listed = self._pods.get(pod.namespace, pod.name)
        if listed is None or listed.metadata.uid != uid or is_terminal(listed):
            manager.handle(admission.QuotaPodRemoved(uid))
        else:
            manager.forget_pod(uid)
        if timer is not None:
            timer.took("UnreservePod", started)

    def _count_placement(self, uid: str) -> None:
        timer = self.timer
        started = 0.0 if timer is None else timer.now()
        if not self._manager.assume_pod(uid):
            self._count_unlisted(uid)
        if timer is not None:
            timer.took("ReservePod", started)

    def _count_unlisted(self, uid: str) -> None:
        """Count a placed pod that the list of pods has not shown yet."""
        pod = self._state.placed_pod(uid)
        if pod is not None and counts_towards_quota(pod) and uid not in self._ignored:
            self._manager.handle(admission.QuotaPodUpdated(quota_pod_from(pod, with_overhead=self.with_overhead)))
            self._manager.assume_pod(uid)


class ElasticQuotaCaches:
    """The quota caches by rules: `state.derived(ElasticQuotaCaches)`. Profiles with equal rules share one."""

    def __init__(self, state: ClusterState) -> None:
        self._known: list[ElasticQuotaCache] = []

    def get_or_create(self, rules: QuotaRules, handle: Handle, *, with_overhead: bool) -> ElasticQuotaCache:
        for quota_cache in self._known:
            if quota_cache.rules == rules and quota_cache.with_overhead == with_overhead:
                return quota_cache
        made = ElasticQuotaCache(rules, handle, with_overhead=with_overhead)
        self._known.append(made)
        return made
