"""Plugins that look across nodes together with those that look at one: kept verdicts and sums equal new ones, also
while nodes fill up, so that what one plugin keeps is not disturbed by what another one changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.scheduler.configuration import SCHEDULER_PLUGIN_CATALOG, typed_args
from koord.api.config.scheduler.in_tree_args import InterPodAffinityArgs, PodTopologySpreadArgs
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from koord.scheduler.plugins.pod_topology_spread.constraint import SERVICE, OwnerIndex
from koord.scheduler.plugins.pod_topology_spread.plugin import PodTopologySpread
from koord.scheduler.plugins.registry import REGISTRY
from koord.values.selector import Selector
from tests.scheduler.fake_handles import StateOnlyHandle
from tests.scheduler.plugin_equivalence import ClusterHistory, check_cached_matches_fresh, histories
from tests.scheduler.plugins.affinity_clusters import affinity_pods, labelled_nodes, namespace_index

OTHERS = ("NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodeResourcesFit", "NodeResourcesBalancedAllocation")
WEIGHTS = {"TaintToleration": 3, "NodeAffinity": 2, "PodTopologySpread": 2, "InterPodAffinity": 2}


def plugins(state: ClusterState) -> Sequence[Plugin]:
    handle: Handle = StateOnlyHandle(state)
    owners = OwnerIndex()
    owners.set(SERVICE, "default", "web", Selector.from_labels({"app": "web"}))
    return [
        *(
            REGISTRY[name](typed_args(name, None) if name in SCHEDULER_PLUGIN_CATALOG else None, handle)
            for name in OTHERS
        ),
        PodTopologySpread(PodTopologySpreadArgs(defaulting_type="System"), state, owners),
        InterPodAffinity(InterPodAffinityArgs(hard_pod_affinity_weight=1), state, namespace_index()),
    ]


def busy_pods(*args: Any, **words: Any) -> st.SearchStrategy[Pod]:
    requests = st.sampled_from(("", "3", "5"))  # two or three of them fill a node
    return requests.flatmap(lambda cpu: affinity_pods(*args, spreads=True, relates=True, cpu=cpu, **words))


@settings(max_examples=100, deadline=None)
@given(history=histories(pods=busy_pods, nodes=labelled_nodes, most_steps=12))
def test_kept_verdicts_and_scores_equal_new_ones(history: ClusterHistory) -> None:
    check_cached_matches_fresh(plugins, history, WEIGHTS)
