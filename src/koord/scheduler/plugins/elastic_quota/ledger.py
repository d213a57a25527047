"""ElasticQuotaCache keeps the quotas of one cluster state in line with the watched quotas, pods and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol

from koord.api.custom import ELASTIC_QUOTAS
from koord.api.sigs_scheduling import ElasticQuota
from koord.policy.quota.book import Book
from koord.policy.quota.claimant import Claimant
from koord.policy.quota.definition import Quota, Rules
from koord.policy.quota.event import (
    Effect,
    QuotaGone,
    QuotaSeen,
    Refused,
    Released,
    Requested,
    TotalChanged,
)
from koord.policy.quota.refusal import Refusal
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.elastic_quota.claim import claim_of, is_counted
from koord.scheduler.plugins.elastic_quota.total import Total
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import PODS, Pod, is_terminal
from koord.values.quantity import QuantityError

QuotaKey = tuple[str, str]  # namespace and name of the object


class Meter(Protocol):
    def now(self) -> float: ...

    def took(self, operation: str, since: float) -> None: ...


class Ledger:
    """The quotas of one cluster state for one set of rules."""
    def __init__(self, rules: Rules, handle: Handle, *, with_overhead: bool = True) -> None:
        self.rules = rules
        self.with_overhead = with_overhead
        self.unreadable: dict[QuotaKey, str] = {}  # quotas that count as absent, and why
        self.on_eased: Callable[[], None] | None = None  # called when quota is released without a placement event
        self.meter: Meter | None = None  # measures the duration of operations, if set
        self._state = handle.state
        self._book = Book(rules)
        self._total = Total(handle.state.table)
        self._nodes = handle.state.table.node_changes
        self._pods = handle.lister(PODS)
        quotas = handle.lister(ELASTIC_QUOTAS)
        quotas.on_change(self._quota_changed)
        self._pods.on_change(self._pod_changed)
        handle.state.listen(self._on_place)

    # Reading -----------------------------------------------------------------------------------------------------

    @property
    def book(self) -> Book:
        """Return the quota manager, with the cluster total up to date."""
        total = self._total.refresh()
        if total is not None:
            self._book.handle(TotalChanged(total))
        return self._book

    def claim(self, pod: PodInfo) -> Claimant:
        return self._book.pods.get(pod.uid) or claim_of(pod, with_overhead=self.with_overhead)

    def check(self, pod: PodInfo) -> Refusal | None:
        """Return why the pod may not start; None when its quota admits it."""
        book = self._book if self._total.position == self._nodes.position else self.book
        return book.check(book.pods.get(pod.uid) or self.claim(pod))

    def check_without(self, pod: PodInfo, gone: Iterable[PodInfo]) -> Refusal | None:
        """Return why the pod may not start if those other pods were gone."""
        return self.book.check(self.claim(pod), without=[self.claim(other) for other in gone])

    def members(self, quota: str) -> Iterator[PodInfo]:
        """Yield the pods that use a quota itself, not one of its children."""
        for claim in self.book.members(quota):
            pod = self._state.placed(claim.uid)
            if pod is not None:
                yield pod

    # What happens ------------------------------------------------------------------------------------------------

    def refused(self, pod: PodInfo, refusal: Refusal, at: float) -> None:
        """Record a refusal with the quota that the pod belongs to, whichever parent quota was exhausted."""
        quota = self._book.quota_of(self.claim(pod)) or refusal.quota
        self._book.handle(Refused(pod.key, quota, refusal, at))

    def _quota_changed(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        started = 0.0 if self.meter is None else self.meter.now()
        self._on_quota(old, new)
        if self.meter is not None:
            self.meter.took("DeleteQuota" if new is None else "UpdateQuota", started)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        started = 0.0 if self.meter is None else self.meter.now()
        self._on_pod(old, new)
        if self.meter is not None:
            self.meter.took("OnPodDelete" if new is None else "OnPodAdd" if old is None else "OnPodUpdate", started)

    def _on_quota(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        shown = new if new is not None else old
        assert shown is not None
        key = (shown.metadata.namespace, shown.metadata.name)
        self.unreadable.pop(key, None)
        if new is None:
            self._book.handle(QuotaGone(*key))
            return
        try:
            quota = Quota.of(new)
        except QuantityError as error:
            self.unreadable[key] = str(error)
            self._book.handle(QuotaGone(*key))
            return
        self._book.handle(QuotaSeen(quota))

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        effects: tuple[Effect, ...] = ()
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            effects = self._book.handle(Released(old.metadata.uid))
        if new is not None:
            uid = new.metadata.uid
            if is_terminal(new):
                effects += self._book.handle(Released(uid))
            else:
                info = self._state.info(new)
                if is_counted(info):
                    effects += self._book.handle(Requested(claim_of(info, with_overhead=self.with_overhead)))
                else:
                    effects += self._book.handle(Released(uid))
        if effects and self.on_eased is not None:
            self.on_eased()

    def _on_place(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        uid, book, meter = pod.uid, self._book, self.meter
        started = 0.0 if meter is None else meter.now()
        if what == "add":
            if not book.assign(uid) and is_counted(pod):
                book.handle(Requested(claim_of(pod, with_overhead=self.with_overhead)))
                book.assign(uid)
            if meter is not None:
                meter.took("ReservePod", started)
            return
        listed = self._pods.get(pod.namespace, pod.name)
        if listed is None or listed.metadata.uid != uid or is_terminal(listed):
            book.handle(Released(uid))
        else:
            book.unassign(uid)
        if meter is not None:
            meter.took("UnreservePod", started)


class Ledgers:
    """The quota caches by rules; get it with `state.derived(ElasticQuotaCaches)`. Profiles with equal rules share
    one.
    """

    def __init__(self, state: ClusterState) -> None:
        self._known: list[Ledger] = []

    def of(self, rules: Rules, handle: Handle, *, with_overhead: bool) -> Ledger:
        for ledger in self._known:
            if ledger.rules == rules and ledger.with_overhead == with_overhead:
                return ledger
        made = Ledger(rules, handle, with_overhead=with_overhead)
        self._known.append(made)
        return made
