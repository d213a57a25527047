"""PodTopologySpread: both forms agree with each other and with a brute-force reading of the documentation, and what is
kept through any history equals what is worked out anew."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.scheduler.in_tree_args import PodTopologySpreadArgs
from koord.api.kubernetes.affinity import TopologySpreadConstraint
from koord.api.kubernetes.meta import LabelSelector, OwnerReference
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.pod_topology_spread.constraint import REPLICA_SET, SERVICE, OwnerIndex
from koord.scheduler.plugins.pod_topology_spread.plugin import PodTopologySpread
from koord.values.selector import Selector
from tests.scheduler.builders import HOSTNAME, ZONE
from tests.scheduler.plugin_equivalence import (
    ClusterHistory,
    check_cached_matches_fresh,
    check_columns_match_definition,
    histories,
    profile_of,
    view_of,
)
from tests.scheduler.plugins.affinity_clusters import AffinityCluster, affinity_clusters, affinity_pods, labelled_nodes
from tests.scheduler.plugins.affinity_oracle import OracleCluster, spread_refusal, spread_scores

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
    index.set(SERVICE, "default", "web", Selector.from_labels(WEB))
    index.set(REPLICA_SET, "default", "owner", Selector.from_label_selector({}, [("tier", "In", ("x", "y"))]))
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
@given(scene=affinity_clusters(spreads=True), rows=rows, args=st.sampled_from((SYSTEM, LISTED)))
def test_forms_agree(scene: AffinityCluster, rows: list[int], args: PodTopologySpreadArgs) -> None:
    state = scene.state()
    plugin = made(state, args)
    for pod in scene.waiting():
        check_columns_match_definition(plugin, state, state.pod_info(pod), rows)


@settings(max_examples=150, deadline=None)
@given(scene=affinity_clusters(spreads=True), owner=st.booleans(), args=st.sampled_from((SYSTEM, LISTED)))
def test_answers_are_those_of_the_brute_force_reading(
    scene: AffinityCluster, owner: bool, args: PodTopologySpreadArgs
) -> None:
    state = scene.state()
    engine = SchedulingEngine(profile_of([made(state, args)]), state)
    world = OracleCluster(scene.nodes, scene.placed)
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
@given(
    history=histories(pods=lambda *a, **k: affinity_pods(*a, spreads=True, **k), nodes=labelled_nodes, most_steps=10)
)
@pytest.mark.parametrize("make", [pytest.param(system, id="system"), pytest.param(listed, id="listed")])
def test_kept_verdicts_and_scores_equal_new_ones(make: object, history: ClusterHistory) -> None:
    check_cached_matches_fresh(make, history)  # type: ignore[arg-type]
