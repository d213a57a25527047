"""What holds of every preemption on random clusters.

- The victims are enough, and none of them is taken for nothing.
- Looking for them changes nothing: neither the cluster nor what is decided next.
- The columns that rule nodes out agree with trying every node.
- The same events and the same seed give the same outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.kubernetes.pod_policy import PodDisruptionBudget
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.decision import ChosenNode, PreemptionPlan, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.preemption.victims import DisruptionBudgets, VictimRules
from tests.scheduler.builders import HOSTNAME, ZONE, make_node, make_pod, make_state
from tests.scheduler.preemption.cluster_fixture import PreemptionCluster, budget, running, state_summary

NODES = ("n0", "n1", "n2", "n3")
CPU = ("0", "1", "2", "3", "4", "8")
PRIORITIES = (-5, 0, 0, 1, 5, 10)


class Situation(msgspec.Struct, frozen=True):
    nodes: tuple[Any, ...]
    placed: tuple[Pod, ...]
    budgets: tuple[PodDisruptionBudget, ...]
    promised: tuple[tuple[Pod, str], ...]
    pod: Pod

    def scene(self, seed: int = 0, **hooks: Any) -> PreemptionCluster:
        scene = PreemptionCluster(make_state(self.nodes, self.placed), self.budgets, seed=seed, **hooks)
        for pod, node in self.promised:
            scene.nominate(pod, node)
        return scene


def _words(draw: st.DrawFn, *, demanding: bool) -> dict[str, Any]:
    words: dict[str, Any] = {
        "cpu": draw(st.sampled_from(("2", "3", "4", "6") if demanding else CPU)),
        "memory": draw(st.sampled_from(("", "1Gi", "3Gi"))),
        "labels": draw(st.fixed_dictionaries({}, optional={"app": st.sampled_from(("web", "db"))})),
    }
    if draw(st.integers(0, 4)) == 0:
        words["ports"] = [("TCP", "", draw(st.sampled_from((80, 81))))]
    if draw(st.integers(0, 3)) == 0:
        term = {
            "topologyKey": draw(st.sampled_from((HOSTNAME, ZONE))),
            "labelSelector": {"matchLabels": {"app": draw(st.sampled_from(("web", "db")))}},
        }
        kind = draw(st.sampled_from(("podAntiAffinity", "podAntiAffinity", "podAffinity")))
        words["affinity"] = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if draw(st.integers(0, 4)) == 0:
        words["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": draw(st.sampled_from((HOSTNAME, ZONE))),
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "web"}},
            }
        ]
    return words


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    names = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=len(NODES), unique=True))
    nodes = [
        make_node(
            name,
            cpu=draw(st.sampled_from(("4", "4", "8"))),
            memory="8Gi",
            pods=draw(st.sampled_from(("2", "3", "110"))),
            labels={HOSTNAME: name, ZONE: draw(st.sampled_from(("a", "b")))},
            taints=draw(st.sampled_from(((), (), (), ("k=v:NoSchedule",)))),
        )
        for name in names
    ]
    placed = [
        running(
            f"old{i}",
            draw(st.sampled_from(names)),
            started=draw(st.sampled_from((None, 1, 2, 3))),
            leaving=draw(st.integers(0, 5)) == 0,
            priority=draw(st.sampled_from(PRIORITIES)),
            **_words(draw, demanding=False),
        )
        for i in range(draw(st.integers(2, 10)))
    ]
    budgets = [
        budget(f"b{i}", {"app": draw(st.sampled_from(("web", "db")))}, draw(st.integers(0, 1)))
        for i in range(draw(st.integers(0, 2)))
    ]
    promised = [
        (make_pod(f"soon{i}", cpu=draw(st.sampled_from(CPU)), priority=draw(st.sampled_from(PRIORITIES))), name)
        for i, name in enumerate(draw(st.lists(st.sampled_from(names), max_size=2)))
    ]
    pod = make_pod("new", priority=draw(st.sampled_from((1, 5, 10))), **_words(draw, demanding=True))
    return Situation(tuple(nodes), tuple(placed), tuple(budgets), tuple(promised), pod)


def outcome(scene: PreemptionCluster, pod: Pod) -> tuple[PodInfo, Unschedulable | ChosenNode]:
    info = scene.state.pod_info(pod)
    attempt = scene.engine.decide(info)
    decision = attempt.decision
    assert isinstance(decision, Unschedulable | ChosenNode)
    return info, scene.engine.post_filter(attempt) if isinstance(decision, Unschedulable) else decision


def fits(situation: Situation, node: str, gone: Sequence[PodInfo]) -> bool:
    """Return whether the node takes the pod in a cluster where these pods never were."""
    uids = {pod.uid for pod in gone}
    left = tuple(pod for pod in situation.placed if pod.metadata.uid not in uids)
    scene = msgspec.structs.replace(situation, placed=left).scene()
    found = scene.engine.decide(scene.state.pod_info(situation.pod)).filter_results
    return found is not None and found.verdict(scene.state.table.index[node].row) is None


def affinity_free(pod: Pod) -> bool:
    return pod.spec.affinity is None or pod.spec.affinity.pod_affinity is None


@given(situations())
@settings(deadline=None, max_examples=150)
def test_victims_are_enough_and_none_is_taken_for_nothing(situation: Situation) -> None:
    scene = situation.scene()
    _, decision = outcome(scene, situation.pod)
    if not isinstance(decision, Unschedulable) or decision.preempt is None:
        return
    preempt = decision.preempt
    assert preempt.victims
    assert all(victim.priority < (situation.pod.spec.priority or 0) for victim in preempt.victims)
    assert all(victim.node_name == preempt.node for victim in preempt.victims)
    assert fits(situation, preempt.node, preempt.victims)
    if affinity_free(situation.pod):  # one that is needed nearby may have been put back after another was given up
        for spared in preempt.victims:
            assert not fits(situation, preempt.node, [v for v in preempt.victims if v is not spared]), spared


@given(situations())
@settings(deadline=None, max_examples=100)
def test_a_what_if_changes_nothing(situation: Situation) -> None:
    scene = situation.scene()
    scene.engine.decide(scene.state.pod_info(situation.pod))  # what is kept from here on is there before and after
    before = state_summary(scene.state)
    info, first = outcome(scene, situation.pod)
    assert state_summary(scene.state) == before
    again = scene.engine.decide(info).decision
    if isinstance(first, Unschedulable):
        assert isinstance(again, Unschedulable)
        assert again.rejections == first.rejections
    else:
        assert again == first
    for node in situation.nodes:  # what was kept is asked again about every node, and must not remember the what-if
        scene.state.set_node(node)
    fresh = SchedulingEngine(scene.engine.profile, scene.state, 0, scene.nominations)
    assert refusals(scene.engine, info) == refusals(fresh, info)


def refusals(engine: SchedulingEngine, pod: PodInfo) -> Any:
    decision = engine.decide(pod).decision
    return decision.message() if isinstance(decision, Unschedulable) else decision


@given(situations(), st.integers(0, 3))
@settings(deadline=None, max_examples=100)
def test_columns_agree_with_trying_every_node(situation: Situation, seed: int) -> None:
    """A rule that lets everybody go, but may not be taken at its word, is answered without columns."""
    plain = outcome(situation.scene(seed), situation.pod)[1]
    slow = outcome(situation.scene(seed, may_evict=lambda pod: True), situation.pod)[1]
    assert told(plain) == told(slow)


@given(situations(), st.integers(0, 3))
@settings(deadline=None, max_examples=50)
def test_the_same_seed_gives_the_same_outcome(situation: Situation, seed: int) -> None:
    assert told(outcome(situation.scene(seed), situation.pod)[1]) == told(
        outcome(situation.scene(seed), situation.pod)[1]
    )


def told(decision: Unschedulable | ChosenNode) -> Any:
    if isinstance(decision, ChosenNode):
        return decision.node
    preempt: PreemptionPlan | None = decision.preempt
    if preempt is None:
        return decision.message(), decision.nominate
    return preempt.node, [victim.name for victim in preempt.victims], preempt.violations, preempt.clear_nominations


@given(situations())
@settings(deadline=None, max_examples=100)
def test_budgets_split_keeps_everybody_in_order(situation: Situation) -> None:
    state = ClusterState()
    ranked = sorted((state.pod_info(pod) for pod in situation.placed), key=VictimRules().importance)
    violating, fine = DisruptionBudgets(situation.budgets).split(ranked)
    assert sorted((*violating, *fine), key=ranked.index) == ranked
    for part in (violating, fine):
        assert part == sorted(part, key=ranked.index)
