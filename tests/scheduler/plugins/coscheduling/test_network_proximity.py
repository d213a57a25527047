"""The proximity ranks in columns equal those of the tree that defines them, and the tree is cached while it
is valid.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.custom_kinds import CLUSTER_NETWORK_TOPOLOGIES
from koord.api.koordinator.protocol import A_NETWORK_TOPOLOGY_SELECTOR
from koord.api.koordinator.scheduling import ClusterNetworkTopology
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.plugins.coscheduling.network_planner import NetworkMap, proximity_ranks
from koord.scheduler.plugins.coscheduling.network_topology import NetworkTreeNode, aggregate_offers
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.preemption.cluster_fixture import BudgetHandle

LAYERS = [
    {"topologyLayer": "SpineLayer", "parentTopologyLayer": "ClusterTopologyLayer", "labelKey": ["spine"]},
    {"topologyLayer": "BlockLayer", "parentTopologyLayer": "SpineLayer", "labelKey": ["block"]},
    {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "BlockLayer"},
]
# Spine, block, pods of the kind, whether it fits.
placed = st.lists(
    st.tuples(st.sampled_from(["s1", "s2", ""]), st.sampled_from("ab"), st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=10,
)


def world(nodes: list[tuple[str, str, int, bool]]) -> tuple[ClusterState, NetworkMap]:
    state = ClusterState()
    handle = BudgetHandle(state)
    body = {"metadata": {"name": "default"}, "spec": {"networkTopologySpec": LAYERS}}
    handle.lister(CLUSTER_NETWORK_TOPOLOGIES).put(convert(body, ClusterNetworkTopology))
    for i, (spine, block, count, _) in enumerate(nodes):
        labels = {"spine": spine, "block": f"{spine}-{block}"} if spine else {}
        state.set_node(make_node(f"n{i}", labels=labels))
        for k in range(count):
            notes = {A_NETWORK_TOPOLOGY_SELECTOR: "mine"}
            state.set_pod(make_pod(f"p{i}-{k}", node=f"n{i}", annotations=notes))
    return state, NetworkMap(handle)


@settings(deadline=None)
@given(placed)
def test_the_line_is_the_trees(nodes: list[tuple[str, str, int, bool]]) -> None:
    state, network = world(nodes)
    tree = network.tree()
    assert isinstance(tree, NetworkTreeNode)
    fits = {f"n{i}": fit for i, (*_, fit) in enumerate(nodes)}
    there = {f"n{i}": count for i, (_, _, count, _) in enumerate(nodes)}
    feasible = np.asarray([state.table.index[name].row for name, fit in fits.items() if fit], np.intp)
    found = proximity_ranks(network, state.table, "mine", feasible)
    leaves = list(tree.leaves())
    for leaf in leaves:
        leaf.offer_slots, leaf.existing_pods = int(fits[leaf.name]), there[leaf.name]
    aggregate_offers(tree, {})

    def rank(leaf: NetworkTreeNode) -> Any:
        return [-p.existing_pods for p in leaf.ancestors()], [p.offer_slots for p in leaf.ancestors()], leaf.name

    line = sorted((leaf for leaf in leaves if leaf.offer_slots), key=rank)
    places = {leaf.name: place for place, leaf in enumerate(line)}
    for name, fit in fits.items():
        if fit:
            assert found[state.table.index[name].row] == places.get(name, len(line))


def test_the_tree_is_kept_until_a_node_says_that_it_is_elsewhere() -> None:
    state, network = world([("s1", "a", 0, True), ("s2", "b", 0, True)])
    tree = network.tree()
    state.set_node(make_node("n0", cpu="1", labels={"spine": "s1", "block": "s1-a"}))
    state.set_pod(make_pod("p", node="n0"))
    assert network.tree() is tree
    state.set_node(make_node("n0", labels={"spine": "s2", "block": "s2-b"}))
    moved = network.tree()
    assert moved is not tree
    assert isinstance(moved, NetworkTreeNode)
    assert [place.name for place in moved.at_layer("SpineLayer")] == ["s2"]
    state.drop_node("n1")
    last = network.tree()
    assert isinstance(last, NetworkTreeNode)
    assert [leaf.name for leaf in last.leaves()] == ["n0"]
