"""In any order of events, the quota manager equals one built from the present objects and keeps its invariants."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from koord.api.protocol import DEFAULT_QUOTA, ROOT_QUOTA
from koord.policy.quota.book import Book
from koord.policy.quota.claimant import Claimant
from koord.policy.quota.definition import Quota
from koord.policy.quota.event import (
    Assigned,
    Effect,
    Event,
    QuotaGone,
    QuotaSeen,
    Released,
    Requested,
    TotalChanged,
    Unassigned,
)
from tests.policy.quota.quotas import pod, quota, rules
from tests.soak import runs

NAMES = ["a", "b", "c", "d"]
PARENTS = {"a": ROOT_QUOTA, "b": ROOT_QUOTA, "c": "a", "d": "a"}
numbers = st.integers(0, 12)
pods = st.integers(0, 6)


def numbers_of(book: Book) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for account in (*book.forest.accounts(), book.forest.trees[""].root):
        found[account.name] = (
            account.asked,
            account.request,
            account.limited,
            account.used,
            account.np_request,
            account.np_used,
            account.allocated,
            account.guaranteed,
            book.runtime(account.name),
        )
    return found


class QuotasInAnyOrder(RuleBasedStateMachine):
    guarantee = False

    def __init__(self) -> None:
        super().__init__()
        self.how = rules(guarantee_usage=self.guarantee)
        self.book = Book(self.how)
        self.quotas: dict[str, Quota] = {}
        self.pods: dict[str, Claimant] = {}
        self.promised: set[str] = set()
        self.total: dict[str, int] = {}

    def tell(self, event: Event) -> None:
        before = {uid for uid, one in self.pods.items() if uid in self.book.pods and self.book.check(one) is not None}
        effects: tuple[Effect, ...] = self.book.handle(event)
        if isinstance(event, Released | Unassigned | QuotaSeen | QuotaGone | TotalChanged):
            freed = {uid for uid in before & self.book.pods.keys() if self.book.check(self.pods[uid]) is None}
            assert effects or not freed  # nobody who could go on is left asleep

    @rule(
        name=st.sampled_from(NAMES),
        low=numbers,
        more=numbers,
        weight=st.integers(0, 3),
        lends=st.booleans(),
        move=st.booleans(),
    )
    def see_quota(self, name: str, low: int, more: int, weight: int, lends: bool, move: bool) -> None:
        parent = {"c": "b", "d": "c"}.get(name, ROOT_QUOTA) if move else PARENTS[name]
        seen = quota(name, low, low + more, lends=lends, parent=parent, weight={"cpu": weight * 1000})
        self.quotas[name] = seen
        self.tell(QuotaSeen(seen))

    @rule(name=st.sampled_from(NAMES))
    def lose_quota(self, name: str) -> None:
        self.quotas.pop(name, None)
        self.tell(QuotaGone("quotas", name))

    @rule(n=pods, name=st.sampled_from([*NAMES, ""]), cpu=numbers, fixed=st.booleans(), placed=st.booleans())
    def see_pod(self, n: int, name: str, cpu: int, fixed: bool, placed: bool) -> None:
        seen = pod(f"p{n}", name, cpu, preemptible=not fixed, placed=placed)
        self.pods[seen.uid] = seen
        self.tell(Requested(seen))

    @rule(n=pods)
    def lose_pod(self, n: int) -> None:
        self.tell(Released(f"uid-p{n}"))
        self.pods.pop(f"uid-p{n}", None)
        self.promised.discard(f"uid-p{n}")

    @rule(n=pods)
    def promise(self, n: int) -> None:
        if f"uid-p{n}" in self.pods:
            self.promised.add(f"uid-p{n}")
        self.tell(Assigned(f"uid-p{n}"))

    @rule(n=pods)
    def withdraw(self, n: int) -> None:
        self.promised.discard(f"uid-p{n}")
        self.tell(Unassigned(f"uid-p{n}"))

    @rule(cpu=st.integers(0, 40))
    def change_total(self, cpu: int) -> None:
        self.total = {"cpu": cpu * 1000}
        self.tell(TotalChanged(self.total))

    @invariant()
    def equals_a_book_made_from_what_is_there(self) -> None:
        anew = Book.of(self.how, self.quotas.values(), self.pods.values(), self.total, self.promised)
        assert numbers_of(self.book) == numbers_of(anew)

    @invariant()
    def asking_leaves_no_trace(self) -> None:
        before = numbers_of(self.book)
        for name in (*NAMES, "", "no-such"):
            self.book.check(pod("asking", name, 3, preemptible=False))
            self.book.check(pod("p0", name, 5), without=list(self.pods.values()))
        assert numbers_of(self.book) == before

    @invariant()
    def nothing_is_shared_out_twice(self) -> None:
        if self.guarantee:
            return  # what runs is guaranteed, though there may be too much of it
        tree = self.book.forest.trees[""]
        for parent in (tree.root, *(a for a in tree.accounts.values() if a.path)):
            there = tree.total if parent is tree.root else tree.entitlement(parent)
            given = sum(tree.entitlement(child).get("cpu", 0) for child in parent.children)
            assert given <= max(0, there.get("cpu", 0))

    @invariant()
    def a_min_that_is_not_lent_is_kept_from_borrowers(self) -> None:
        tree = self.book.forest.trees[""]
        placed = [account for account in tree.accounts.values() if account.path]
        for parent in (tree.root, *placed):
            there = tree.total.get("cpu", 0) if parent is tree.root else parent.quota.min.get("cpu", 0)
            if sum(child.quota.min.get("cpu", 0) for child in parent.children) > there:
                return  # more was promised than there is
        for account in placed:
            least = account.quota.min.get("cpu", 0)
            asked = least if not account.lends else min(least, account.request.get("cpu", 0))
            assert tree.entitlement(account).get("cpu", 0) >= asked

    @invariant()
    def the_default_group_has_only_those_who_named_nothing_or_nobody(self) -> None:
        group = self.book.forest.account(DEFAULT_QUOTA)
        assert group is not None
        strays = [p for p in self.pods.values() if p.quota not in self.quotas]
        held = [p for p in strays if p.placed or p.uid in self.promised]
        assert group.used.get("cpu", 0) == sum(p.requests["cpu"] for p in held)


class QuotasThatGuaranteeUse(QuotasInAnyOrder):
    guarantee = True


few = settings(max_examples=runs(25, 20), stateful_step_count=20, deadline=None)
TestQuotas = QuotasInAnyOrder.TestCase
TestQuotas.settings = few
TestGuarantees = QuotasThatGuaranteeUse.TestCase
TestGuarantees.settings = settings(few, max_examples=10)
