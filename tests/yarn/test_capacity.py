"""What NodeManagers offer, what nodes say that YARN holds, and that nothing is sent where something is not known."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.yarn import DEFAULT_CLUSTER_ID, YarnNodeId
from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.pod import ResourceRequirements
from koord.api.model import ResourceList
from koord.manager.colocation.node_patch import DesiredResources, _after_third_parties
from koord.values.quantity import Quantity
from koord.wire.hadoop_yarn import DECOMMISSIONING, RUNNING, NodeReport, ResourceMessage
from koord.yarn.capacity import (
    BatchAmounts,
    NodeManager,
    PlacedNodeManager,
    SeenNodeManager,
    SeenNodeManagers,
    YarnContainer,
    YarnNode,
    YarnNodeStatus,
    YarnPod,
    YarnPodSpec,
    YarnPodStatus,
    decide_capacity,
    decide_cluster,
    decide_held,
    held_by_yarn,
    lent_to_batch,
    place_node_managers,
    total_held,
    transform_node,
    transform_pod,
    with_yarn_allocation,
)

ORIGIN, THIRD = "node.koordinator.sh/originExtendedAllocatable", "node.koordinator.sh/thirdPartyAllocations"
CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
GI = 1 << 30
A, B = YarnNodeId("a", 8041), YarnNodeId("b", 8041)


def node(name: str = "n", annotations: dict[str, str] | None = None, **allocatable: str) -> YarnNode:
    amounts: ResourceList = {{"cpu": CPU, "memory": MEMORY}[key]: value for key, value in allocatable.items()}
    meta = ObjectMeta(name=name, annotations=annotations or {})
    return YarnNode(metadata=meta, status=YarnNodeStatus(allocatable=amounts))


def manager_pod(name: str, on: str, node_id: YarnNodeId | None, cluster: str = "c", age: int = 0) -> YarnPod:
    since = datetime(2026, 1, 1, tzinfo=UTC).replace(minute=age)
    return YarnPod(
        metadata=ObjectMeta(name=name, namespace="yarn"),
        spec=YarnPodSpec(node_name=on),
        node_manager=NodeManager(cluster=cluster, node_id=node_id, since=since),
    )


def report(offered: ResourceMessage, used: ResourceMessage | None = None, state: int = RUNNING) -> NodeReport:
    return NodeReport(capability=offered, used=used, state=state)


# What is lent ----------------------------------------------------------------------------------------------------


def test_the_annotation_wins_over_allocatable() -> None:
    text = f'{{"resources":{{"{CPU}":"5000","{MEMORY}":"4Gi"}}}}'
    assert lent_to_batch(node(annotations={ORIGIN: text}, cpu="1000", memory="1Gi")) == BatchAmounts(5000, 4 * GI)
    assert lent_to_batch(node(cpu="1000", memory="1Gi")) == BatchAmounts(1000, GI)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param(node(), f"allocatable has no {CPU} and no {MEMORY}", id="no-colocation"),
        pytest.param(node(cpu="1"), f"allocatable has no {MEMORY}", id="half"),
        pytest.param(
            node(annotations={ORIGIN: f'{{"resources":{{"{CPU}":"1"}}}}'}, cpu="1", memory="1"),
            f"{ORIGIN} has no {MEMORY}",
            id="half-annotation",
        ),
        pytest.param(node(annotations={ORIGIN: "{"}, cpu="1", memory="1"), ORIGIN, id="no-json"),
        pytest.param(node(annotations={ORIGIN: f'{{"resources":{{"{CPU}":"x"}}}}'}), ORIGIN, id="no-quantity"),
    ],
)
def test_what_is_not_known_is_not_zero(found: YarnNode, reason: str) -> None:
    lent = lent_to_batch(found)
    assert isinstance(lent, str)
    assert reason in lent
    one = PlacedNodeManager("n", "c", A)
    plan = decide_cluster([one], {"n": found}, {}, {A: report(ResourceMessage(1024, 1))})
    assert plan.updates == ()
    assert [problem.reason for problem in plan.problems] == ["unknown-batch"]


@pytest.mark.parametrize(
    ("lent", "requested", "memory_mib", "vcores"),
    [
        pytest.param((1000, 1024), (0, 0), 1, 1, id="rounded-up"),
        pytest.param((60646, 245976973438), (0, 0), 234582, 61, id="binary-megabytes"),
        pytest.param((8000, 16 * GI), (3000, 4 * GI), 12288, 5, id="less-what-pods-requested"),
        pytest.param((1000, GI), (4000, 8 * GI), 0, 0, id="never-below-zero"),
        pytest.param((0, 0), (0, 0), 0, 0, id="nothing-is-lent"),
    ],
)
def test_capacity(lent: tuple[int, int], requested: tuple[int, int], memory_mib: int, vcores: int) -> None:
    assert decide_capacity(BatchAmounts(*lent), BatchAmounts(*requested)) == ResourceMessage(memory_mib, vcores)


AMOUNTS = st.builds(BatchAmounts, st.integers(0, 1 << 20), st.integers(0, 1 << 42))


@given(AMOUNTS, AMOUNTS, AMOUNTS)
def test_capacity_follows_what_is_lent_and_never_exceeds_it_by_a_unit(
    lent: BatchAmounts, requested: BatchAmounts, more: BatchAmounts
) -> None:
    offered = decide_capacity(lent, requested)
    assert offered.vcores * 1000 < max(lent.cpu_milli - requested.cpu_milli, 0) + 1000
    assert offered.memory_mib << 20 < max(lent.memory_bytes - requested.memory_bytes, 0) + (1 << 20)
    larger = decide_capacity(lent + more, requested)
    assert larger.vcores >= offered.vcores
    assert larger.memory_mib >= offered.memory_mib


# Rounds ----------------------------------------------------------------------------------------------------------


def test_only_differences_of_running_node_managers_are_sent() -> None:
    placed = [PlacedNodeManager(name, "c", YarnNodeId(name, 8041)) for name in ("same", "other", "leaving", "absent")]
    nodes = {one.node: node(one.node, cpu="4000", memory="4Gi") for one in placed}
    right = ResourceMessage(4096, 4)
    reports = {
        YarnNodeId("same", 8041): report(right),
        YarnNodeId("other", 8041): report(ResourceMessage(1024, 1)),
        YarnNodeId("leaving", 8041): report(ResourceMessage(1024, 1), state=DECOMMISSIONING),
    }
    plan = decide_cluster(placed, nodes, {"other": BatchAmounts(1000, GI)}, reports)
    assert [(one.placed.node, one.wanted) for one in plan.updates] == [("other", ResourceMessage(3072, 3))]
    assert [(one.node, one.reason) for one in plan.problems] == [("absent", "not-registered")]


@pytest.mark.parametrize(
    ("host", "hint"),
    [
        pytest.param("nm-0.node-manager.yarn.svc", ", but nm-0:8041", id="registered-by-short-name"),
        pytest.param("NM-0", ", but nm-0:8041", id="other-case"),
        pytest.param("nm-1", "", id="nobody-alike"),
    ],
)
def test_a_node_manager_under_another_name_is_guessed(host: str, hint: str) -> None:
    placed = PlacedNodeManager("n", "c", YarnNodeId(host, 8041))
    plan = decide_cluster([placed], {}, {}, {YarnNodeId("nm-0", 8041): report(ResourceMessage())})
    (problem,) = plan.problems
    assert problem.text == f"the ResourceManager of c has no running NodeManager {host}:8041{hint}"


def test_pods_that_cannot_be_placed_are_named() -> None:
    pods = [
        manager_pod("first", "n1", A),
        manager_pod("second", "n1", B, age=1),
        manager_pod("twin", "n2", A, age=2),
        manager_pod("stranger", "n3", B, cluster="other"),
        manager_pod("nameless", "n4", None),
    ]
    placed, problems = place_node_managers(pods, ("c",))
    assert placed == {"n1": PlacedNodeManager("n1", "c", A)}
    assert {(one.node, one.reason) for one in problems} == {
        ("n1", "second-node-manager"),
        ("n2", "duplicate-node-id"),
        ("n3", "unknown-cluster"),
        ("n4", "node-id"),
    }


# What YARN holds -------------------------------------------------------------------------------------------------

PLACED = PlacedNodeManager("n", "c", A)
KEY = ("n", A)
USED = ResourceMessage(1024, 1)


@pytest.mark.parametrize(
    ("placed", "seen", "listed", "now", "held"),
    [
        pytest.param(True, None, USED, 5.0, BatchAmounts(1000, GI), id="listed"),
        pytest.param(True, None, None, 5.0, None, id="never-listed-yet"),
        pytest.param(True, (USED, None), None, 99.0, BatchAmounts(1000, GI), id="absent-since-now"),
        pytest.param(True, (USED, 0.0), None, 59.0, BatchAmounts(1000, GI), id="absent-for-a-moment"),
        pytest.param(True, (USED, 0.0), None, 60.0, BatchAmounts(), id="absent-for-long"),
        pytest.param(True, (None, 0.0), None, 60.0, BatchAmounts(), id="never-listed-for-long"),
        pytest.param(False, (USED, None), USED, 60.0, BatchAmounts(1000, GI), id="pod-gone-containers-run"),
        pytest.param(False, (USED, None), ResourceMessage(), 60.0, "forgotten", id="pod-gone-nothing-runs"),
        pytest.param(False, (USED, 0.0), None, 60.0, "forgotten", id="all-gone"),
    ],
)
def test_what_is_held(
    placed: bool,
    seen: tuple[ResourceMessage | None, float | None] | None,
    listed: ResourceMessage | None,
    now: float,
    held: BatchAmounts | str | None,
) -> None:
    before: SeenNodeManagers = {} if seen is None else {KEY: SeenNodeManager(held=seen[0], missed_at=seen[1])}
    reports = {} if listed is None else {A: report(ResourceMessage(), listed)}
    found = decide_held([PLACED] if placed else [], before, reports, now, 60.0)
    assert total_held(found) == ({} if held == "forgotten" else {"n": held})


def test_what_an_old_identity_holds_counts_until_it_is_given_up() -> None:
    before = {("n", B): SeenNodeManager(held=USED)}
    reports = {A: report(ResourceMessage(), USED), B: report(ResourceMessage(), USED)}
    assert total_held(decide_held([PLACED], before, reports, 1.0, 60.0)) == {"n": BatchAmounts(2000, 2 * GI)}


def test_the_entry_has_upstreams_form_and_others_stay_whole() -> None:
    other = {"name": "spark", "priority": "koord-batch", "resources": {CPU: "1"}, "extra": {"a": 1}}
    stale = {"name": "hadoop-yarn", "priority": "koord-batch", "resources": {CPU: "9k"}}
    text = with_yarn_allocation({THIRD: json.dumps({"allocations": [other, stale], "v": 2})}, BatchAmounts(1000, GI))
    assert isinstance(text, str)
    entry = {"name": "hadoop-yarn", "priority": "koord-batch", "resources": {CPU: "1k", MEMORY: "1Gi"}}
    assert json.loads(text) == {"allocations": [other, entry], "v": 2}


@pytest.mark.parametrize("text", ["{", "[]", '{"allocations":[{"resources":{"a":"x"}}]}'])
def test_unreadable_text_is_left_to_its_writer(text: str) -> None:
    assert isinstance(with_yarn_allocation({THIRD: text}, BatchAmounts()), MalformedAnnotation)


@given(AMOUNTS)
def test_what_is_written_is_read_back_and_subtracted_by_the_manager(held: BatchAmounts) -> None:
    text = with_yarn_allocation({}, held)
    assert isinstance(text, str)
    assert held_by_yarn({THIRD: text}) == held
    lent: DesiredResources = {CPU: Quantity.from_value(1 << 20), MEMORY: Quantity.from_value(1 << 42)}
    left = _after_third_parties(lent, {THIRD: text})
    amounts = {name: amount.value() for name, amount in left.items() if amount is not None}
    assert amounts == {CPU: (1 << 20) - held.cpu_milli, MEMORY: (1 << 42) - held.memory_bytes}


# Objects ---------------------------------------------------------------------------------------------------------


def pod(labels: dict[str, str], requests: dict[str, str], phase: str = "Running", on: str = "n") -> YarnPod:
    made = YarnContainer(name="c", resources=ResourceRequirements(requests={**requests}))
    meta = ObjectMeta(name="p", namespace="d", labels=labels, annotations={"yarn.hadoop.apache.org/node-id": "a:8041"})
    return YarnPod(metadata=meta, spec=YarnPodSpec(node_name=on, containers=(made,)), status=YarnPodStatus(phase=phase))


def test_pods_are_reduced_to_what_counts() -> None:
    manager = {"app.kubernetes.io/component": "node-manager"}
    kept = transform_pod(pod(manager, {CPU: "1k", "koordinator.sh/batch-memory": "1Gi"}))
    assert kept is not None
    assert kept.requested == BatchAmounts(1000, GI)
    assert kept.node_manager == NodeManager(cluster=DEFAULT_CLUSTER_ID, node_id=A)
    assert kept.spec.containers == ()
    assert transform_pod(pod({}, {CPU: "5"})) is not None
    assert transform_pod(pod({}, {"cpu": "5"})) is None
    assert transform_pod(pod(manager, {}, phase="Succeeded")) is None
    assert transform_pod(pod(manager, {}, on="")) is None


def test_nodes_are_reduced_to_what_counts() -> None:
    whole = node("n", {ORIGIN: "{}", "other": "x"}, cpu="1", memory="2")
    reduced = transform_node(whole)
    assert reduced.metadata.annotations == {ORIGIN: "{}"}
    assert reduced.status.allocatable == {CPU: "1", MEMORY: "2"}
