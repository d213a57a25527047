"""The quota manager: all quotas and their pods, and the one place where events become numbers.

The numbers are a function of the live quotas, the live pods, the assumed pods and the cluster's total,
and of nothing else; `GroupQuotaManager.build` makes the same from those alone. Pods are summed by address
(the quota they name and their namespace), so a change of the tree costs as many steps as there are
addresses, not pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from koord.api.protocol import DEFAULT_QUOTA
from koord.policy.quota.account import ENDLESS, Account
from koord.policy.quota.amount import Amounts, Counts, add_to, masked, minus
from koord.policy.quota.claimant import Address, Claimant
from koord.policy.quota.definition import Quota, Rules
from koord.policy.quota.directory import Directory
from koord.policy.quota.event import (
    Assigned,
    Eased,
    Effect,
    Event,
    QuotaGone,
    QuotaSeen,
    Refused,
    Released,
    Requested,
    TotalChanged,
    Unassigned,
)
from koord.policy.quota.forest import DEFAULT_TREE, Forest
from koord.policy.quota.judgement import judge
from koord.policy.quota.refusal import Refusal

_LATE = 1024


class _Bundle:
    """The pods of one address, added up."""

    __slots__ = ("home", "np_request", "np_used", "open", "pods", "refusal", "request", "used")

    def __init__(self) -> None:
        self.pods: dict[str, Claimant] = {}  # by uid
        self.request: Amounts = {}
        self.np_request: Amounts = {}
        self.used: Amounts = {}
        self.np_used: Amounts = {}
        self.home: Account | None = None  # where they are counted
        self.refusal: Refusal | None = None  # why none of them may start
        self.open = False  # they are counted in a built-in group without a max

    def move(self, home: Account | None, refusal: Refusal | None) -> None:
        self.home, self.refusal = home, refusal
        self.open = refusal is None and (home is None or (not home.path and home.endless))


class Book:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.version = 0  # incremented whenever some number may have changed
        self._directory = Directory()
        self.pods: dict[str, Claimant] = {}  # by uid; changed by `handle` alone
        self._promised: set[str] = set()  # pods with a node that no API server confirmed yet
        self._bundles: dict[Address, _Bundle] = {}
        self._total: Counts = {}
        self._forest: Forest | None = None  # rebuilt when it is next needed
        # Assumed pods of a built-in group that are not counted there yet: nothing depends on it before it is read.
        self._late: list[tuple[_Bundle, Claimant]] = []
        self._retotal = True  # what is left for the default tree has changed
        self._refused: dict[str, Refused] = {}

    @staticmethod
    def of(
        rules: Rules,
        quotas: Iterable[Quota],
        pods: Iterable[Claimant],
        total: Counts,
        promised: Iterable[str] = (),
    ) -> Book:
        book = Book(rules)
        book.handle(TotalChanged(total))
        for quota in quotas:
            book.handle(QuotaSeen(quota))
        for pod in pods:
            book.handle(Requested(pod))
        for uid in promised:
            book.handle(Assigned(uid))
        return book

    # -- changing

    def handle(self, event: Event) -> tuple[Effect, ...]:
        eased: Collection[str] = ()
        if not isinstance(event, Refused):
            self.version += 1
        match event:
            case QuotaSeen(quota):
                eased = self._restructured(self._directory.put(quota))
            case QuotaGone(namespace, name):
                eased = self._restructured(self._directory.remove(namespace, name))
                if self._directory.get(name) is None:
                    self._refused.pop(name, None)
            case Requested(pod):
                eased = self._requested(pod)
            case Assigned(uid):
                self.assign(uid)
            case Unassigned(uid):
                eased = self.unassign(uid)
            case Released(uid):
                gone = self.pods.get(uid)
                if gone is not None:
                    eased = self._trees_of(gone)
                    self._forget(gone)
            case TotalChanged(total):
                eased = (DEFAULT_TREE,) if any(n > self._total.get(name, 0) for name, n in total.items()) else ()
                self._total = total
                self._retotal = True
            case Refused():
                self._refused[event.quota] = event
        return (Eased(frozenset(eased), event),) if eased else ()

    def _restructured(self, changed: bool) -> Collection[str]:
        if not changed:
            return ()
        self._forest = None
        return self._all_trees()

    def _requested(self, pod: Claimant) -> Collection[str]:
        known = self.pods.get(pod.uid)
        if known == pod:
            return ()
        eased: Collection[str] = ()
        if known is not None and _claims_alike(known, pod):
            self.pods[pod.uid] = self._bundles[pod.address].pods[pod.uid] = pod
            if known.placed != pod.placed and pod.uid not in self._promised:
                self._use(pod, 1 if pod.placed else -1)
                return () if pod.placed else self._trees_of(pod)
            return ()
        if known is not None:
            eased = self._trees_of(known)
            promised = known.uid in self._promised
            self._forget(known)
            if promised:
                self._promised.add(pod.uid)
        self.pods[pod.uid] = pod
        self._count(pod, 1)
        if self._is_assigned(pod):
            self._use(pod, 1)
        return eased

    def assign(self, uid: str) -> bool:
        """Assume a pod as QuotaPodAssumed does, without an event since every placement comes here. False for an
        unknown pod.
        """
        pod = self.pods.get(uid)
        if pod is None:
            return False
        if uid not in self._promised:
            self.version += 1
            self._promised.add(uid)
            if not pod.placed:
                bundle = self._bundles[pod.quota, pod.namespace]
                if bundle.home is None or bundle.home.path:
                    self._use(pod, 1)
                else:
                    self._late.append((bundle, pod))
                    if len(self._late) > _LATE:
                        self._catch_up()
        return True

    def _catch_up(self) -> None:
        """Count the assumed pods of the built-in groups, equal ones at once. Sums do not depend on order."""
        alike: dict[tuple[int, int, bool], tuple[_Bundle, Claimant, int]] = {}
        for bundle, pod in self._late:
            key = (id(bundle), id(pod.requests), pod.preemptible)
            known = alike.get(key)
            alike[key] = (bundle, pod, 1 if known is None else known[2] + 1)
        self._late.clear()
        for bundle, pod, times in alike.values():
            self._use_of(bundle, pod, times)

    def unassign(self, uid: str) -> Collection[str]:
        """Forget an assumed pod and return the trees where it may help."""
        self.version += 1
        pod = self.pods.get(uid)
        if pod is None or uid not in self._promised:
            return ()
        self._promised.discard(uid)
        if pod.placed:
            return ()
        self._use(pod, -1)
        return self._trees_of(pod)

    def _forget(self, pod: Claimant) -> None:
        if self._is_assigned(pod):
            self._use(pod, -1)
        self._count(pod, -1)
        self._promised.discard(pod.uid)
        del self.pods[pod.uid]

    def _count(self, pod: Claimant, sign: int) -> None:
        bundle = self._bundles.get(pod.address)
        if bundle is None:
            bundle = self._bundles[pod.address] = _Bundle()
            if self._forest is not None:
                bundle.move(*self._house(pod.address, self._forest))
        if sign > 0:
            bundle.pods[pod.uid] = pod
        else:
            del bundle.pods[pod.uid]
        add_to(bundle.request, pod.requests, sign)
        if not pod.preemptible:
            add_to(bundle.np_request, pod.requests, sign)
        if self._forest is not None and bundle.home is not None:
            own = masked(pod.requests, bundle.home.quota.max)
            bundle.home.add_request(own, {} if pod.preemptible else own, sign)
        if not bundle.pods:
            del self._bundles[pod.address]

    def _use(self, pod: Claimant, sign: int) -> None:
        self._use_of(self._bundles[pod.address], pod, sign)

    def _use_of(self, bundle: _Bundle, pod: Claimant, sign: int) -> None:
        add_to(bundle.used, pod.requests, sign)
        if not pod.preemptible:
            add_to(bundle.np_used, pod.requests, sign)
        if self._forest is not None and bundle.home is not None:
            home, own = bundle.home, pod.requests
            most = home.quota.max
            if not own.keys() <= most.keys():
                own = masked(own, most)
            self._use_home(home, own, {} if pod.preemptible else own, sign)
            if not home.path:
                self._retotal = True

    def _use_home(self, home: Account, own: Counts, fixed: Counts, sign: int = 1) -> None:
        home.add_used(own, fixed, sign)
        if self.rules.guarantee_usage:
            home.add_allocated(own, sign)

    def _grown(self) -> Forest:
        """Return the trees with every pod in its place."""
        if self._late:
            self._catch_up()
        if self._forest is None:
            forest = Forest(self._directory, self.rules)
            for address, bundle in self._bundles.items():
                bundle.move(*self._house(address, forest))
                if bundle.home is not None:
                    most = bundle.home.quota.max
                    bundle.home.add_request(masked(bundle.request, most), masked(bundle.np_request, most))
                    self._use_home(bundle.home, masked(bundle.used, most), masked(bundle.np_used, most))
            self._forest = forest
            self._retotal = True
        if self._retotal:
            self._retotal = False
            self._forest.set_total(self._total)
        return self._forest

    def _house(self, address: Address, forest: Forest) -> tuple[Account | None, Refusal | None]:
        """Return where pods of an address are counted, and why they are refused, if they are.

        Pods that name a quota which does not exist may hold nodes all the same, so they are counted with the
        default group; they have none of its rights.
        """
        name = self._directory.home(address, default=self.rules.default_group)
        if not name:
            return None, None
        if not self._directory.knows(name):
            return (forest.account(DEFAULT_QUOTA) if self.rules.default_group else None), Refusal(
                kind="unknown", quota=name
            )
        why = forest.why_adrift(name)
        return forest.account(name), None if why is None else Refusal(kind="adrift", quota=name, why=why)

    # -- reading

    @property
    def forest(self) -> Forest:
        """Return the trees, for readers of numbers; only `handle` changes them."""
        return self._grown()

    @property
    def quotas(self) -> Directory:
        return self._directory

    @property
    def total(self) -> Counts:
        return self._total

    @property
    def promised(self) -> Collection[str]:
        return self._promised

    def is_assigned(self, uid: str) -> bool:
        pod = self.pods.get(uid)
        return pod is not None and self._is_assigned(pod)

    def last_refusal(self, quota: str) -> Refused | None:
        return self._refused.get(quota)

    def members(self, quota: str) -> Iterator[Claimant]:
        """Yield the assigned pods of a quota itself, not of those below it."""
        self._grown()
        for bundle in self._bundles.values():
            if bundle.home is not None and bundle.home.name == quota and bundle.refusal is None:
                for pod in bundle.pods.values():
                    if self._is_assigned(pod):
                        yield pod

    def quota_of(self, pod: Claimant) -> str | None:
        """Return the quota that a pod belongs to; None when it has none or names one that does not exist."""
        name = self._directory.home(pod.address, default=self.rules.default_group)
        return name if name and self._directory.knows(name) else None

    def runtime(self, quota: str) -> Amounts:
        """Return what a quota may use now: the max of a built-in group, nothing for an orphaned quota."""
        forest = self._grown()
        account = forest.account(quota)
        if account is None:
            return {}
        return dict(account.quota.max) if quota in forest.apart else forest.tree_of(quota).entitlement(account)

    def check(self, pod: Claimant, *, without: Iterable[Claimant] = ()) -> Refusal | None:
        """Check whether the pod may start. Its request counts, even when the watch did not bring it yet.

        `without` are running pods that are preempted in a dry run; only their use is removed, not what they
        request.
        """
        forest = self._grown() if self._forest is None else self._forest
        bundle = self._bundles.get((pod.quota, pod.namespace))
        if bundle is not None and bundle.open:
            return None
        home, refusal = (bundle.home, bundle.refusal) if bundle is not None else self._house(pod.address, forest)
        if refusal is not None or home is None:
            return refusal
        if not home.path and (home.endless or self._has_room(home, pod.requests)):
            return None  # a built-in group shares nothing
        forest = self._grown()
        known = self.pods.get(pod.uid)
        requested = masked(pod.requests, home.quota.max)
        gone = list(without)
        if known is not None and self._is_assigned(known):
            gone.append(known)
        if known is not None and known.address == pod.address and known.requests == pod.requests:
            return self._judged(forest, home, pod, requested, gone)
        # As if the watch had brought the pod as it is now: its new request counts, its former one does not.
        former = self._bundles[known.address].home if known is not None else None
        before = masked(known.requests, former.quota.max) if known is not None and former is not None else {}
        home.add_request(requested, {})
        if former is not None:
            former.add_request(before, {}, -1)
        try:
            return self._judged(forest, home, pod, requested, gone)
        finally:
            home.add_request(requested, {}, -1)
            if former is not None:
                former.add_request(before, {})

    def _has_room(self, home: Account, requests: Counts) -> bool:
        """Return whether a built-in group, whose limit is its max, has room."""
        self._grown()
        most, used = home.quota.max, home.used
        return all(used.get(name, 0) + amount <= most.get(name, ENDLESS) for name, amount in requests.items())

    def _judged(
        self, forest: Forest, home: Account, pod: Claimant, requested: Amounts, gone: list[Claimant]
    ) -> Refusal | None:
        def used_by(account: Account) -> Amounts:
            return self._without(account, account.used, gone)

        def fixed() -> Amounts:
            return self._without(home, home.np_used, [other for other in gone if not other.preemptible])

        levels = forest.tree_of(home.name).entitlements(home)
        return judge(self.rules, home, levels, requested, used_by, None if pod.preemptible else fixed)

    def _without(self, account: Account, used: Amounts, gone: list[Claimant]) -> Amounts:
        """Return the use of a node, less that of assigned pods at or below it that are preempted in a dry run."""
        for pod in gone:
            bundle = self._bundles.get(pod.address)
            home = bundle.home if bundle is not None else None
            if home is not None and (home is account or account in home.path) and self.is_assigned(pod.uid):
                used = minus(used, masked(pod.requests, home.quota.max))
        return used

    def _is_assigned(self, pod: Claimant) -> bool:
        return pod.placed or pod.uid in self._promised

    def _trees_of(self, pod: Claimant) -> Collection[str]:
        forest = self._forest
        bundle = self._bundles.get(pod.address)
        if forest is None or bundle is None or bundle.home is None:
            return self._all_trees()
        return (forest.tree_name(bundle.home.name),)

    def _all_trees(self) -> Collection[str]:
        return {DEFAULT_TREE, *(quota.tree for quota in self._directory if self.rules.many_trees)}


def _claims_alike(a: Claimant, b: Claimant) -> bool:
    """Return whether b requests exactly what a requested of the same quota, so that no sum of requests changes."""
    return a.address == b.address and a.requests == b.requests and a.preemptible == b.preemptible
