"""The nearest miss is a node that could take the pod if pods left it; where no node could, it says so."""

from __future__ import annotations

from typing import Any

import pytest

from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.explain.what_if import ApiSnapshot, SnapshotHandle
from koord.scheduler.framework.decision import NearestNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.builders import make_node, make_pod, make_state, node_term, required_nodes
from tests.scheduler.configuration.fake_plugins import assembled


def nearest(nodes: list[Any], pods: list[Any], **asked: Any) -> NearestNode:
    state = make_state(nodes, pods)
    made = assembled({"profiles": [{}]}, REGISTRY)
    assert isinstance(made, CompletedConfig), made
    (profile,) = made.make_profiles(SnapshotHandle(ApiSnapshot(()), state, 0.0))
    decision = SchedulingEngine(profile, state).decide(state.pod_info(make_pod("p", **asked))).decision
    assert isinstance(decision, Unschedulable)
    assert decision.nearest is not None
    return decision.nearest


FULL = make_pod("full", node="a-full", cpu="4", ports=[("TCP", "", 80)])


@pytest.mark.parametrize(
    ("other", "asked"),
    [
        pytest.param({}, {"nodeSelector": {"disk": "ssd"}}, id="node-selector"),
        pytest.param({}, {"affinity": required_nodes(node_term(("disk", "In", ["ssd"])))}, id="affinity"),
        pytest.param(
            {}, {"affinity": required_nodes(node_term(fields=[("metadata.name", "In", ["a-full"])]))}, id="by-name"
        ),
        pytest.param({"taints": ["gpu=yes:NoSchedule"]}, {}, id="taint"),
        pytest.param({"unschedulable": True}, {}, id="cordoned"),
    ],
)
def test_a_node_that_is_ruled_out_is_no_near_miss(other: dict[str, Any], asked: dict[str, Any]) -> None:
    """Two filters are against the full node, and one against the other."""
    nodes = [make_node("a-full", cpu="4", labels={"disk": "ssd"}), make_node("b-ruled-out", cpu="4", **other)]
    found = nearest(nodes, [FULL], cpu="2", ports=[("TCP", "", 80)], **asked)
    assert (found.node, found.ruled_out_by, found.lacking) == ("a-full", (), {"cpu": 2000})


def test_where_all_are_ruled_out_it_is_said() -> None:
    found = nearest([make_node("n0"), make_node("n1", cpu="1")], [], cpu="2", nodeSelector={"disk": "ssd"})
    assert (found.node, found.ruled_out_by) == ("n0", ("node(s) didn't match Pod's node affinity/selector",))


def test_a_node_that_is_too_small_is_near() -> None:
    found = nearest(
        [make_node("n0"), make_node("n1", cpu="1", labels={"disk": "ssd"})], [], cpu="2", nodeSelector={"disk": "ssd"}
    )
    assert (found.node, found.ruled_out_by, found.lacking) == ("n1", (), {"cpu": 1000})
