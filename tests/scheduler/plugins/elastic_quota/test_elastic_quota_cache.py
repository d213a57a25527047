"""After any history of events the cache equals one made anew from the lists and the state.

Some thousands of events are tried; `make soak` tries as many as there is time for.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from koord.api.koordinator.protocol import DEFAULT_QUOTA
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cluster_event import DELETE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.plugins.elastic_quota.admission import QuotaPodRemoved, QuotaPodUpdated
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.plugins.elastic_quota.quota_cluster import QuotaCluster, make_quota, of_quota
from tests.soak_budget import soak_events, soak_runs

QUOTAS = ("a", "b", "c", "team")
PARENTS = {"c": "a"}
NODES = ("n0", "n1")
numbers = st.integers(0, 8)
which = st.integers(0, 5)
_GONE = ObjectEvent(ClusterEvent("Pod", DELETE))


class ClusterWithQuotas(RuleBasedStateMachine):
    gates: dict[str, bool] = {}

    def __init__(self) -> None:
        super().__init__()
        self.scene = QuotaCluster(gates=self.gates)
        self.pods: dict[int, Pod] = {}
        self.lives = 0

    # Quotas and nodes ---------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(QUOTAS), least=numbers, more=numbers, lends=st.booleans(), listed=st.booleans())
    def quota(self, name: str, least: int, more: int, lends: bool, listed: bool) -> None:
        self.scene.quotas(
            make_quota(
                name,
                {"cpu": str(least)},
                {"cpu": str(least + more)},
                namespace="team" if name == "team" else "quotas",
                parent=PARENTS.get(name, ""),
                annotations={"namespaces": '["default"]'} if listed else {},
                allow_lent_resource=str(lends).lower(),
            )
        )

    @rule(name=st.sampled_from(QUOTAS))
    def drop_quota(self, name: str) -> None:
        self.scene.drop_quota(name, "team" if name == "team" else "quotas") if self._has(name) else None

    def _has(self, name: str) -> bool:
        return any(q.metadata.name == name for q in self.scene.handle.held["elasticquotas"].list())

    @rule(name=st.sampled_from(NODES), cpu=numbers)
    def node(self, name: str, cpu: int) -> None:
        self.scene.state.set_node(make_node(name, cpu=str(cpu)))

    @rule(name=st.sampled_from(NODES))
    def drop_node(self, name: str) -> None:
        self.scene.state.drop_node(name)

    # Pods ---------------------------------------------------------------------------------------------------------

    @rule(
        n=which,
        quota=st.sampled_from((*QUOTAS, "", "no-such")),
        cpu=numbers,
        fixed=st.booleans(),
        namespace=st.sampled_from(("default", "team")),
        node=st.sampled_from(("", "", *NODES)),
    )
    def pod(self, n: int, quota: str, cpu: int, fixed: bool, namespace: str, node: str) -> None:
        """A new pod, or the same one with other labels; where it is, it stays."""
        known = self.pods.get(n)
        if known is None:
            self.lives += 1
            uid = f"uid-{n}-{self.lives}"
        else:
            uid, namespace = known.metadata.uid, known.metadata.namespace
            cpu = int(known.spec.containers[0].resources.requests.get("cpu", 0))
            node = known.spec.node_name or node
            if self.scene.state.is_assumed(uid):
                node = ""
        made = of_quota(f"p{n}", quota, fixed=fixed, cpu=str(cpu), namespace=namespace, node=node, uid=uid)
        self.pods[n] = made
        self.scene.seen(made)

    @rule(n=which, phase=st.sampled_from(("", "Succeeded", "Failed")))
    def end(self, n: int, phase: str) -> None:
        known = self.pods.pop(n, None)
        if known is None:
            return
        if phase:
            ended = type(known)(metadata=known.metadata, spec=known.spec, status=type(known.status)(phase=phase))
            self.scene.handle.held["pods"].put(ended)
            self.scene.state.drop_pod(known.metadata.uid)
        self.scene.gone(known)

    @rule(n=which)
    def decide(self, n: int) -> None:
        """As the loop does: an admitted pod is promised a node if one has room for it."""
        known = self.pods.get(n)
        state = self.scene.state
        if known is None or state.placed_pod(known.metadata.uid) is not None or not state.node_count:
            return
        info = state.pod_info(known)
        refused = self.scene.ledger.check_admission(info) is not None
        decision = self.scene.engine.decide(info).decision
        if isinstance(decision, ChosenNode):
            assert not refused
            state.assume(info, decision.node)

    @rule(n=which)
    def bind_fails(self, n: int) -> None:
        known = self.pods.get(n)
        if known is not None:
            self.scene.state.forget(known.metadata.uid)

    @precondition(lambda self: self.pods)
    @rule(n=which)
    def bind_succeeds(self, n: int) -> None:
        known = self.pods.get(n)
        state = self.scene.state
        if known is None or not state.is_assumed(known.metadata.uid):
            return
        placed = state.placed_pod(known.metadata.uid)
        assert placed is not None
        spec = type(known.spec)(node_name=placed.node_name, containers=known.spec.containers)
        self.pods[n] = type(known)(metadata=known.metadata, spec=spec, status=known.status)
        self.scene.seen(self.pods[n])

    # What must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def equals_a_ledger_made_anew(self) -> None:
        self.scene.agrees_with_a_new_ledger()

    @invariant()
    def holds_exactly_the_live_pods(self) -> None:
        book = self.scene.ledger.manager
        live = {pod.metadata.uid for pod in self.pods.values()}
        assert set(book.pods) == live
        assert {uid for uid in live if book.is_assigned(uid)} == {pod.uid for pod in self.scene.state.pods()}

    @invariant()
    def every_pod_is_a_member_of_at_most_one_quota(self) -> None:
        book = self.scene.ledger.manager
        names = [*(quota.name for quota in book.quota_index), DEFAULT_QUOTA]
        members = [pod.uid for name in names for pod in self.scene.ledger.pods_in_quota(name)]
        assert len(members) == len(set(members))

    @invariant()
    def the_hint_and_the_verdict_agree(self) -> None:
        for pod in self.pods.values():
            info = self.scene.state.pod_info(pod)
            assert self.scene.quota.queueing_hint(info, _GONE) == (self.scene.ledger.check_admission(info) is None)


class GuaranteedUse(ClusterWithQuotas):
    gates = {"guarantee_usage": True}


TestLedger = ClusterWithQuotas.TestCase
TestLedger.settings = settings(max_examples=soak_runs(60, 60), stateful_step_count=60, deadline=None)
TestLedgerThatGuarantees = GuaranteedUse.TestCase
TestLedgerThatGuarantees.settings = settings(max_examples=soak_runs(15, 40), stateful_step_count=40, deadline=None)


@given(st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_placements_that_are_counted_when_they_are_read_are_counted_right(chance: Random) -> None:
    """Many pods of the default quota are decided, and numbers are read seldom: all that happens in between counts."""
    cluster = ClusterWithQuotas()
    for name in NODES:
        cluster.node(name, 8)
    steps: list[tuple[Callable[[int], object], int]] = [
        (lambda n: cluster.pod(n, chance.choice(("", "", "", "a")), 1, False, "default", ""), 30),
        (cluster.decide, 40),
        (cluster.bind_fails, 15),
        (cluster.bind_succeeds, 10),
        (lambda n: cluster.end(n, chance.choice(("", "Succeeded"))), 10),
        (lambda n: cluster.scene.state.set_pod(make_pod(f"unlisted-{n}", node=NODES[0], cpu="1")), 3),
        (lambda n: cluster.scene.state.drop_pod(f"uid-default-unlisted-{n}"), 3),
        (lambda n: cluster.quota("a", 1, 5, True, chance.random() < 0.3), 1),
        (lambda n: cluster.drop_quota("a"), 1),
    ]
    actions, weights = [action for action, _ in steps], [weight for _, weight in steps]
    for _ in range(150):
        chance.choices(actions, weights)[0](chance.randrange(6))
        if chance.random() < 0.1:
            cluster.equals_a_ledger_made_anew()
    cluster.equals_a_ledger_made_anew()


def test_a_hundred_thousand_events_leave_no_remainder() -> None:
    """The same in bulk: pods come, are judged, get a place, lose it, end. Compared now and then, and at the end."""
    scene = QuotaCluster({"a": "200", "b": "200"})
    scene.quotas(*(make_quota(f"q{i}", {"cpu": "20"}, {"cpu": str(40 + i)}) for i in range(8)))
    ledger, state = scene.ledger, scene.state
    shapes = [state.pod_info(of_quota("shape", f"q{i % 8}" if i else "", cpu=str(1 + i % 3))) for i in range(9)]
    book = ledger.manager
    live: dict[int, str] = {}
    done, n = 0, 0
    while done < soak_events(100_000):
        n += 1
        slot, shape = n * 7919 % 300, shapes[n % 9]
        if slot in live:
            uid = live.pop(slot)
            if state.placed_pod(uid) is not None:
                state.drop_pod(uid)
                done += 1
            book.handle(QuotaPodRemoved(uid))
        else:
            uid = live[slot] = f"uid-{n}"
            pod = shape.placed_on("")
            pod.uid, pod.name = uid, f"p{n}"
            book.handle(QuotaPodUpdated(ledger.quota_pod(pod)))
            if ledger.check_admission(pod) is None:
                state.assume(pod, "a" if n % 2 else "b")
                done += 1
                if n % 5 == 0:
                    state.forget(uid)
                    live.pop(slot)  # the list does not know it, so it is gone with its place
                    done += 1
        done += 1
    for uid in live.values():
        state.drop_pod(uid)
        book.handle(QuotaPodRemoved(uid))
    book = ledger.manager
    assert not book.pods
    assert not book.assumed
    assert all(not account.used and not account.child_request for account in book.trees.all_nodes())
    scene.agrees_with_a_new_ledger()
