"""The colocation-profile tutorial: a pod that knows nothing of batch resources becomes one that lives on them."""

from __future__ import annotations

import json

import pytest

from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES
from koord.api.kubernetes.builtin_kinds import NAMESPACES, NODES, PODS, PRIORITY_CLASSES
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.kube.transport.api_error import unwrap
from tests.journeys.colocation_cluster import BATCH_CPU, BATCH_MEMORY, ColocationCluster, pod, run_on_colocation_cluster

NODE = SimulatedPool(name="n", count=2)
ENABLED = {"koordinator.sh/enable-colocation": "true"}
PROFILE = {
    "metadata": {"name": "colocation-profile-example"},
    "spec": {
        "namespaceSelector": {"matchLabels": ENABLED},
        "selector": {"matchLabels": ENABLED},
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "koordinatorPriority": 1000,
        "schedulerName": "koord-scheduler",
        "labels": {"koordinator.sh/mutated": "true"},
        "annotations": {"koordinator.sh/intercepted": "true"},
        "patch": {"spec": {"terminationGracePeriodSeconds": 30}},
    },
}


async def prepare(j: ColocationCluster) -> None:
    unwrap(await j.client.create(NAMESPACES, {"metadata": {"name": "batch-work", "labels": ENABLED}}))
    unwrap(await j.client.create(CLUSTER_COLOCATION_PROFILES, PROFILE))
    await j.settle()


def tutorial_pod() -> dict[str, object]:
    return pod("test-pod", {"cpu": "1", "memory": "3456Mi"}, labels=ENABLED, namespace="batch-work")


def test_the_tutorials_pod_is_made_a_batch_pod_and_runs() -> None:
    async def journey(j: ColocationCluster) -> None:
        await prepare(j)
        made = unwrap(await j.client.create(PODS, tutorial_pod()))
        labels, annotations, spec = made.metadata.labels, made.metadata.annotations, made.spec
        assert annotations["koordinator.sh/intercepted"] == "true"
        assert labels["koordinator.sh/qosClass"] == "BE"
        assert labels["koordinator.sh/priority"] == "1000"
        assert labels["koordinator.sh/mutated"] == "true"
        assert spec.termination_grace_period_seconds == 30
        assert (spec.priority, spec.priority_class_name) == (5000, "koord-batch")
        assert spec.scheduler_name == "koord-scheduler"
        amounts = {BATCH_CPU: "1k", BATCH_MEMORY: "3456Mi"}  # 1000 milli-cores, in the shortest form
        assert spec.containers[0].resources.requests == amounts
        assert spec.containers[0].resources.limits == amounts
        stated = json.loads(annotations["node.koordinator.sh/extended-resource-spec"])
        assert list(stated["containers"]) == ["app"]

        await j.wait_for_reports()
        assert (await j.node_of_pod("test-pod", "batch-work")).startswith("n-")
        running = await j.pod("test-pod", "batch-work")
        assert running is not None
        assert running.status.phase == "Running"

    run_on_colocation_cluster(journey, NODE)


def test_with_the_webhooks_off_a_pod_is_left_as_it_is() -> None:
    async def journey(j: ColocationCluster) -> None:
        await prepare(j)
        made = unwrap(await j.client.create(PODS, tutorial_pod()))
        assert made.metadata.labels == ENABLED
        assert made.spec.containers[0].resources.requests == {"cpu": "1", "memory": "3456Mi"}

    run_on_colocation_cluster(journey, NODE, switches="PodMutatingWebhook=false,PodValidatingWebhook=false")


@pytest.mark.parametrize("missing", ["namespace", "pod"])
def test_a_pod_or_namespace_without_the_label_is_not_meant(missing: str) -> None:
    async def journey(j: ColocationCluster) -> None:
        await prepare(j)
        if missing == "namespace":
            given = pod("test-pod", {"cpu": "1", "memory": "1Gi"}, labels=ENABLED)
        else:
            given = pod("test-pod", {"cpu": "1", "memory": "1Gi"}, namespace="batch-work")
        made = unwrap(await j.client.create(PODS, given))
        assert made.spec.containers[0].resources.requests == {"cpu": "1", "memory": "1Gi"}

    run_on_colocation_cluster(journey, NODE)


def test_the_priority_classes_are_there() -> None:
    async def journey(j: ColocationCluster) -> None:
        found = {c.metadata.name: c.value for c in unwrap(await j.client.list(PRIORITY_CLASSES)).items}
        koord = {name: value for name, value in found.items() if name.startswith("koord-")}
        assert koord == {"koord-prod": 9000, "koord-mid": 7000, "koord-batch": 5000, "koord-free": 3000}

    run_on_colocation_cluster(journey)


def test_every_node_lends_within_a_minute_of_installation() -> None:
    async def journey(j: ColocationCluster) -> None:
        await j.wait_for_reports()
        nodes = unwrap(await j.client.list(NODES)).items
        assert len(nodes) == 2
        assert all(BATCH_CPU in node.status.allocatable for node in nodes)

    run_on_colocation_cluster(journey, NODE)
