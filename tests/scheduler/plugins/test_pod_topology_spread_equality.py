"""PodTopologySpread: both forms agree with each other and with a brute-force reading of the documentation, and what is
kept through any history equals what is worked out anew."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.affinity import TopologySpreadConstraint
from koord.api.config.scheduler.in_tree import PodTopologySpreadArgs
from koord.api.meta import LabelSelector, OwnerReference
from koord.api.model import convert
from koord.scheduler.framework.engine import Engine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.pod_topology_spread import PodTopologySpread
from koord.scheduler.plugins.pod_topology_spread.owner import REPLICA_SET, SERVICE, OwnerIndex
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.wire import Pod
from koord.values.selector import Selector
from tests.scheduler.clusters import HOSTNAME, ZONE
from tests.scheduler.equality import History, check_forms, check_kept, histories, profile_of, view_of
from tests.scheduler.plugins.affinity_clusters import Scene, labelled_nodes, scenes, social_pods
from tests.scheduler.plugins.affinity_oracle import World, spread_refusal, spread_scores

SYSTEM = PodTopologySpreadArgs(defaulting_type="System")
LISTED = PodTopologySpreadArgs(
    defaulting_type="List",
    default_constraints=(
        TopologySpreadConstraint(max_skew=1, topology_key=ZONE, when_unsatisfiable="DoNotSchedule"),
        TopologySpreadConstraint(max_skew=2, topology_key="rack", when_unsatisfiable="ScheduleAnyway"),
    ),
)
SYSTEM_CONSTRAINTS = (
    TopologySpreadConstraint(max_skew=3, topology_key=HOSTNAME, when_unsatisfiable="ScheduleAnyway"),
    TopologySpreadConstraint(max_skew=5, topology_key=ZONE, when_unsatisfiable="ScheduleAnyway"),
)
WEB = {"app": "web"}


def owners() -> OwnerIndex:
    index = OwnerIndex()
    index.set(SERVICE, "default", "web", Selector.of_labels(WEB))
    index.set(REPLICA_SET, "default", "owner", Selector.of({}, [("tier", "In", ("x", "y"))]))
    return index


def made(state: ClusterState, args: PodTopologySpreadArgs = SYSTEM) -> PodTopologySpread:
    return PodTopologySpread(args, state, owners())


def system(state: ClusterState) -> Sequence[Plugin]:
    return [made(state)]


def listed(state: ClusterState) -> Sequence[Plugin]:
    return [made(state, LISTED)]


def owned(pod: Pod) -> Pod:
    """The same pod of a ReplicaSet."""
    reference = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="owner", uid="1", controller=True)
    meta = msgspec.structs.replace(pod.metadata, owner_references=(reference,))
    return msgspec.structs.replace(pod, metadata=meta)


def constraints_of(pod: Pod, args: PodTopologySpreadArgs) -> tuple[TopologySpreadConstraint, ...]:
    """The pod's own constraints; or the defaults, with the selector of who stands behind the pod."""
    if pod.spec.topology_spread_constraints or pod.metadata.namespace != "default":
        return pod.spec.topology_spread_constraints
    wanted: dict[str, object] = {}
    if pod.metadata.labels["app"] == "web":
        wanted["matchLabels"] = WEB
    if pod.metadata.owner_references:
        wanted["matchExpressions"] = [{"key": "tier", "operator": "In", "values": ["x", "y"]}]
    if not wanted:
        return ()
    defaults = SYSTEM_CONSTRAINTS if args is SYSTEM else args.default_constraints
    selector = convert(wanted, LabelSelector)
    return tuple(msgspec.structs.replace(c, label_selector=selector) for c in defaults)


rows = st.lists(st.integers(0, 50), max_size=8)


@settings(max_examples=60, deadline=None)
@given(scene=scenes(spreads=True), rows=rows, args=st.sampled_from((SYSTEM, LISTED)))
def test_forms_agree(scene: Scene, rows: list[int], args: PodTopologySpreadArgs) -> None:
    state = scene.state()
    plugin = made(state, args)
    for pod in scene.waiting():
        check_forms(plugin, state, state.info(pod), rows)


@settings(max_examples=150, deadline=None)
@given(scene=scenes(spreads=True), owner=st.booleans(), args=st.sampled_from((SYSTEM, LISTED)))
def test_answers_are_those_of_the_brute_force_reading(scene: Scene, owner: bool, args: PodTopologySpreadArgs) -> None:
    state = scene.state()
    engine = Engine(profile_of([made(state, args)]), state)
    world = World(scene.nodes, scene.placed)
    for waiting in scene.waiting():
        pod = owned(waiting) if owner else waiting
        told = view_of(engine, state, pod)
        constraints = constraints_of(pod, args)
        hard = [c for c in constraints if c.when_unsatisfiable == "DoNotSchedule"]
        soft = [c for c in constraints if c.when_unsatisfiable == "ScheduleAnyway"]
        refusals = {node.metadata.name: spread_refusal(world, pod, node, hard) for node in scene.nodes}
        feasible = [node for node in scene.nodes if refusals[node.metadata.name] is None]
        own = bool(pod.spec.topology_spread_constraints)
        scores = spread_scores(world, pod, feasible, soft, system=not own and args is SYSTEM) if soft else {}
        for name, refusal in refusals.items():
            if refusal is None:
                assert told[name][0] == scores.get(name, 0), (pod.metadata.name, name)
            else:
                assert told[name][1].reasons == (refusal,), (pod.metadata.name, name)
                assert told[name][1].resolvable is ("missing" not in refusal)


@settings(max_examples=70, deadline=None)
@given(history=histories(pods=lambda *a, **k: social_pods(*a, spreads=True, **k), nodes=labelled_nodes, most_steps=10))
@pytest.mark.parametrize("make", [pytest.param(system, id="system"), pytest.param(listed, id="listed")])
def test_kept_verdicts_and_scores_equal_new_ones(make: object, history: History) -> None:
    check_kept(make, history)  # type: ignore[arg-type]
