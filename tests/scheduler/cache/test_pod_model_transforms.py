"""Deprecated resource names, scheduler labels and node reservations are normalised when they are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.scheduler.cache.node_info import node_allocatable
from koord.scheduler.cache.pod_info import PodShapes
from koord.scheduler.cache.pod_model import normalised_spec, with_current_resource_names
from koord.scheduler.framework.cluster_event import UPDATE, ClusterEvent, ObjectEvent, node_update_events
from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition
from koord.scheduler.plugins.node_resources.fit import NodeResourcesFit
from tests.scheduler.builders import make_info, make_node, make_pod, make_state
from tests.scheduler.plugins.elastic_quota.quota_cluster import QuotaCluster, make_quota, of_quota
from tests.scheduler.preemption.cluster_fixture import _default_args

RESERVATION = "node.koordinator.sh/reservation"
OLD_BATCH, BATCH = "koordinator.sh/batch-cpu", "kubernetes.io/batch-cpu"
OLD_GPU, GPU = "kubernetes.io/gpu-core", "koordinator.sh/gpu-core"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        pytest.param({"cpu": 1}, {"cpu": 1}, id="nothing-old"),
        pytest.param({OLD_BATCH: 1000, "cpu": 1}, {BATCH: 1000, "cpu": 1}, id="an-old-name"),
        pytest.param({OLD_BATCH: 1000, BATCH: 2}, {OLD_BATCH: 1000, BATCH: 2}, id="both-names"),
        pytest.param({OLD_GPU: 50}, {GPU: 50}, id="a-device"),
    ],
)
def test_old_names_of_resources(given: dict[str, int], read: dict[str, int]) -> None:
    assert with_current_resource_names(given) == read


def test_pods_ask_under_the_names_in_use() -> None:
    pod = make_info(name="p", more={OLD_BATCH: "1500", OLD_GPU: "50"})
    assert pod.requests == {BATCH: 1500, GPU: 50}


def test_a_pod_with_nothing_old_is_read_as_it_is() -> None:
    pod = make_pod("p", cpu="1")
    assert normalised_spec(pod) is pod.spec


def test_old_and_new_names_share_a_shape() -> None:
    shapes = PodShapes()
    assert shapes.shape_of(make_pod("a", more={OLD_BATCH: "1"})) is shapes.shape_of(make_pod("b", more={BATCH: "1"}))


def test_a_label_chooses_the_scheduler() -> None:
    labels = {"scheduling.koordinator.sh/scheduler-name": "koord-scheduler"}
    pod = make_pod("p", labels=labels, schedulerName="default-scheduler")
    shapes = PodShapes()
    assert shapes.intern(pod).spec.scheduler_name == "koord-scheduler"
    assert make_state().pod_info(pod).scheduler == "koord-scheduler"


@pytest.mark.parametrize(
    ("text", "cpu", "memory"),
    [
        pytest.param({"resources": {"cpu": "1", "memory": "2Gi"}}, 7000, 30 << 30, id="amounts"),
        pytest.param({"resources": {"cpu": "1"}, "reservedCPUs": "0-3"}, 4000, 32 << 30, id="cpus-come-first"),
        pytest.param({"resources": {"cpu": "1"}, "applyPolicy": "Default"}, 7000, 32 << 30, id="said-in-full"),
        pytest.param({"reservedCPUs": "0-3", "applyPolicy": "ReservedCPUsOnly"}, 8000, 32 << 30, id="only-for-binding"),
        pytest.param({"resources": {"cpu": "99"}}, 0, 32 << 30, id="never-below-nothing"),
        pytest.param({"reservedCPUs": "three"}, 8000, 32 << 30, id="no-cpuset"),
        pytest.param("{", 8000, 32 << 30, id="no-json"),
    ],
)
def test_what_a_node_keeps_for_the_system_is_not_for_pods(text: Any, cpu: int, memory: int) -> None:
    """R30: free is what is allocatable, less what is kept back."""
    node = make_node(annotations={RESERVATION: text if isinstance(text, str) else json.dumps(text)})
    found = node_allocatable(node)
    assert (found["cpu"], found["memory"]) == (cpu, memory)


def test_lent_resources_are_not_taken_off_twice() -> None:
    kept = json.dumps({"resources": {BATCH: "1000"}})
    node = make_node(more={BATCH: "4000"}, annotations={RESERVATION: kept})
    assert node_allocatable(node)[BATCH] == 4000


def test_quotas_share_what_is_left() -> None:
    scene = QuotaCluster()
    scene.state.set_node(make_node("a", cpu="8", annotations={RESERVATION: '{"resources":{"cpu":"3"}}'}))
    scene.quotas(make_quota("q", {}, {"cpu": "100"}))
    assert "runtime: cpu:5," in scene.refusal(of_quota("p", "q", cpu="6"))


def test_a_node_that_keeps_less_wakes_who_waits_for_room() -> None:
    before = make_node("a", cpu="8", annotations={RESERVATION: '{"resources":{"cpu":"3"}}'})
    after = make_node("a", cpu="8")
    grown = ClusterEvent("Node", UPDATE, "allocatable")
    assert grown in node_update_events(before, after)
    assert grown not in node_update_events(after, make_node("a", cpu="8", annotations={"other": "x"}))
    fit = NodeResourcesFit(_default_args("NodeResourcesFit"))
    pod = make_info(name="p", cpu="7")
    assert fit.queueing_hint(pod, ObjectEvent(grown, before, after))
    assert not fit.queueing_hint(pod, ObjectEvent(grown, after, before))


def test_quotas_may_still_name_batch_resources_the_old_way() -> None:
    read = QuotaDefinition.from_elastic_quota(make_quota("q", {OLD_BATCH: "1"}, {OLD_BATCH: "2"}))
    assert (read.min, read.max, read.weight) == ({BATCH: 1}, {BATCH: 2}, {BATCH: 2})
