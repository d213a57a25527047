"""What becomes of a pod when load keeps it off every node: refused as Koordinator does, or the least loaded node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.api.config.scheduler.configuration import typed_args
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.plugins.load_aware.plugin import new_load_aware
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.builders import make_node
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.load_aware.load_cluster import LoadCluster, args, big_node, report
from tests.scheduler.plugins.one_node_plugins import made

WHY = "AllNodesAboveLoadThreshold(policy=LeastLoaded)"


def decided(world: LoadCluster, policy: str | None, **pod: Any) -> Any:
    stated = {} if policy is None else {"whenAllHot": policy}
    plugins = [
        made("NodeUnschedulable", world.state),
        new_load_aware(args(**stated), world),
        made("NodeName", world.state),
    ]
    return SchedulingEngine(profile_of(plugins), world.state).decide(world.info(**pod)).decision


def hot_world(*more: Any) -> LoadCluster:
    nodes = [big_node(f"n{i}") for i in range(3)]
    return LoadCluster(*nodes, report("n0", cpu="80"), report("n1", cpu="70"), report("n2", cpu="90"), *more)


@pytest.mark.parametrize("policy", [None, "Refuse"])
def test_the_default_refuses(policy: str | None) -> None:
    found = decided(hot_world(), policy)
    assert isinstance(found, Unschedulable)
    assert found.message() == "0/3 nodes are available: 3 node(s) cpu usage exceed threshold."


def test_the_least_loaded_node_is_taken_and_says_why() -> None:
    found = decided(hot_world(), "LeastLoaded")
    assert isinstance(found, ChosenNode)
    assert (found.node, found.fallback_reason) == ("n1", WHY)


def test_a_cool_node_is_better() -> None:
    found = decided(hot_world(report("n2", cpu="50")), "LeastLoaded")
    assert isinstance(found, ChosenNode)
    assert (found.node, found.fallback_reason) == ("n2", "")


def test_what_others_object_to_is_not_taken() -> None:
    cordoned = make_node("n1", cpu="96", memory="512Gi", unschedulable=True)
    found = decided(hot_world(cordoned), "LeastLoaded")
    assert isinstance(found, ChosenNode)
    assert found.node == "n0"


def test_objections_of_those_who_come_after_count_too() -> None:
    world = hot_world()
    plugins = [new_load_aware(args(whenAllHot="LeastLoaded"), world), made("NodeAffinity", world.state)]
    pod = world.info(nodeSelector={"kubernetes.io/hostname": "n2"})
    chosen = SchedulingEngine(profile_of(plugins), world.state).decide(pod).decision
    assert isinstance(chosen, ChosenNode)
    assert chosen.node == "n2"


def test_stale_is_not_hot() -> None:
    world = LoadCluster(big_node("n0"), big_node("n1"), report("n0", cpu="10", age=999), report("n1", cpu="90"))
    found = decided(world, "LeastLoaded")
    assert isinstance(found, ChosenNode)
    assert found.node == "n1"
    world.put(report("n1", cpu="90", age=999))
    refused = decided(world, "LeastLoaded")
    assert isinstance(refused, Unschedulable)
    assert refused.message() == "0/2 nodes are available: 2 node(s) nodeMetric expired."


def test_pods_taken_this_way_spread_by_their_estimates() -> None:
    world = hot_world()
    engine = SchedulingEngine(profile_of([new_load_aware(args(whenAllHot="LeastLoaded"), world)]), world.state)
    nodes = []
    for i in range(6):
        pod = world.info(name=f"p{i}", cpu="10")
        found = engine.decide(pod).decision
        assert isinstance(found, ChosenNode)
        world.state.assume(pod, found.node)
        nodes.append(found.node)
    assert nodes == ["n1", "n1", "n0", "n1", "n0", "n2"]


def test_the_setting_is_checked_and_never_filled_in() -> None:
    assert REGISTRY["LoadAwareScheduling"] is new_load_aware
    wrong = typed_args("LoadAwareScheduling", {"whenAllHot": "Panic"})
    assert isinstance(wrong, list)
    assert [error.field for error in wrong] == ["whenAllHot"]
    assert b"whenAllHot" not in msgspec.json.encode(args())
