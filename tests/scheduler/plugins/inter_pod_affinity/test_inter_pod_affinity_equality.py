"""InterPodAffinity: both forms agree with each other and with a brute-force reading of the documentation, and what is
kept through any history equals what is worked out anew."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.scheduler.in_tree_args import InterPodAffinityArgs
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from tests.scheduler.plugin_equivalence import (
    ClusterHistory,
    check_cached_matches_fresh,
    check_columns_match_definition,
    histories,
    profile_of,
    view_of,
)
from tests.scheduler.plugins.affinity_clusters import (
    NAMESPACE_LABELS,
    AffinityCluster,
    affinity_clusters,
    affinity_pods,
    labelled_nodes,
    namespace_index,
)
from tests.scheduler.plugins.affinity_oracle import AFFINITY, OracleCluster, affinity_refusal, affinity_scores

rows = st.lists(st.integers(0, 50), max_size=8)


def made(state: ClusterState, hard_weight: int = 1, ignore: bool = False) -> InterPodAffinity:
    args = InterPodAffinityArgs(hard_pod_affinity_weight=hard_weight, ignore_preferred_terms_of_existing_pods=ignore)
    return InterPodAffinity(args, state, namespace_index())


def default(state: ClusterState) -> Sequence[Plugin]:
    return [made(state)]


@settings(max_examples=60, deadline=None)
@given(scene=affinity_clusters(relates=True), rows=rows)
def test_forms_agree(scene: AffinityCluster, rows: list[int]) -> None:
    state = scene.state()
    plugin = made(state)
    for pod in scene.waiting():
        check_columns_match_definition(plugin, state, state.pod_info(pod), rows)


@settings(max_examples=150, deadline=None)
@given(scene=affinity_clusters(relates=True), hard_weight=st.sampled_from((0, 1, 7)), ignore=st.booleans())
def test_answers_are_those_of_the_brute_force_reading(scene: AffinityCluster, hard_weight: int, ignore: bool) -> None:
    state = scene.state()
    engine = SchedulingEngine(profile_of([made(state, hard_weight, ignore)]), state)
    world = OracleCluster(scene.nodes, scene.placed, NAMESPACE_LABELS)
    for pod in scene.waiting():
        told = view_of(engine, state, pod)
        refusals = {node.metadata.name: affinity_refusal(world, pod, node) for node in scene.nodes}
        feasible = [node for node in scene.nodes if refusals[node.metadata.name] is None]
        scores = affinity_scores(world, pod, feasible, hard_weight=hard_weight, ignore_existing=ignore)
        for name, refusal in refusals.items():
            if refusal is None:
                assert told[name][0] == scores[name], (pod.metadata.name, name)
            else:
                assert told[name][1].reasons == (refusal,), (pod.metadata.name, name)
                assert told[name][1].resolvable is (refusal != AFFINITY)


@settings(max_examples=100, deadline=None)
@given(
    history=histories(pods=lambda *a, **k: affinity_pods(*a, relates=True, **k), nodes=labelled_nodes, most_steps=10)
)
def test_kept_verdicts_and_scores_equal_new_ones(history: ClusterHistory) -> None:
    check_cached_matches_fresh(default, history)
