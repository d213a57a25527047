"""InterPodAffinity: both forms agree with each other and with a brute-force reading of the documentation, and what is
kept through any history equals what is worked out anew."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.scheduler.in_tree import InterPodAffinityArgs
from koord.scheduler.framework.engine import Engine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.inter_pod_affinity import InterPodAffinity
from koord.scheduler.state.cluster import ClusterState
from tests.scheduler.equality import History, check_forms, check_kept, histories, profile_of, view_of
from tests.scheduler.plugins.affinity_clusters import (
    NAMESPACES,
    Scene,
    labelled_nodes,
    namespace_index,
    scenes,
    social_pods,
)
from tests.scheduler.plugins.affinity_oracle import AFFINITY, World, affinity_refusal, affinity_scores

rows = st.lists(st.integers(0, 50), max_size=8)


def made(state: ClusterState, hard_weight: int = 1, ignore: bool = False) -> InterPodAffinity:
    args = InterPodAffinityArgs(hard_pod_affinity_weight=hard_weight, ignore_preferred_terms_of_existing_pods=ignore)
    return InterPodAffinity(args, state, namespace_index())


def default(state: ClusterState) -> Sequence[Plugin]:
    return [made(state)]


@settings(max_examples=60, deadline=None)
@given(scene=scenes(relates=True), rows=rows)
def test_forms_agree(scene: Scene, rows: list[int]) -> None:
    state = scene.state()
    plugin = made(state)
    for pod in scene.waiting():
        check_forms(plugin, state, state.info(pod), rows)


@settings(max_examples=150, deadline=None)
@given(scene=scenes(relates=True), hard_weight=st.sampled_from((0, 1, 7)), ignore=st.booleans())
def test_answers_are_those_of_the_brute_force_reading(scene: Scene, hard_weight: int, ignore: bool) -> None:
    state = scene.state()
    engine = Engine(profile_of([made(state, hard_weight, ignore)]), state)
    world = World(scene.nodes, scene.placed, NAMESPACES)
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
@given(history=histories(pods=lambda *a, **k: social_pods(*a, relates=True, **k), nodes=labelled_nodes, most_steps=10))
def test_kept_verdicts_and_scores_equal_new_ones(history: History) -> None:
    check_kept(default, history)
