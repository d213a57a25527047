"""In any order of events, the quota manager equals one built from the present objects and keeps its invariants."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from koord.api.koordinator.protocol import DEFAULT_QUOTA, ROOT_QUOTA
from koord.scheduler.plugins.elastic_quota.admission import (
    ClusterTotalChanged,
    QuotaDeleted,
    QuotaEvent,
    QuotaPodAssumed,
    QuotaPodForgotten,
    QuotaPodRemoved,
    QuotaPodUpdated,
    QuotaUpdated,
)
from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition, QuotaPod
from koord.scheduler.plugins.elastic_quota.plugin import may_preempt
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from tests.scheduler.plugins.elastic_quota.quota_builders import pod, quota, rules
from tests.soak_budget import soak_runs

NAMES = ["a", "b", "c", "d"]
PARENTS = {"a": ROOT_QUOTA, "b": ROOT_QUOTA, "c": "a", "d": "a"}
numbers = st.integers(0, 12)
pods = st.integers(0, 6)


def numbers_of(book: GroupQuotaManager) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for account in (*book.trees.all_nodes(), book.trees.trees[""].root):
        found[account.name] = (
            account.child_request,
            account.request,
            account.limited_request,
            account.used,
            account.non_preemptible_request,
            account.non_preemptible_used,
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
        self.book = GroupQuotaManager(self.how)
        self.quotas: dict[str, QuotaDefinition] = {}
        self.pods: dict[str, QuotaPod] = {}
        self.promised: set[str] = set()
        self.total: dict[str, int] = {}

    def tell(self, event: QuotaEvent) -> None:
        before = {
            uid for uid, one in self.pods.items() if uid in self.book.pods and self.book.check_pod(one) is not None
        }
        eased = self.book.handle(event)
        if isinstance(event, QuotaPodRemoved | QuotaPodForgotten | QuotaUpdated | QuotaDeleted | ClusterTotalChanged):
            freed = {uid for uid in before & self.book.pods.keys() if self.book.check_pod(self.pods[uid]) is None}
            assert eased or not freed  # nobody who could go on is left asleep

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
        self.tell(QuotaUpdated(seen))

    @rule(name=st.sampled_from(NAMES))
    def lose_quota(self, name: str) -> None:
        self.quotas.pop(name, None)
        self.tell(QuotaDeleted("quotas", name))

    @rule(
        n=pods,
        name=st.sampled_from([*NAMES, ""]),
        cpu=numbers,
        fixed=st.booleans(),
        placed=st.booleans(),
        priority=st.integers(0, 2),
    )
    def see_pod(self, n: int, name: str, cpu: int, fixed: bool, placed: bool, priority: int) -> None:
        seen = pod(f"p{n}", name, cpu, preemptible=not fixed, has_node=placed, priority=priority)
        self.pods[seen.uid] = seen
        self.tell(QuotaPodUpdated(seen))

    @rule(n=pods)
    def lose_pod(self, n: int) -> None:
        self.tell(QuotaPodRemoved(f"uid-p{n}"))
        self.pods.pop(f"uid-p{n}", None)
        self.promised.discard(f"uid-p{n}")

    @rule(n=pods)
    def promise(self, n: int) -> None:
        if f"uid-p{n}" in self.pods:
            self.promised.add(f"uid-p{n}")
        self.tell(QuotaPodAssumed(f"uid-p{n}"))

    @rule(n=pods)
    def withdraw(self, n: int) -> None:
        self.promised.discard(f"uid-p{n}")
        self.tell(QuotaPodForgotten(f"uid-p{n}"))

    @rule(cpu=st.integers(0, 40))
    def change_total(self, cpu: int) -> None:
        self.total = {"cpu": cpu * 1000}
        self.tell(ClusterTotalChanged(self.total))

    @invariant()
    def equals_a_book_made_from_what_is_there(self) -> None:
        anew = GroupQuotaManager.build(self.how, self.quotas.values(), self.pods.values(), self.total, self.promised)
        assert numbers_of(self.book) == numbers_of(anew)

    @invariant()
    def asking_leaves_no_trace(self) -> None:
        before = numbers_of(self.book)
        for name in (*NAMES, "", "no-such"):
            self.book.check_pod(pod("asking", name, 3, preemptible=False))
            self.book.check_pod(pod("p0", name, 5), without=list(self.pods.values()))
        assert numbers_of(self.book) == before

    @invariant()
    def what_preemption_could_admit_is_known_without_a_look_at_the_pods(self) -> None:
        for name in (*NAMES, ""):
            asking = pod("asking", name, 3, priority=1)
            victims = [p for p in self.pods.values() if may_preempt(self.book, asking, p, spare_default=False)]
            expected = bool(victims) and self.book.check_pod(asking, without=victims) is None
            running = [p for p in victims if self.book.is_assigned(p.uid) and any(p.requests.values())]
            assert self.book.could_admit_by_preemption(asking) == (expected and bool(running))

    @invariant()
    def nothing_is_shared_out_twice(self) -> None:
        if self.guarantee:
            return  # what runs is guaranteed, though there may be too much of it
        tree = self.book.trees.trees[""]
        for parent in (tree.root, *(a for a in tree.nodes.values() if a.path)):
            there = tree.total if parent is tree.root else tree.runtime_of(parent)
            given = sum(tree.runtime_of(child).get("cpu", 0) for child in parent.children)
            assert given <= max(0, there.get("cpu", 0))

    @invariant()
    def a_min_that_is_not_lent_is_kept_from_borrowers(self) -> None:
        tree = self.book.trees.trees[""]
        placed = [account for account in tree.nodes.values() if account.path]
        for parent in (tree.root, *placed):
            there = tree.total.get("cpu", 0) if parent is tree.root else parent.definition.min.get("cpu", 0)
            if sum(child.definition.min.get("cpu", 0) for child in parent.children) > there:
                return  # more was promised than there is
        for account in placed:
            least = account.definition.min.get("cpu", 0)
            asked = least if not account.lends else min(least, account.request.get("cpu", 0))
            assert tree.runtime_of(account).get("cpu", 0) >= asked

    @invariant()
    def the_default_group_has_only_those_who_named_nothing_or_nobody(self) -> None:
        group = self.book.trees.node(DEFAULT_QUOTA)
        assert group is not None
        strays = [p for p in self.pods.values() if p.quota not in self.quotas]
        held = [p for p in strays if p.has_node or p.uid in self.promised]
        assert group.used.get("cpu", 0) == sum(p.requests["cpu"] for p in held)


class QuotasThatGuaranteeUse(QuotasInAnyOrder):
    guarantee = True


few = settings(max_examples=soak_runs(25, 20), stateful_step_count=20, deadline=None)
TestQuotas = QuotasInAnyOrder.TestCase
TestQuotas.settings = few
TestGuarantees = QuotasThatGuaranteeUse.TestCase
TestGuarantees.settings = settings(few, max_examples=10)
