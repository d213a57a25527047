"""The quota manager: all quotas and their pods, and the one place where events become numbers.

The numbers are a function of the live quotas, the live pods, the assumed pods and the cluster's total alone;
`GroupQuotaManager.build` makes the same from those. Pods are summed by address (the quota they name and their
namespace), so a change of the tree costs as many steps as there are addresses, not pods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from koord.api.koordinator.protocol import DEFAULT_QUOTA
from koord.policy.quota import QuotaAddress, QuotaIndex
from koord.scheduler.plugins.elastic_quota import admission
from koord.scheduler.plugins.elastic_quota.admission import QuotaRefusal, check_admission
from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition, QuotaPod, QuotaRules
from koord.scheduler.plugins.elastic_quota.tree import DEFAULT_TREE, UNLIMITED, QuotaNode, QuotaTrees, quota_exists
from koord.values.resources import Amounts, Counts, add_in_place, keep_resources, subtract_amounts

_MAX_PENDING_USED = 1024


class _AddressPods:
    """The pods of one address, added up."""

    __slots__ = (
        "is_unlimited",
        "node",
        "non_preemptible_request",
        "non_preemptible_used",
        "pods",
        "preemptible_used",
        "refusal",
        "request",
        "used",
    )

    def __init__(self) -> None:
        self.pods: dict[str, QuotaPod] = {}  # by uid
        self.request: Amounts = {}
        self.non_preemptible_request: Amounts = {}
        self.used: Amounts = {}
        self.non_preemptible_used: Amounts = {}
        self.preemptible_used: dict[int, Amounts] = {}  # by priority: what a pod above it could preempt
        self.node: QuotaNode | None = None  # where they are counted
        self.refusal: QuotaRefusal | None = None  # why none of them may start
        self.is_unlimited = False  # they are counted in a built-in group without a max

    def assign_node(self, home_node: QuotaNode | None, refusal: QuotaRefusal | None) -> None:
        self.node, self.refusal = home_node, refusal
        self.is_unlimited = refusal is None and _is_unlimited(home_node)


def _is_unlimited(home_node: QuotaNode | None) -> bool:
    return home_node is None or (not home_node.path and home_node.is_unlimited)


def _is_charged_alike(one: tuple[_AddressPods, QuotaPod], other: tuple[_AddressPods, QuotaPod]) -> bool:
    a, b = one[1], other[1]
    return (
        a.requests is b.requests and one[0] is other[0] and a.priority == b.priority and a.preemptible == b.preemptible
    )


class GroupQuotaManager:
    def __init__(self, rules: QuotaRules) -> None:
        self.rules = rules
        self.version = 0  # incremented whenever some number may have changed
        self._quota_index: QuotaIndex[QuotaDefinition] = QuotaIndex()
        self.pods: dict[str, QuotaPod] = {}  # by uid; changed by `handle` alone
        self._assumed: set[str] = set()  # pods with a node that no API server confirmed yet
        self._pods_by_address: dict[QuotaAddress, _AddressPods] = {}
        self._total: Counts = {}
        self._trees: QuotaTrees | None = None  # rebuilt when it is next needed
        # Placed pods that are not assumed yet, appended by who places them: nothing depends on it before it is read.
        self.placements: list[str] = []
        self.count_placement: Callable[[str], object] = self.assume_pod  # called with each of them
        self.on_trees_changed: Callable[[], None] = lambda: None  # called when pods may count in other quotas
        # Assumed pods of a built-in group that are not counted there yet: nothing depends on it before it is read.
        self._pending_used: list[tuple[_AddressPods, QuotaPod]] = []
        self._is_total_stale = True  # what is left for the default tree has changed
        self._last_refusals: dict[str, admission.QuotaPodRefused] = {}

    @staticmethod
    def build(
        rules: QuotaRules,
        quotas: Iterable[QuotaDefinition],
        pods: Iterable[QuotaPod],
        total: Counts,
        assumed: Iterable[str] = (),
    ) -> GroupQuotaManager:
        manager = GroupQuotaManager(rules)
        manager.handle(admission.ClusterTotalChanged(total))
        for quota in quotas:
            manager.handle(admission.QuotaUpdated(quota))
        for pod in pods:
            manager.handle(admission.QuotaPodUpdated(pod))
        for uid in assumed:
            manager.handle(admission.QuotaPodAssumed(uid))
        return manager

    # -- changing

    def handle(self, event: admission.QuotaEvent) -> Collection[str]:
        """Apply the event; return the trees in which refused pods may pass now. The check tells exactly which."""
        eased: Collection[str] = ()
        if not isinstance(event, admission.QuotaPodRefused):
            self.version += 1
        match event:
            case admission.QuotaUpdated(quota):
                eased = self._invalidate_trees(self._quota_index.upsert(quota))
            case admission.QuotaDeleted(namespace, name):
                eased = self._invalidate_trees(self._quota_index.remove(namespace, name))
                if self._quota_index.get(name) is None:
                    self._last_refusals.pop(name, None)
            case admission.QuotaPodUpdated(pod):
                eased = self._requested(pod)
            case admission.QuotaPodAssumed(uid):
                self.assume_pod(uid)
            case admission.QuotaPodForgotten(uid):
                eased = self.forget_pod(uid)
            case admission.QuotaPodRemoved(uid):
                gone = self.pods.get(uid)
                if gone is not None:
                    eased = self._trees_of(gone)
                    self._forget(gone)
            case admission.ClusterTotalChanged(total):
                eased = (DEFAULT_TREE,) if any(n > self._total.get(name, 0) for name, n in total.items()) else ()
                self._total = total
                self._is_total_stale = True
            case admission.QuotaPodRefused():
                self._last_refusals[event.quota] = event
        return eased

    def _invalidate_trees(self, changed: bool) -> Collection[str]:
        if not changed:
            return ()
        self._trees = None
        self.on_trees_changed()
        return self._all_trees()

    def _requested(self, pod: QuotaPod) -> Collection[str]:
        known = self.pods.get(pod.uid)
        if known == pod:
            return ()
        if self.placements:
            self.count_placements()
        eased: Collection[str] = ()
        if known is not None and _same_request(known, pod):
            self.pods[pod.uid] = self._pods_by_address[pod.address].pods[pod.uid] = pod
            if known.has_node != pod.has_node and pod.uid not in self._assumed:
                self._add_used(pod, 1 if pod.has_node else -1)
                return () if pod.has_node else self._trees_of(pod)
            return ()
        if known is not None:
            eased = self._trees_of(known)
            assumed = known.uid in self._assumed
            self._forget(known)
            if assumed:
                self._assumed.add(pod.uid)
        self.pods[pod.uid] = pod
        self._add_request(pod, 1)
        if self._is_assigned(pod):
            self._add_used(pod, 1)
        return eased

    def assume_pod(self, uid: str) -> bool:
        """Do what QuotaPodAssumed does, without an event: every placement comes here. False for an unknown pod."""
        pod = self.pods.get(uid)
        if pod is None:
            return False
        if uid not in self._assumed:
            self.version += 1
            self._assumed.add(uid)
            if not pod.has_node:
                address_pods = self._pods_by_address[pod.quota, pod.namespace]
                if address_pods.node is None or address_pods.node.path:
                    self._add_used(pod, 1)
                else:
                    self._pending_used.append((address_pods, pod))
                    if len(self._pending_used) > _MAX_PENDING_USED:
                        self._flush_pending_used()
        return True

    def count_placements(self) -> None:
        """Assume the pods that were placed since the last call."""
        placements = self.placements[:]
        self.placements.clear()
        for uid in placements:
            self.count_placement(uid)

    def _flush_pending_used(self) -> None:
        """Count the assumed pods of the built-in groups, equal ones at once. Sums do not depend on order."""
        alike: dict[tuple[int, int, bool, int], list[tuple[_AddressPods, QuotaPod]]] = {}
        group: list[tuple[_AddressPods, QuotaPod]] = []
        last: tuple[_AddressPods, QuotaPod] | None = None
        for one in self._pending_used:
            if last is None or not _is_charged_alike(one, last):  # pods of one workload come one after another
                address_pods, pod = last = one
                group = alike.setdefault((id(address_pods), id(pod.requests), pod.preemptible, pod.priority), [])
            group.append(one)
        self._pending_used.clear()
        for group in alike.values():
            self._add_used_to(*group[0], len(group))

    def forget_pod(self, uid: str) -> Collection[str]:
        """Forget an assumed pod and return the trees where it may help."""
        self.version += 1
        pod = self.pods.get(uid)
        if pod is None or uid not in self.assumed:
            return ()
        self._assumed.discard(uid)
        if pod.has_node:
            return ()
        self._add_used(pod, -1)
        return self._trees_of(pod)

    def _forget(self, pod: QuotaPod) -> None:
        if self._is_assigned(pod):
            self._add_used(pod, -1)
        self._add_request(pod, -1)
        self._assumed.discard(pod.uid)
        del self.pods[pod.uid]

    def _add_request(self, pod: QuotaPod, sign: int) -> None:
        address_pods = self._pods_by_address.get(pod.address)
        if address_pods is None:
            address_pods = self._pods_by_address[pod.address] = _AddressPods()
            if self._trees is not None:
                address_pods.assign_node(*self._locate(pod.address, self._trees))
        if sign > 0:
            address_pods.pods[pod.uid] = pod
        else:
            del address_pods.pods[pod.uid]
        add_in_place(address_pods.request, pod.requests, sign)
        if not pod.preemptible:
            add_in_place(address_pods.non_preemptible_request, pod.requests, sign)
        if self._trees is not None and address_pods.node is not None:
            own = keep_resources(pod.requests, address_pods.node.definition.max)
            address_pods.node.add_request(own, {} if pod.preemptible else own, sign)
        if not address_pods.pods:
            del self._pods_by_address[pod.address]

    def _add_used(self, pod: QuotaPod, sign: int) -> None:
        self._add_used_to(self._pods_by_address[pod.address], pod, sign)

    def _add_used_to(self, address_pods: _AddressPods, pod: QuotaPod, sign: int) -> None:
        add_in_place(address_pods.used, pod.requests, sign)
        if pod.preemptible:
            by_priority = address_pods.preemptible_used
            amounts = by_priority.setdefault(pod.priority, {})
            add_in_place(amounts, pod.requests, sign)
            if not amounts:
                del by_priority[pod.priority]
        else:
            add_in_place(address_pods.non_preemptible_used, pod.requests, sign)
        if self._trees is not None and address_pods.node is not None:
            home_node, own = address_pods.node, pod.requests
            most = home_node.definition.max
            if not own.keys() <= most.keys():
                own = keep_resources(own, most)
            self._add_used_to_node(home_node, own, {} if pod.preemptible else own, sign)
            if not home_node.path:
                self._is_total_stale = True

    def _add_used_to_node(self, home_node: QuotaNode, own: Counts, fixed: Counts, sign: int = 1) -> None:
        home_node.add_used(own, fixed, sign)
        if self.rules.guarantee_usage:
            home_node.add_allocated(own, sign)

    def _current_trees(self) -> QuotaTrees:
        """Return the trees with every pod in its place."""
        if self.placements:
            self.count_placements()
        if self._pending_used:
            self._flush_pending_used()
        if self._trees is None:
            trees = QuotaTrees(self._quota_index, self.rules)
            for address, address_pods in self._pods_by_address.items():
                address_pods.assign_node(*self._locate(address, trees))
                if address_pods.node is not None:
                    most = address_pods.node.definition.max
                    address_pods.node.add_request(
                        keep_resources(address_pods.request, most),
                        keep_resources(address_pods.non_preemptible_request, most),
                    )
                    self._add_used_to_node(
                        address_pods.node,
                        keep_resources(address_pods.used, most),
                        keep_resources(address_pods.non_preemptible_used, most),
                    )
            self._trees = trees
            self._is_total_stale = True
        if self._is_total_stale:
            self._is_total_stale = False
            self._trees.set_total(self._total)
        return self._trees

    def _locate(self, address: QuotaAddress, trees: QuotaTrees) -> tuple[QuotaNode | None, QuotaRefusal | None]:
        """Return where pods of an address are counted, and why they are refused, if they are.

        Pods that name a quota which does not exist may hold nodes all the same, so they are counted with the
        default group; they have none of its rights.
        """
        name = self._quota_index.quota_for(address, default=self.rules.has_default_group)
        if not name:
            return None, None
        if not quota_exists(self._quota_index, name):
            return (trees.node(DEFAULT_QUOTA) if self.rules.has_default_group else None), QuotaRefusal(
                kind="unknown", quota=name
            )
        why = trees.orphan_reason(name)
        return trees.node(name), None if why is None else QuotaRefusal(kind="adrift", quota=name, why=why)

    # -- reading

    @property
    def trees(self) -> QuotaTrees:
        """Return the trees, for readers of numbers; only `handle` changes them."""
        return self._current_trees()

    @property
    def quota_index(self) -> QuotaIndex[QuotaDefinition]:
        return self._quota_index

    @property
    def total(self) -> Counts:
        return self._total

    @property
    def assumed(self) -> Collection[str]:
        if self.placements:
            self.count_placements()
        return self._assumed

    def is_assigned(self, uid: str) -> bool:
        pod = self.pods.get(uid)
        return pod is not None and self._is_assigned(pod)

    def last_refusal(self, quota: str) -> admission.QuotaPodRefused | None:
        return self._last_refusals.get(quota)

    def pods_of(self, quota: str) -> Iterator[QuotaPod]:
        """Yield the assigned pods of a quota itself, not of those below it."""
        self._current_trees()
        for address_pods in self._pods_by_address.values():
            if address_pods.node is not None and address_pods.node.name == quota and address_pods.refusal is None:
                for pod in address_pods.pods.values():
                    if self._is_assigned(pod):
                        yield pod

    def quota_of_pod(self, pod: QuotaPod) -> str | None:
        """Return the quota that a pod belongs to; None when it has none or names one that does not exist."""
        name = self._quota_index.quota_for(pod.address, default=self.rules.has_default_group)
        return name if name and quota_exists(self._quota_index, name) else None

    def runtime(self, quota: str) -> Amounts:
        """Return what a quota may use now: the max of a built-in group, nothing for an orphaned quota."""
        trees = self._current_trees()
        quota_node = trees.node(quota)
        if quota_node is None:
            return {}
        return (
            dict(quota_node.definition.max)
            if quota in trees.builtin_nodes
            else trees.tree_of(quota).runtime_of(quota_node)
        )

    def could_admit_by_preemption(self, pod: QuotaPod) -> bool:
        """Return whether the pod may start once all preemptible pods of its quota with a lower priority are gone."""
        quota, freed = self.quota_of_pod(pod), Amounts()
        if quota is None:
            return False
        self._current_trees()
        for address_pods in self._pods_by_address.values():
            home_node = address_pods.node
            if home_node is not None and home_node.name == quota and address_pods.refusal is None:
                for priority, amounts in address_pods.preemptible_used.items():
                    if priority < pod.priority:
                        add_in_place(freed, keep_resources(amounts, home_node.definition.max))
        return bool(freed) and self.check_pod(pod, freed=freed) is None

    def is_unlimited(self, pod: QuotaPod) -> bool:
        """Return whether the pod counts in a built-in group without a max, so that it is always admitted."""
        home_node, refusal = self._locate(pod.address, self._current_trees())
        return refusal is None and _is_unlimited(home_node)

    def check_pod(
        self, pod: QuotaPod, *, without: Iterable[QuotaPod] = (), freed: Counts | None = None
    ) -> QuotaRefusal | None:
        """Check whether the pod may start. Its request counts, even when the watch did not bring it yet.

        `without` are pods preempted in a dry run, `freed` is what pods of its quota use that would be: their use is
        removed, but not what they request.
        """
        trees = self._current_trees() if self._trees is None else self._trees
        address_pods = self._pods_by_address.get((pod.quota, pod.namespace))
        if address_pods is not None and address_pods.is_unlimited:
            return None
        home_node, refusal = (
            (address_pods.node, address_pods.refusal) if address_pods is not None else self._locate(pod.address, trees)
        )
        if refusal is not None or home_node is None:
            return refusal
        if not home_node.path and (home_node.is_unlimited or self._has_room(home_node, pod.requests)):
            return None  # a built-in group shares nothing
        trees = self._current_trees()
        known = self.pods.get(pod.uid)
        requested = keep_resources(pod.requests, home_node.definition.max)
        gone = list(without)
        if known is not None and self._is_assigned(known):
            gone.append(known)
        if known is not None and known.address == pod.address and known.requests == pod.requests:
            return self._check_with(trees, home_node, pod, requested, gone, freed)
        # As if the watch had brought the pod as it is now: its new request counts, its former one does not.
        former = self._pods_by_address[known.address].node if known is not None else None
        before = (
            keep_resources(known.requests, former.definition.max) if known is not None and former is not None else {}
        )
        home_node.add_request(requested, {})
        if former is not None:
            former.add_request(before, {}, -1)
        try:
            return self._check_with(trees, home_node, pod, requested, gone, freed)
        finally:
            home_node.add_request(requested, {}, -1)
            if former is not None:
                former.add_request(before, {})

    def _has_room(self, home_node: QuotaNode, requests: Counts) -> bool:
        """Return whether a built-in group, whose limit is its max, has room."""
        self._current_trees()
        most, used = home_node.definition.max, home_node.used
        return all(used.get(name, 0) + amount <= most.get(name, UNLIMITED) for name, amount in requests.items())

    def _check_with(
        self,
        trees: QuotaTrees,
        home_node: QuotaNode,
        pod: QuotaPod,
        requested: Amounts,
        gone: list[QuotaPod],
        freed: Counts | None,
    ) -> QuotaRefusal | None:
        def used_by(quota_node: QuotaNode) -> Amounts:
            used = self._without(quota_node, quota_node.used, gone)
            return used if freed is None else subtract_amounts(used, freed)

        def fixed() -> Amounts:
            return self._without(
                home_node, home_node.non_preemptible_used, [other for other in gone if not other.preemptible]
            )

        levels = trees.tree_of(home_node.name).runtime_path(home_node)
        return check_admission(self.rules, home_node, levels, requested, used_by, None if pod.preemptible else fixed)

    def _without(self, quota_node: QuotaNode, used: Amounts, gone: list[QuotaPod]) -> Amounts:
        """Return the use of a node, less that of assigned pods at or below it that are preempted in a dry run."""
        for pod in gone:
            address_pods = self._pods_by_address.get(pod.address)
            home_node = address_pods.node if address_pods is not None else None
            if (
                home_node is not None
                and (home_node is quota_node or quota_node in home_node.path)
                and self.is_assigned(pod.uid)
            ):
                used = subtract_amounts(used, keep_resources(pod.requests, home_node.definition.max))
        return used

    def _is_assigned(self, pod: QuotaPod) -> bool:
        return pod.has_node or pod.uid in self.assumed

    def _trees_of(self, pod: QuotaPod) -> Collection[str]:
        trees = self._trees
        address_pods = self._pods_by_address.get(pod.address)
        if trees is None or address_pods is None or address_pods.node is None:
            return self._all_trees()
        return (trees.tree_name(address_pods.node.name),)

    def _all_trees(self) -> Collection[str]:
        return {DEFAULT_TREE, *(quota.tree for quota in self._quota_index if self.rules.multi_quota_tree)}


def _same_request(a: QuotaPod, b: QuotaPod) -> bool:
    """Return whether b requests exactly what a requested of the same quota, so that no sum of requests changes."""
    return (a.address, a.requests, a.preemptible, a.priority) == (b.address, b.requests, b.preemptible, b.priority)
