"""StatefulSet, DaemonSet and ControllerRevision plans as tables and properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod, PodSpec
from koord.api.kubernetes.workload import ControllerRevision, StatefulSet
from koord.api.model import convert
from koord.embedded.workloads import controller_revision, daemonset_controller, statefulset_controller
from koord.embedded.workloads.statefulset_controller import StatefulSetView
from koord.policy import node_match
from tests.embedded.workloads.builders import NOW, node, pod, taint

# -- StatefulSets, DaemonSets, revisions


def stateful(replicas: int, **spec: Any) -> StatefulSet:
    return convert({"metadata": {"name": "s", "uid": "s"}, "spec": {"replicas": replicas, **spec}}, StatefulSet)


def member(ordinal: int, revision: str = "new", **fields: Any) -> Pod:
    labels = {controller_revision.REVISION_HASH_LABEL: revision}
    return pod(f"s-{ordinal}", metadata={"labels": labels, **fields.pop("metadata", {})}, **fields)


LEAVING = {"deletionTimestamp": NOW.isoformat()}


@pytest.mark.parametrize(
    ("seen", "pods", "create", "delete"),
    [
        pytest.param(stateful(3), [], [0], [], id="the-first-comes-first"),
        pytest.param(stateful(3), [member(0, ready=False)], [], [], id="nobody-before-the-first-is-ready"),
        pytest.param(stateful(3), [member(0)], [1], [], id="then-the-second"),
        pytest.param(stateful(3), [member(0), member(2)], [1], [], id="holes-are-filled"),
        pytest.param(stateful(1), [member(0), member(1), member(2)], [], [2], id="the-last-goes-first"),
        pytest.param(stateful(1), [member(0), member(1), member(2, metadata=LEAVING)], [], [], id="one-at-a-time"),
        pytest.param(stateful(2), [member(0), member(1, phase="Failed")], [], [1], id="failed-ones-are-replaced"),
        pytest.param(stateful(2), [member(0, "old"), member(1, "old")], [], [1], id="updates-from-the-top"),
        pytest.param(stateful(2), [member(0, "old"), member(1, ready=False)], [], [], id="updates-wait-for-health"),
        pytest.param(stateful(3, podManagementPolicy="Parallel"), [], [0, 1, 2], [], id="parallel-makes-all"),
        pytest.param(
            stateful(1, podManagementPolicy="Parallel"),
            [member(0), member(1), member(2)],
            [],
            [2, 1],
            id="parallel-ends-all",
        ),
        pytest.param(
            stateful(2, updateStrategy={"type": "OnDelete"}),
            [member(0, "old"), member(1, "old")],
            [],
            [],
            id="on-delete",
        ),
    ],
)
def test_stateful_steps(seen: StatefulSet, pods: list[Pod], create: list[int], delete: list[int]) -> None:
    plan = statefulset_controller.decide_stateful_set(
        StatefulSetView(set=seen, pods=tuple(pods), current="old", update="new", now=NOW)
    )
    assert [new.ordinal for new in plan.create] == create
    assert [statefulset_controller.ordinal_of(seen, one.metadata.name) for one in plan.delete] == delete


@given(st.lists(st.sampled_from(["absent", "old", "new", "sick", "leaving"]), max_size=5), st.integers(0, 5))
def test_ordered_sets_move_one_pod_at_a_time(states: list[str], replicas: int) -> None:
    looks: dict[str, dict[str, Any]] = {
        "old": {"revision": "old"},
        "new": {},
        "sick": {"ready": False},
        "leaving": {"metadata": LEAVING},
    }
    pods = tuple(member(n, **looks[state]) for n, state in enumerate(states) if state != "absent")
    view = StatefulSetView(set=stateful(replicas), pods=pods, current="old", update="new", now=NOW)
    plan = statefulset_controller.decide_stateful_set(view)
    assert len(plan.create) + len(plan.delete) <= 1
    if {"leaving", "sick"} & set(states[:replicas]):
        assert not plan.delete  # while one is not well, none that is may go


@pytest.mark.parametrize(
    ("spec", "where", "expected"),
    [
        pytest.param({}, node(), (True, True), id="anywhere"),
        pytest.param({"nodeSelector": {"d": "s"}}, node(), (False, False), id="wrong-labels"),
        pytest.param({"nodeName": "other"}, node(), (False, False), id="another-node-by-name"),
        pytest.param({}, node(taints=[taint("k", "NoSchedule")]), (False, True), id="new-ones-stay-out"),
        pytest.param({}, node(taints=[taint("k", "NoExecute")]), (False, False), id="old-ones-leave-too"),
        pytest.param({}, node(taints=[taint("k", "PreferNoSchedule")]), (True, True), id="a-preference-is-none"),
        pytest.param(
            {},
            node(taints=[taint("node.kubernetes.io/unreachable", "NoExecute")]),
            (True, True),
            id="lost-nodes-keep-daemons",
        ),
        pytest.param(
            {},
            node(taints=[taint("node.kubernetes.io/network-unavailable", "NoSchedule")]),
            (False, True),
            id="no-network-for-pods-of-the-pod-network",
        ),
        pytest.param(
            {"hostNetwork": True},
            node(taints=[taint("node.kubernetes.io/network-unavailable", "NoSchedule")]),
            (True, True),
            id="host-network-needs-none",
        ),
    ],
)
def test_where_daemons_run(spec: dict[str, Any], where: Node, expected: tuple[bool, bool]) -> None:
    assert daemonset_controller.daemon_fits_node(convert(spec, PodSpec), where) == expected


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        pytest.param({"matchExpressions": [{"key": "z", "operator": "In", "values": ["a", "b"]}]}, True, id="in"),
        pytest.param({"matchExpressions": [{"key": "n", "operator": "Gt", "values": ["4"]}]}, True, id="greater"),
        pytest.param({"matchExpressions": [{"key": "z", "operator": "Odd"}]}, False, id="unknown-operator"),
        pytest.param(
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, True, id="by-name"
        ),
        pytest.param(
            {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}, False, id="not-by-name"
        ),
        pytest.param({}, False, id="empty-term"),
    ],
)
def test_required_affinity(term: dict[str, Any], expected: bool) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spec = convert({"affinity": {"nodeAffinity": required}}, PodSpec)
    assert node_match.matches_node_affinity(spec, node(labels={"z": "a", "n": "5"})) is expected


def test_revisions_are_found_again_and_renumbered() -> None:
    def made(name: str, number: int, image: str) -> Any:
        body = {
            "metadata": {"name": name},
            "data": controller_revision.revision_data({"spec": image}),
            "revision": number,
        }
        return convert(body, ControllerRevision)

    first, second = made("a", 1, "x"), made("b", 2, "y")
    assert controller_revision.decide_revision({"spec": "y"}, [first, second]) == controller_revision.RevisionPlan(
        known=second, number=2
    )
    assert controller_revision.decide_revision({"spec": "x"}, [first, second]) == controller_revision.RevisionPlan(
        known=first, number=3, renumber=True
    )
    assert controller_revision.decide_revision({"spec": "z"}, [first, second]) == controller_revision.RevisionPlan(
        known=None, number=3
    )
    assert controller_revision.revisions_to_prune([first, second], {"b"}, 0) == (first,)
