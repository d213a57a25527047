"""Updates are classified into events as Kubernetes names them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from koord.scheduler.framework.cluster_event import (
    ADD,
    DELETE,
    UPDATE,
    ClusterEvent,
    ObjectEvent,
    may_open_gate,
    node_update_events,
    pod_update_events,
)
from tests.scheduler.queue.fake_plugins import node, pod

OLD: dict[str, Any] = {"cpu": "200m", "labels": {"app": "a"}, "gates": ("g1", "g2"), "tolerations": ("t",)}


@pytest.mark.parametrize(
    ("change", "parts", "matters"),
    [
        pytest.param({}, [""], False, id="only-its-status"),
        pytest.param({"nominated": "n1"}, [""], False, id="nomination"),
        pytest.param({"labels": {"app": "b"}}, ["labels"], True, id="labels"),
        pytest.param({"annotations": {"a": "b"}}, [""], True, id="annotations"),
        pytest.param({"cpu": "100m"}, ["scale-down"], True, id="smaller-request"),
        pytest.param({"cpu": "300m"}, [""], True, id="larger-request"),
        pytest.param({"gates": ("g1",)}, [""], True, id="one-gate-of-two"),
        pytest.param({"gates": ()}, ["gates"], True, id="last-gate"),
        pytest.param({"tolerations": ("t", "u")}, ["tolerations"], True, id="toleration"),
        pytest.param({"claims": ("c",)}, ["claims"], True, id="claim-made"),
        pytest.param({"deleting": True}, [""], True, id="deletion-begun"),
        pytest.param({"labels": {}, "gates": ()}, ["labels", "gates"], True, id="several"),
    ],
)
def test_pod(change: dict[str, Any], parts: list[str], matters: bool) -> None:
    old, new = pod("p", **OLD), pod("p", **{**OLD, **change})
    assert pod_update_events(old, new) == tuple(ClusterEvent("Pod", UPDATE, part) for part in parts)
    assert may_open_gate(old, new) is matters


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        pytest.param({}, {"heartbeat": datetime(2026, 1, 1, tzinfo=UTC)}, [], id="heartbeat"),
        pytest.param({}, {"cpu": "2"}, ["allocatable"], id="allocatable"),
        pytest.param({"cpu": "1"}, {"cpu": "1000m"}, [], id="same-amount-in-other-words"),
        pytest.param({}, {"labels": {"zone": "a"}}, ["labels"], id="labels"),
        pytest.param({}, {"taints": ("t",)}, ["taints"], id="taints"),
        pytest.param({}, {"unschedulable": True}, [], id="cordoned"),
        pytest.param({"unschedulable": True}, {}, ["unschedulable"], id="uncordoned"),
        pytest.param({}, {"ready": "False"}, ["conditions"], id="condition"),
        pytest.param({}, {"annotations": {"a": "b"}}, ["annotations"], id="annotations"),
    ],
)
def test_node(old: dict[str, Any], new: dict[str, Any], parts: list[str]) -> None:
    assert node_update_events(node(**old), node(**new)) == tuple(ClusterEvent("Node", UPDATE, part) for part in parts)


PLACED, WAITING = pod("p", node="n1"), pod("p")


@pytest.mark.parametrize(
    ("happened", "label"),
    [
        pytest.param(ObjectEvent(ClusterEvent("Pod", ADD), None, PLACED), "AssignedPodAdd", id="assigned-add"),
        pytest.param(ObjectEvent(ClusterEvent("Pod", DELETE), PLACED), "AssignedPodDelete", id="assigned-delete"),
        pytest.param(
            ObjectEvent(ClusterEvent("Pod", UPDATE, "labels"), PLACED, PLACED),
            "AssignedPodUpdatePodLabel",
            id="assigned-update",
        ),
        pytest.param(
            ObjectEvent(ClusterEvent("Pod", UPDATE), WAITING, WAITING), "UnschedulablePodUpdate", id="waiting-update"
        ),
        pytest.param(
            ObjectEvent(ClusterEvent("Pod", UPDATE, "gates"), WAITING, WAITING),
            "UnschedulablePodUpdatePodSchedulingGatesEliminated",
            id="ungated",
        ),
        pytest.param(ObjectEvent(ClusterEvent("Node", ADD), None, node()), "NodeAdd", id="node-add"),
        pytest.param(ObjectEvent(ClusterEvent("Node", UPDATE, "taints")), "NodeUpdateNodeTaint", id="node-taint"),
        pytest.param(
            ObjectEvent(ClusterEvent("Node", UPDATE, "unschedulable")), "NodeUpdateNodeTaint", id="node-uncordoned"
        ),
        pytest.param(ObjectEvent(ClusterEvent("CSINode", ADD)), "storage.k8s.io/CSINodeAdd", id="grouped-kind"),
        pytest.param(ObjectEvent(ClusterEvent("Reservation", DELETE)), "ReservationDelete", id="other-kind"),
    ],
)
def test_labels_are_those_of_kubernetes(happened: ObjectEvent, label: str) -> None:
    assert happened.metric_label == label
