"""Gangs are placed close together in the network tree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations.gang_codecs import NetworkTopologySpec
from koord.api.koordinator.scheduling import ClusterNetworkTopologySpec
from koord.api.model import convert
from koord.scheduler.plugins.coscheduling.network_topology import (
    InvalidNetworkTopology,
    NetworkTreeNode,
    aggregate_offers,
    build_network_tree,
    describe_shortage,
    distribute_pods,
    plan_placement,
    pod_count_multiples,
    topology_details,
)

LAYERS: dict[str, Any] = {
    "networkTopologySpec": [
        {"topologyLayer": "SpineLayer", "parentTopologyLayer": "ClusterTopologyLayer", "labelKey": ["spine"]},
        {"topologyLayer": "BlockLayer", "parentTopologyLayer": "SpineLayer", "labelKey": ["block", "old-block"]},
        {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "BlockLayer"},
    ]
}


def tree(**offers: int) -> NetworkTreeNode:
    """Node names say where they are: s1_b1_n1."""
    spec = convert(LAYERS, ClusterNetworkTopologySpec)
    nodes = [(name, dict(zip(("spine", "block"), name.split("_"), strict=False))) for name in offers]
    root = build_network_tree(spec, nodes)
    assert isinstance(root, NetworkTreeNode)
    for leaf in root.leaves():
        leaf.offer_slots = offers[leaf.name]
    return root


def wish(*rules: tuple[str, str, int]) -> NetworkTopologySpec:
    listed = [{"layer": layer, "strategy": how, "podCountMultiple": n} for layer, how, n in rules]
    return convert({"gatherStrategy": listed}, NetworkTopologySpec)


TWO_BLOCKS = {"s1_b1_n1": 5, "s1_b1_n2": 7, "s1_b2_n3": 6, "s1_b2_n4": 4}


@pytest.mark.parametrize(
    ("rules", "desired", "shares"),
    [
        pytest.param((), 15, {"n2": 7, "n1": 5, "n3": 3, "n4": 0}, id="no-multiples"),
        pytest.param((("NodeTopologyLayer", "", 4),), 20, {"n1": 4, "n2": 4, "n3": 4, "n4": 4}, id="fours-per-node"),
        pytest.param((("BlockLayer", "", 8),), 16, {"n2": 7, "n1": 1, "n3": 6, "n4": 2}, id="eights-per-block"),
        pytest.param(
            (("NodeTopologyLayer", "", 2), ("BlockLayer", "", 8)),
            16,
            {"n2": 6, "n1": 2, "n3": 6, "n4": 2},
            id="twos-per-node-and-eights-per-block",
        ),
    ],
)
def test_shares(rules: tuple[tuple[str, str, int], ...], desired: int, shares: dict[str, int]) -> None:
    root = tree(**TWO_BLOCKS)
    multiples = pod_count_multiples(wish(*rules))
    aggregate_offers(root, multiples)
    found = {name.split("_")[2]: count for name, count in distribute_pods(root, desired, multiples)}
    assert found == shares


def test_offers_are_rounded_down_from_the_bottom_up() -> None:
    root = tree(**TWO_BLOCKS)
    aggregate_offers(root, {"NodeTopologyLayer": 2, "BlockLayer": 8})
    offers = {place.name: place.offer_slots for place in root.walk()}
    assert offers == {"": 16, "s1": 16, "b1": 8, "b2": 8, "s1_b1_n1": 4, "s1_b1_n2": 6, "s1_b2_n3": 6, "s1_b2_n4": 4}


@pytest.mark.parametrize(
    ("rules", "desired", "nodes"),
    [
        pytest.param((("SpineLayer", "PreferGather", 0),), 3, {"s1_b1_n1"}, id="one-node-is-enough"),
        pytest.param((("SpineLayer", "PreferGather", 0),), 5, {"s2_b1_n1", "s2_b1_n2"}, id="the-smallest-domain"),
        pytest.param((("BlockLayer", "MustGather", 0),), 6, {"s2_b1_n1", "s2_b1_n2"}, id="one-block-takes-them"),
        pytest.param((("BlockLayer", "MustGather", 0),), 7, None, id="no-block-takes-them"),
        pytest.param((("SpineLayer", "MustGather", 0),), 6, {"s2_b1_n1", "s2_b1_n2"}, id="a-block-within-the-spine"),
        pytest.param((("RackLayer", "MustGather", 0),), 1, None, id="no-such-layer"),
    ],
)
def test_where_a_gang_goes(rules: tuple[tuple[str, str, int], ...], desired: int, nodes: set[str] | None) -> None:
    root = tree(s1_b1_n1=3, s1_b2_n1=2, s2_b1_n1=3, s2_b1_n2=3)
    found = plan_placement(root, wish(*rules), desired)
    assert (None if found is None else {name for name, _ in found}) == nodes


def test_more_of_the_same_kind_attracts_and_names_decide_at_last() -> None:
    root = tree(s1_b1_n1=3, s1_b1_n2=3, s1_b2_n1=3)
    assert plan_placement(root, wish(), 2) == [("s1_b2_n1", 2)], "the tighter block"
    next(leaf for leaf in root.leaves() if leaf.name == "s1_b1_n2").existing_pods = 1
    assert plan_placement(root, wish(), 2) == [("s1_b1_n2", 2)]


def test_words_for_a_gang_that_fits_nowhere() -> None:
    rules = wish(("SpineLayer", "MustGather", 0), ("BlockLayer", "PreferGather", 2))
    root = tree(s1_b1_n1=3, s2_b1_n1=3)
    assert plan_placement(root, rules, 4) is None
    assert describe_shortage(root, rules, 4, "0/8 nodes are available: 8 Insufficient cpu.") == (
        "no candidate topology nodes can accommodate job, desiredOfferSlot: 4, "
        "topology topologyNode SpineLayer/s1: 2;topology topologyNode SpineLayer/s2: 2, "
        "0/8 nodes are available: 8 Insufficient cpu.; podCountMultiple constraints: BlockLayer=2"
    )


def test_only_the_nearest_domain_may_be_unnamed() -> None:
    spec = convert(LAYERS, ClusterNetworkTopologySpec)
    nodes = [("a", {"spine": "s", "old-block": "b"}), ("b", {"spine": "s"}), ("c", {"block": "b"})]
    root = build_network_tree(spec, nodes)
    assert isinstance(root, NetworkTreeNode)
    assert {tuple(place.name for place in leaf.ancestors()) for leaf in root.leaves()} == {
        ("a", "b", "s", ""),
        ("b", "b", "s", ""),
    }
    details = topology_details(root)
    assert [(d.topology_info.topology_layer, d.topology_info.topology_name, d.node_num) for d in details] == [
        ("ClusterTopologyLayer", "", 2),
        ("SpineLayer", "s", 2),
        ("BlockLayer", "b", 2),
    ]
    assert details[1].child_topology_names == ("b",)
    assert details[2].child_topology_names == ()


def test_a_layer_that_is_not_declared() -> None:
    spec = convert({"networkTopologySpec": LAYERS["networkTopologySpec"][1:]}, ClusterNetworkTopologySpec)
    assert build_network_tree(spec, []) == InvalidNetworkTopology('topology layer "SpineLayer" not found in spec')


@given(st.dictionaries(st.from_regex(r"s[12]_b[12]_n[1-3]", fullmatch=True), st.integers(0, 5)), st.integers(1, 12))
def test_a_plan_never_gives_a_node_more_than_it_offers(offers: dict[str, int], desired: int) -> None:
    found = plan_placement(tree(**offers), wish(("BlockLayer", "PreferGather", 0)), desired)
    if found is None:
        assert sum(offers.values()) < desired
    else:
        assert sum(count for _, count in found) == desired
        assert all(count <= offers[name] for name, count in found)
