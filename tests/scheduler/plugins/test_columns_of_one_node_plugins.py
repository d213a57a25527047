"""The columnar and per-node forms of plugins that read one node agree, and cached results equal new ones."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.scheduler.in_tree_args import (
    NodeAffinityArgs,
    NodeResourcesBalancedAllocationArgs,
    NodeResourcesFitArgs,
    ScoringStrategy,
)
from koord.api.kubernetes.affinity import NodeAffinity as NodeAffinitySpec
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.node_affinity import NodeAffinityPlugin
from koord.scheduler.plugins.node_resources.balanced_allocation import BalancedAllocation
from koord.scheduler.plugins.node_resources.fit import NodeResourcesFit
from tests.scheduler.builders import GPU, clusters, make_pod, node_affinities, pod_objects
from tests.scheduler.plugin_equivalence import (
    ClusterHistory,
    check_cached_matches_fresh,
    check_columns_match_definition,
    histories,
)
from tests.scheduler.plugins.kube_scheduler_cases import WEIGHTS
from tests.scheduler.plugins.one_node_plugins import default_plugins, made

RESOURCES = [{"name": n, "weight": w} for n, w in (("cpu", 3), ("memory", 1), (GPU, 5), ("ephemeral-storage", 2))]


def fit(kind: str, **words: object) -> NodeResourcesFitArgs:
    strategy = convert({"type": kind, "resources": RESOURCES, **words}, ScoringStrategy)
    return NodeResourcesFitArgs(
        scoring_strategy=strategy, ignored_resources=("example.com/nic",), ignored_resource_groups=("example.org",)
    )


SHAPE = {"shape": [{"utilization": u, "score": s} for u, s in ((10, 0), (40, 10), (70, 3), (90, 7))]}
CONFIGURED: tuple[Plugin, ...] = (
    NodeResourcesFit(fit("LeastAllocated")),
    NodeResourcesFit(fit("MostAllocated")),
    NodeResourcesFit(fit("RequestedToCapacityRatio", requestedToCapacityRatio=SHAPE)),
    BalancedAllocation(convert({"resources": RESOURCES}, NodeResourcesBalancedAllocationArgs)),
)
rows = st.lists(st.integers(0, 50), max_size=12)


@settings(max_examples=120, deadline=None)
@given(state=clusters(), pod=pod_objects("new"), rows=rows)
def test_forms_agree(state: ClusterState, pod: Pod, rows: list[int]) -> None:
    for plugin in (*default_plugins(state), *CONFIGURED):
        check_columns_match_definition(plugin, state, state.pod_info(pod), rows)


@settings(max_examples=40, deadline=None)
@given(state=clusters(), pod=pod_objects("new"), rows=rows, added=node_affinities())
def test_forms_agree_with_added_affinity(state: ClusterState, pod: Pod, rows: list[int], added: object) -> None:
    try:
        plugin = NodeAffinityPlugin(NodeAffinityArgs(added_affinity=convert(added, NodeAffinitySpec)))
    except ValueError:  # drawn terms include unreadable ones, which configuration may not have
        return
    check_columns_match_definition(plugin, state, state.pod_info(pod), rows)


@settings(max_examples=20, deadline=None)
@given(state=clusters(), count=st.integers(17, 24), rows=rows)
def test_a_pod_may_ask_for_more_resources_than_codes_have_bits(
    state: ClusterState, count: int, rows: list[int]
) -> None:
    asked = {f"example.com/r{i:02}": "1" for i in range(count)}
    pod = state.pod_info(make_pod("wide", more=asked))
    check_columns_match_definition(made("NodeResourcesFit", state), state, pod, rows)


@settings(max_examples=60, deadline=None)
@given(histories())
def test_kept_verdicts_and_scores_equal_new_ones(history: ClusterHistory) -> None:
    check_cached_matches_fresh(default_plugins, history, WEIGHTS)
