"""Decisions on budgets, nodes, leftover pods and the owner graph, as tables and properties."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.affinity import Taint
from koord.api.kubernetes.meta import OwnerReference
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod, PodSpec
from koord.api.kubernetes.pod_policy import PodDisruptionBudget
from koord.api.model import convert
from koord.embedded.workloads import disruption_controller, garbage_collector, node_lifecycle_controller, pod_gc
from koord.embedded.workloads.controller_context import parse_discovery
from koord.embedded.workloads.garbage_collector import DeleteDependent, RemoveOwnerReferences
from tests.embedded.workloads.builders import NOW, node, pod, taint

# -- budgets


def budget(**spec: Any) -> PodDisruptionBudget:
    return convert({"metadata": {"name": "b", "generation": 1}, "spec": spec}, PodDisruptionBudget)


def guarded(count: int, sick: int = 0) -> tuple[Pod, ...]:
    owner = [{"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}]
    return tuple(pod(f"p{n}", ready=n >= sick, metadata={"ownerReferences": owner}) for n in range(count))


@pytest.mark.parametrize(
    ("spec", "pods", "scale", "expected"),
    [
        pytest.param({"minAvailable": 2}, guarded(4), 9, (4, 4, 2, 2), id="a-number-counts-pods"),
        pytest.param({"minAvailable": "50%"}, guarded(4), 5, (5, 4, 3, 1), id="a-share-counts-what-is-wanted"),
        pytest.param({"maxUnavailable": "30%"}, guarded(4), 4, (4, 4, 2, 2), id="shares-round-up"),
        pytest.param({"maxUnavailable": 1}, guarded(4, sick=2), 4, (4, 2, 3, 0), id="the-sick-count-against-it"),
        pytest.param({"maxUnavailable": 9}, guarded(4), 4, (4, 4, 0, 4), id="more-than-all"),
        pytest.param({"minAvailable": 0}, (), 0, (0, 0, 0, 0), id="nobody"),
    ],
)
def test_budgets(spec: dict[str, Any], pods: tuple[Pod, ...], scale: int, expected: tuple[int, ...]) -> None:
    view = disruption_controller.BudgetView(
        budget=budget(**spec), pods=pods, scales={"r": disruption_controller.ControllerScale("r", scale)}, now=NOW
    )
    found = disruption_controller.decide_budget_status(view)
    numbers = (found.expected_pods, found.current_healthy, found.desired_healthy, found.disruptions_allowed)
    assert numbers == expected
    assert found.conditions[0].status == ("True" if expected[3] else "False")


def test_budget_that_cannot_be_counted_allows_nothing() -> None:
    old = msgspec.structs.replace(budget(maxUnavailable=1).status, disruptions_allowed=3)
    view = disruption_controller.BudgetView(
        budget=msgspec.structs.replace(budget(maxUnavailable=1), status=old), pods=guarded(2), now=NOW
    )
    found = disruption_controller.decide_budget_status(view)
    assert found.disruptions_allowed == 0
    assert found.conditions[0].reason == "SyncFailed"


def test_allowed_evictions_count_until_seen_or_forgotten() -> None:
    held = {"p0": NOW - timedelta(seconds=10), "p1": NOW - timedelta(seconds=500), "gone": NOW}
    old = budget(minAvailable=1)
    old = msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, disrupted_pods=held))
    found = disruption_controller.decide_budget_status(
        disruption_controller.BudgetView(budget=old, pods=guarded(3), now=NOW)
    )
    assert set(found.disrupted_pods) == {"p0"}
    assert found.current_healthy == 2


# -- nodes


@pytest.mark.parametrize(
    ("healthy", "unhealthy", "state"),
    [
        pytest.param(3, 0, "Normal", id="all-well"),
        pytest.param(1, 2, "Normal", id="two-are-too-few-to-judge"),
        pytest.param(2, 3, "PartialDisruption", id="most-are-down"),
        pytest.param(0, 1, "FullDisruption", id="all-down"),
    ],
)
def test_zone_states(healthy: int, unhealthy: int, state: str) -> None:
    assert node_lifecycle_controller.zone_state(healthy, unhealthy) == state


def test_a_dark_zone_is_evicted_only_while_another_lives() -> None:
    def zone(name: str, status: str) -> tuple[Node, bool]:
        return node(name, labels={"topology.kubernetes.io/zone": name[0]}, Ready=status), False

    lit = node_lifecycle_controller.zone_eviction_rates([zone("a1", "Unknown"), zone("b1", "True")])
    assert lit.rates == {":a": 0.1, ":b": 0.1}
    dark = node_lifecycle_controller.zone_eviction_rates([zone("a1", "Unknown"), zone("b1", "False")])
    assert dark == node_lifecycle_controller.ZoneEvictionRates({":a": 0.0, ":b": 0.0}, True)


@pytest.mark.parametrize(
    ("seen", "may_evict", "expected"),
    [
        pytest.param(node(Ready="True"), True, None, id="nothing-to-say"),
        pytest.param(node(Ready="False"), False, [("not-ready", "NoSchedule")], id="new-pods-stay-away-at-once"),
        pytest.param(
            node(Ready="Unknown"),
            True,
            [("unreachable", "NoSchedule"), ("unreachable", "NoExecute")],
            id="old-ones-in-turn",
        ),
        pytest.param(
            node(Ready="Unknown", taints=[taint("node.kubernetes.io/not-ready", "NoExecute")]),
            False,
            [("unreachable", "NoSchedule"), ("unreachable", "NoExecute")],
            id="one-reason-takes-the-others-place",
        ),
        pytest.param(
            node(
                Ready="True", taints=[taint("mine", "NoExecute"), taint("node.kubernetes.io/not-ready", "NoSchedule")]
            ),
            False,
            [("mine", "NoExecute")],
            id="others-taints-are-left-alone",
        ),
    ],
)
def test_taints(seen: Node, may_evict: bool, expected: list[tuple[str, str]] | None) -> None:
    found = node_lifecycle_controller.decide_taints(seen, NOW, may_evict=may_evict)
    shown = None if found is None else [(one.key.rpartition("/")[2], one.effect) for one in found]
    assert shown == expected
    if found is not None:
        settled = msgspec.structs.replace(seen, spec=msgspec.structs.replace(seen.spec, taints=found))
        assert node_lifecycle_controller.decide_taints(settled, NOW, may_evict=may_evict) is None


@pytest.mark.parametrize(
    ("tolerations", "leaves_in"),
    [
        pytest.param([], "now", id="no-toleration"),
        pytest.param([{"operator": "Exists"}], None, id="tolerates-everything"),
        pytest.param([{"key": "k", "operator": "Exists", "tolerationSeconds": 60}], 60, id="for-a-while"),
        pytest.param([{"key": "k", "operator": "Exists", "tolerationSeconds": -5}], 0, id="less-than-nothing-is-now"),
        pytest.param([{"key": "k", "value": "other"}], "now", id="another-value"),
        pytest.param([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}], "now", id="another-effect"),
    ],
)
def test_leaving_tainted_nodes(tolerations: list[dict[str, Any]], leaves_in: int | str | None) -> None:
    tainted = (Taint(key="k", value="v", effect="NoExecute", time_added=NOW),)
    one = msgspec.structs.replace(pod(), spec=convert({"tolerations": tolerations}, PodSpec))
    verdict = node_lifecycle_controller.decide_taint_eviction(one, tainted, NOW)
    if leaves_in is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict.at <= NOW if leaves_in == "now" else verdict.at == NOW + timedelta(seconds=int(leaves_in))


def test_silent_nodes_keep_the_times_of_what_did_not_change() -> None:
    first = node_lifecycle_controller.unknown_conditions(node(Ready="True", MemoryPressure="False"), NOW)
    assert {one.type: (one.status, one.reason) for one in first} == {
        "Ready": ("Unknown", "NodeStatusUnknown"),
        "MemoryPressure": ("Unknown", "NodeStatusUnknown"),
        "DiskPressure": ("Unknown", "NodeStatusNeverUpdated"),
        "PIDPressure": ("Unknown", "NodeStatusNeverUpdated"),
    }
    marked = msgspec.structs.replace(node(), status=msgspec.structs.replace(node().status, conditions=first))
    assert node_lifecycle_controller.unknown_conditions(marked, NOW + timedelta(hours=1)) == first


def test_finished_pods_past_the_threshold_go_oldest_first() -> None:
    pods = [pod(f"p{n}", phase="Succeeded", age=timedelta(hours=n)) for n in range(4)]
    evicted = pod("e", phase="Failed", age=timedelta(0), reason="Evicted")
    gone = pod_gc.decide_surplus_finished([*pods, evicted], 3)
    assert [one.pod.metadata.name for one in gone] == ["e", "p3"]
    assert pod_gc.decide_surplus_finished(pods, 0) == []  # nothing or less switches it off


# -- ownership over all kinds

KINDS = parse_discovery(
    [
        {
            "metadata": {"name": ""},
            "versions": [
                {
                    "version": "v1",
                    "resources": [
                        {
                            "resource": "configmaps",
                            "responseKind": {"kind": "ConfigMap"},
                            "scope": "Namespaced",
                            "verbs": ["list"],
                        }
                    ],
                }
            ],
        }
    ]
)


def item(
    uid: str, *owners: str, finalizers: tuple[str, ...] = (), deleting: bool = False, blocks: bool = True
) -> garbage_collector.OwnerGraphNode:
    refs = tuple(
        OwnerReference(api_version="v1", kind="ConfigMap", name=owner, uid=owner, block_owner_deletion=blocks)
        for owner in owners
    )
    return garbage_collector.OwnerGraphNode(
        uid=uid,
        kind=KINDS.served[0],
        namespace="d",
        name=uid,
        version="1",
        owners=refs,
        finalizers=finalizers,
        deleting=deleting,
    )


@pytest.mark.parametrize(
    ("standings", "below", "expected"),
    [
        pytest.param({"a": "solid"}, [], None, id="owned-and-well"),
        pytest.param({"a": "absent"}, [], DeleteDependent("Background"), id="owner-gone"),
        pytest.param(
            {"a": "absent", "b": "solid"},
            [],
            RemoveOwnerReferences(frozenset("a")),
            id="one-owner-left",
        ),
        pytest.param(
            {"a": "waiting", "b": "solid"},
            [],
            RemoveOwnerReferences(frozenset("a")),
            id="one-owner-stays",
        ),
        pytest.param({"a": "waiting"}, [], DeleteDependent("Background"), id="owner-waits-for-a-leaf"),
        pytest.param(
            {"a": "waiting"},
            [item("z", "x")],
            DeleteDependent("Foreground"),
            id="owner-waits-for-a-branch",
        ),
        pytest.param(
            {"a": "waiting"},
            [item("z", "x", finalizers=(garbage_collector.FOREGROUND_FINALIZER,), deleting=True)],
            DeleteDependent("Foreground", unblock=True),
            id="a-circle-is-cut",
        ),
    ],
)
def test_what_becomes_of_dependents(
    standings: dict[str, Any], below: list[garbage_collector.OwnerGraphNode], expected: Any
) -> None:
    assert garbage_collector.decide_dependent(item("x", *standings), standings, below) == expected


def test_owners_wait_only_for_those_that_block() -> None:
    owner = item("o", finalizers=(garbage_collector.FOREGROUND_FINALIZER,), deleting=True)
    assert garbage_collector.decide_waiting_owner(owner, [item("d", "o", blocks=False)]) == (True, [])
    assert garbage_collector.decide_waiting_owner(owner, [item("d", "o")]) == (False, ["d"])


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.lists(st.sampled_from("abcd"), max_size=2, unique=True), st.booleans()),
        max_size=30,
    )
)
def test_the_graph_equals_one_built_from_what_is_left(steps: list[tuple[str, list[str], bool]]) -> None:
    live: dict[str, garbage_collector.OwnerGraphNode] = {}
    known = garbage_collector.OwnerGraph()
    for uid, owners, gone in steps:
        if gone:
            live.pop(uid, None)
            known.remove(uid)
        else:
            live[uid] = item(uid, *(owner for owner in owners if owner != uid))
            known.put(live[uid])
    fresh = garbage_collector.OwnerGraph()
    for one in live.values():
        fresh.put(one)
    assert len(known) == len(fresh)
    for uid in "abcd":
        assert known.get(uid) == fresh.get(uid)
        assert {one.uid for one in known.dependents(uid)} == {one.uid for one in fresh.dependents(uid)}
