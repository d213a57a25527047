"""The columns compute how many members each node takes, and the room for all of them, as dry runs node by node do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.scheduler.configuration import SCHEDULER_PLUGIN_CATALOG
from koord.api.koordinator.protocol import L_DISABLE_PREEMPTIBLE, L_QUESTIONED_OBJECT_KEY
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import PostFilterRejection, PreemptionPlan, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.verdict import Fault, Reject, reject
from koord.scheduler.plugins.coscheduling.job_preemption import JobPreemption, JobPreemptionRules, find_job_preemption
from koord.scheduler.plugins.coscheduling.node_capacity import (
    GroupTrial,
    NodeCapacity,
    RejectedMember,
    run_pre_filters,
)
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.builders import HOSTNAME, make_node, make_pod
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.reservation.reservation_cluster import ReservationCluster, owner, reservation, stranger
from tests.scheduler.preemption.cluster_fixture import FILTERS, BudgetHandle

APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "apart"}}}
        ]
    }
}
KINDS: tuple[dict[str, Any], ...] = (
    {"cpu": "1"},
    {"cpu": "2", "memory": "1Gi"},
    {"cpu": "1", "nodeSelector": {"disk": "ssd"}},
    {"cpu": "1", "ports": [("TCP", "", 80)]},
    {"cpu": "1", "labels": {"app": "apart"}, "affinity": APART},
)


class Catcher(Plugin):
    """Keeps what PostFilter plugins are given."""

    name = "Catcher"

    def __init__(self) -> None:
        self.refused: PostFilterContext | None = None

    def post_filter(
        self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext
    ) -> PreemptionPlan | PostFilterRejection | Fault | None:
        self.refused = refused
        return None


def profile_over(state: ClusterState, *more: Plugin) -> SchedulerProfile:
    handle = BudgetHandle(state)
    return profile_of([*(REGISTRY[name](default_args(name), handle) for name in FILTERS), *more])


def default_args(name: str) -> Any:
    kind = SCHEDULER_PLUGIN_CATALOG.get(name)
    return None if kind is None else kind.defaulted(kind.model())


node_sizes = st.lists(
    st.tuples(st.integers(0, 6), st.booleans(), st.booleans(), st.integers(1, 5)), min_size=1, max_size=6
)
crowds = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(range(len(KINDS))), st.integers(0, 2), st.booleans()), max_size=12
)
gangs = st.lists(st.sampled_from(range(len(KINDS))), min_size=1, max_size=8)


def scene(nodes: list[tuple[int, bool, bool, int]], crowd: list[tuple[int, int, int, bool]]) -> ClusterState:
    state = ClusterState()
    for i, (cpu, ssd, tainted, pods) in enumerate(nodes):
        labels = {"disk": "ssd"} if ssd else {}
        taints = ["own=x:NoSchedule"] if tainted else []
        state.set_node(make_node(f"n{i}", cpu=str(cpu), pods=str(pods), labels=labels, taints=taints))
    for i, (where, kind, priority, protected) in enumerate(crowd):
        words = dict(KINDS[kind])
        labels = words.pop("labels", {}) | {L_QUESTIONED_OBJECT_KEY: f"job-{i % 2}"}
        if protected:
            labels = labels | {L_DISABLE_PREEMPTIBLE: "true"}
        node = f"n{where % len(nodes)}"
        state.set_pod(make_pod(f"low-{i}", node=node, priority=priority, labels=labels, **words))
    return state


def members_of(state: ClusterState, gang: list[int], priority: int = 1) -> list[PodInfo]:
    return [state.pod_info(make_pod(f"g-{i}", priority=priority, **KINDS[kind])) for i, kind in enumerate(gang)]


@settings(deadline=None)
@given(node_sizes, crowds, gangs)
def test_offers_are_what_trying_out_gives(nodes: Any, crowd: Any, gang: list[int]) -> None:
    state = scene(nodes, crowd)
    profile = profile_over(state)
    pods = members_of(state, gang)
    trials = run_pre_filters(profile, state, pods)
    assert isinstance(trials, dict)
    offers = NodeCapacity(profile, trials, pods, state.table, lambda node: GroupTrial(profile, node, trials))
    reasons: Counter[str] = Counter()
    plugins = set()
    for node in state.nodes():
        crew, taken, said = GroupTrial(profile, node, trials), 0, None
        for pod in pods:
            said = crew.run_filters(pod)
            if said is not None:
                break
            crew.add(pod)
            taken += 1
        assert offers.count[node.row] == taken
        if said is not None:
            plugins.add(said[0])
            reasons.update(said[1].reasons)
    rows = np.asarray([node.row for node in state.nodes()], np.intp)
    counted, members = offers.count_rejections(rows)
    assert (counted, {plugin for member in members for plugin in member.plugins}) == (reasons, plugins)


@settings(deadline=None)
@given(node_sizes, crowds, st.integers(1, 6), st.sampled_from(range(len(KINDS))))
def test_room_is_for_all_and_nobody_goes_in_vain_R21(nodes: Any, crowd: Any, size: int, kind: int) -> None:
    state = scene(nodes, crowd)
    catcher = Catcher()
    profile = profile_over(state, catcher)
    members = members_of(state, [kind] * size)
    engine = SchedulingEngine(profile, state)
    attempt = engine.decide(members[0])
    if not isinstance(attempt.decision, Unschedulable):
        return
    engine.post_filter(attempt)
    trials = run_pre_filters(profile, state, members)
    if catcher.refused is None or not isinstance(trials, dict):
        return
    rules = JobPreemptionRules()
    found = find_job_preemption(profile, catcher.refused, members, trials, rules)
    worth = [state.table.nodes[row] for row in catcher.refused.resolvable_rows().tolist()]
    most = 0  # what trying out every node without those who may go finds
    for node in worth:
        assert node is not None
        crew = GroupTrial(profile, node, trials)
        for victim in [v for v in node.pods.values() if rules.may_preempt(members[0], v)]:
            crew.remove(victim)
        for member in members:
            if crew.run_filters(member) is not None:
                break
            crew.add(member)
            most += 1
    assert isinstance(found, JobPreemption) == (most >= size)
    if isinstance(found, str):
        assert found.startswith(f"0/{len(nodes)} nodes are available: ")
        return
    assert set(found.nodes) == {member.uid for member in members}
    victims = found.victims(rules)
    assert all(rules.may_preempt(members[0], victim) for victim in victims)
    for name in set(found.nodes.values()):
        placed = [member for member in members if found.nodes[member.uid] == name]
        going = [victim for victim in victims if victim.node_name == name]
        node = state.table.index[name]
        for spared in (None, *going):
            crew = GroupTrial(profile, node, trials)
            for victim in going:
                if victim is not spared:
                    crew.remove(victim)
            fit = True
            for member in placed:
                fit = fit and crew.run_filters(member) is None
                crew.add(member)
            assert fit == (spared is None)


def test_resources_reserved_for_the_members_count_for_them_and_for_nobody_else() -> None:
    world = ReservationCluster(make_node("n0", cpu="4"), make_node("n1", cpu="1"))
    world.put(reservation("r", "n0", cpu="4"))
    profile, state = world.profile, world.state

    def count(pods: list[PodInfo]) -> dict[str, int]:
        trials = run_pre_filters(profile, state, pods)
        assert isinstance(trials, dict)
        capacity = NodeCapacity(profile, trials, pods, state.table, lambda node: GroupTrial(profile, node, trials))
        return {node.name: int(capacity.count[node.row]) for node in state.nodes()}

    owners = [state.pod_info(owner(f"o{i}", cpu="1")) for i in range(3)]
    strangers = [state.pod_info(stranger(f"s{i}", cpu="1")) for i in range(3)]
    assert count(owners) == {"n0": 3, "n1": 1}
    assert count(strangers) == {"n0": 0, "n1": 1}
    assert count([*owners, *strangers]) == {"n0": 3, "n1": 1}


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.sampled_from(["Aligned", "Restricted"])), max_size=4),
    st.lists(st.integers(1, 3), min_size=1, max_size=5),
)
def test_a_plan_with_reservations_is_what_happens_and_leaves_no_trace_R13(
    cpu: int, reserved: list[tuple[int, bool, str]], members: list[int]
) -> None:
    """On one node, as many members fit the plan as get a place when they come one after another."""
    world = ReservationCluster(make_node("n0", cpu=str(cpu)))
    for number, (amount, once, policy) in enumerate(reserved):
        if sum(held for held, _, _ in reserved[: number + 1]) <= cpu:
            world.put(reservation(f"r{number}", "n0", cpu=str(amount), allocateOnce=once, allocatePolicy=policy))
    profile, state = world.profile, world.state
    pods = [owner(f"o{number}", cpu=str(amount)) for number, amount in enumerate(members)]
    infos = [state.pod_info(pod) for pod in pods]
    before = (world.sums(), dict(world.book.register.usages))
    trials = run_pre_filters(profile, state, infos)
    assert isinstance(trials, dict)
    capacity = NodeCapacity(profile, trials, infos, state.table, lambda node: GroupTrial(profile, node, trials))
    assert (world.sums(), dict(world.book.register.usages)) == before
    came = 0
    for pod in pods:
        if world.promise(pod)[0] == "":
            break
        came += 1
    assert capacity.count[state.table.index["n0"].row] == came


def test_a_rejection_by_a_transformer_around_pre_filter_ends_the_planning() -> None:
    class Transforming(Plugin):
        name = "Transforming"

        def before_pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject:
            return reject("not yet")

    state = ClusterState()
    state.set_node(make_node("n0"))
    pods = [state.pod_info(make_pod("p"))]
    rejected = run_pre_filters(profile_of([Transforming()]), state, pods)
    assert rejected == RejectedMember(pods[0], ("Transforming",), reject("not yet"))
