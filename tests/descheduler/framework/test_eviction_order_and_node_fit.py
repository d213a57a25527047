"""Which pod goes first, and where a pod could live: the vectors of the two that everybody uses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.pod_selection import eviction_sort_key, pod_rank, sort_for_eviction
from koord.descheduler.framework.snapshot import NodeFitChecker
from tests.descheduler.cluster_builders import NOW_S, make_node, make_pod, make_snapshot

DELETION, EVICTION = "controller.kubernetes.io/pod-deletion-cost", "scheduling.koordinator.sh/eviction-cost"


def stands(name: str, priority: int | None = None, kube: str = "BestEffort", qos: str = "", **costs: Any) -> Pod:
    age_s = costs.pop("age_s", 0)
    meta: dict[str, Any] = {
        "creationTimestamp": datetime.fromtimestamp(NOW_S - age_s, UTC).isoformat(),
        "annotations": {{"deletion": DELETION, "eviction": EVICTION}[k]: v for k, v in costs.items()},
        "labels": {"koordinator.sh/qosClass": qos} if qos else {},
    }
    spec = {"priority": priority} if priority is not None else {}
    return make_pod(name, "n1", metadata=meta, spec=spec, status={"qosClass": kube})


IN_ORDER = [
    stands("best-effort", 0),
    stands("batch-newer", 5000, qos="BE"),
    stands("batch-older", 5000, qos="BE", age_s=60),
    stands("batch-deletion-100", 5000, qos="BE", deletion="100"),
    stands("batch-deletion-200", 5000, qos="BE", deletion="200"),
    stands("batch-deletion-200-eviction-100", 5000, qos="BE", deletion="200", eviction="100"),
    stands("batch-deletion-200-eviction-200", 5000, qos="BE", deletion="200", eviction="200"),
    stands("mid", 7500, "Burstable"),
    stands("zero-burstable", 0, "Burstable"),
    stands("zero-guaranteed", 0, "Guaranteed"),
    stands("prod-9000", 9000, "Burstable"),
    stands("prod-9899", 9899, "Burstable"),
    stands("prod-9899-guaranteed", 9899, "Guaranteed"),
    stands("prod-9919", 9919, "Guaranteed", "LSR"),
    stands("prod-9998", 9998, "Guaranteed", "LSE"),
    stands("prod-9999", 9999, "Guaranteed", "LSE"),
]


@given(st.permutations(IN_ORDER))
def test_the_order_does_not_depend_on_how_they_come(pods: list[Pod]) -> None:
    assert [p.metadata.name for p in sort_for_eviction(pods)] == [p.metadata.name for p in IN_ORDER]


@pytest.mark.parametrize("cost", ["+10", "008", "", "many", "1.5"])
def test_a_cost_that_is_no_number_is_none(cost: str) -> None:
    assert pod_rank(stands("a", deletion=cost)).deletion_cost == 0
    assert pod_rank(stands("a", eviction=cost)).eviction_cost == 0


def test_a_pod_of_a_free_class_goes_before_batch_and_an_unknown_class_counts_by_its_qos() -> None:
    free = make_pod("f", "n1", metadata={"labels": {"koordinator.sh/priority-class": "koord-free"}})
    unknown = make_pod(
        "u", "n1", metadata={"labels": {"koordinator.sh/priority-class": "x"}}, status={"qosClass": "Guaranteed"}
    )
    batch = stands("b", 5000, qos="BE")
    assert [p.metadata.name for p in sort_for_eviction([unknown, batch, free])] == ["f", "b", "u"]


def test_use_decides_before_age() -> None:
    old, new = stands("old", 5000, age_s=60), stands("new", 5000)
    assert eviction_sort_key(pod_rank(old), -1.0) < eviction_sort_key(pod_rank(new), 0.0)


# Fit ---------------------------------------------------------------------------------------------------------------


def asking(name: str, node: str = "", **requests: str) -> Pod:
    names = {key.replace("_", "/"): value for key, value in requests.items()}
    return make_pod(name, node, spec={"containers": [{"name": "c", "image": "i", "resources": {"requests": names}}]})


@pytest.mark.parametrize(
    ("pod", "node", "fits"),
    [
        pytest.param(asking("p", cpu="8"), make_node("n1"), True, id="just-fits"),
        pytest.param(asking("p", cpu="8001m"), make_node("n1"), False, id="cpu"),
        pytest.param(asking("p", example_gpu="1"), make_node("n1"), False, id="not-there-at-all"),
        pytest.param(asking("p"), make_node("n1", unschedulable=True), False, id="cordoned"),
        pytest.param(asking("p"), make_node("n1", taints=[{"key": "a", "effect": "NoExecute"}]), False, id="taint"),
        pytest.param(
            asking("p"), make_node("n1", taints=[{"key": "a", "effect": "PreferNoSchedule"}]), True, id="soft"
        ),
        pytest.param(make_pod("p", spec={"nodeSelector": {"a": "b"}}), make_node("n1"), False, id="selector"),
    ],
)
def test_fit_by_requests_cordon_taints_and_selectors(pod: Pod, node: Any, fits: bool) -> None:
    assert NodeFitChecker(make_snapshot((node,))).fits(pod, node) is fits


def test_pods_that_live_there_count_and_ended_ones_do_not() -> None:
    node = make_node("n1")
    busy = asking("busy", "n1", cpu="5")
    over = make_pod("over", "n1", status={"phase": "Succeeded"}, spec={"containers": busy.spec.containers and []})
    fit_checker = NodeFitChecker(make_snapshot((node,), (busy, over)))
    assert fit_checker.fits(asking("p", cpu="3"), node)
    assert not fit_checker.fits(asking("q", cpu="4"), node)


def test_elsewhere_is_not_here() -> None:
    nodes = [make_node("n1"), make_node("n2")]
    fit_checker = NodeFitChecker(make_snapshot(nodes))
    pod = asking("p", "n1", cpu="1")
    found = fit_checker.first_other_fit(pod, nodes)
    assert found is not None
    assert found.metadata.name == "n2"
    here = fit_checker.first_fit(pod, nodes)
    assert here is not None
    assert here.metadata.name == "n1"
