"""koord-manager as a component of the embedded cluster: webhooks without a network, controllers beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api.config import gates
from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES, ELASTIC_QUOTAS, NODE_METRICS, NODE_SLOS
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES
from koord.cli.up.components import choose_components
from koord.cli.up.local_manager import LocalManager
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import NAMESPACE, ManagerSettings
from koord.telemetry.clock import LoopClock, run_virtual

PROFILE = {
    "metadata": {"name": "batch"},
    "spec": {
        "selector": {"matchLabels": {"app": "job"}},
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "schedulerName": "koord-scheduler",
    },
}


def in_cluster(test: Callable[[Client], Awaitable[None]], switches: str = "") -> None:
    switched = gates.parse_feature_gates(switches, MANAGER_GATES)
    assert isinstance(switched, dict)

    async def main(clock: LoopClock) -> None:
        settings = ManagerSettings(gates=switched)
        cluster = EmbeddedCluster(
            ClusterSettings(http=False, seed=1),
            [("manager", lambda context: LocalManager(context, settings))],
            clock=clock,
        )
        await cluster.start()
        assert cluster.client is not None
        try:
            unwrap(await cluster.client.create(NAMESPACES, {"metadata": {"name": "work"}}))
            await test(cluster.client)
        finally:
            await cluster.stop()

    run_virtual(main)


def pod(name: str, **labels: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
    spec = {"containers": [{"name": "c", "image": "i", "resources": resources}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


async def settled() -> None:
    """Virtual time passes only when every task waits, so after it the caches know of all writes."""
    await asyncio.sleep(1)


def test_a_pod_gets_its_profile() -> None:
    async def test(client: Client) -> None:
        unwrap(await client.create(CLUSTER_COLOCATION_PROFILES, PROFILE))
        await settled()
        made = unwrap(await client.create(PODS, pod("a", app="job"), "work"))
        assert made.metadata.labels["koordinator.sh/qosClass"] == "BE"
        assert made.spec.scheduler_name == "koord-scheduler"
        assert made.spec.priority == 5000
        assert made.spec.containers[0].resources.requests == {
            "kubernetes.io/batch-cpu": "1k",
            "kubernetes.io/batch-memory": "2Gi",
        }

    in_cluster(test)


def test_system_namespaces_are_left_alone() -> None:
    async def test(client: Client) -> None:
        unwrap(await client.create(CLUSTER_COLOCATION_PROFILES, PROFILE))
        await settled()
        for namespace in ("kube-system", NAMESPACE):
            made = unwrap(await client.create(PODS, pod("a", app="job"), namespace))
            assert "koordinator.sh/qosClass" not in made.metadata.labels, namespace

    in_cluster(test)


def test_a_bad_pod_is_denied_in_the_words_of_a_webhook() -> None:
    async def test(client: Client) -> None:
        answer = await client.create(PODS, pod("a", **{"koordinator.sh/qosClass": "BE"}), "work")
        assert isinstance(answer, ApiError)
        assert answer.code == 400
        assert answer.message == (
            'admission webhook "vpod.koordinator.sh" denied the request: Pod: Forbidden: '
            "koordinator.sh/qosClass=BE and priorityClass= cannot be used in combination"
        )

    in_cluster(test)


def test_quotas_are_filled_in_and_checked() -> None:
    async def test(client: Client) -> None:
        quota = {"metadata": {"name": "q"}, "spec": {"min": {"cpu": "4"}, "max": {"cpu": "2"}}}
        answer = await client.create(ELASTIC_QUOTAS, quota, "work")
        assert isinstance(answer, ApiError)
        assert "velasticquota.koordinator.sh" in answer.message
        quota["spec"] = {"min": {"cpu": "1"}, "max": {"cpu": "2"}}
        made = unwrap(await client.create(ELASTIC_QUOTAS, quota, "work"))
        assert made.metadata.labels["quota.scheduling.koordinator.sh/parent"] == "koordinator-root-quota"

    in_cluster(test)


@pytest.mark.parametrize("on", [True, False], ids=["gate-on", "gate-off"])
def test_a_gate_decides_whether_configuration_is_checked(on: bool) -> None:
    async def test(client: Client) -> None:
        patch = {"data": {"colocation-config": '{"cpuReclaimThresholdPercent": -1}'}}
        answer = await client.patch(CONFIG_MAPS, "slo-controller-config", patch, NAMESPACE, kind="merge")
        assert isinstance(answer, ApiError) is on

    in_cluster(test, "ConfigMapValidatingWebhook=true" if on else "")


def test_the_installation_brings_its_objects_and_controllers_work() -> None:
    async def test(client: Client) -> None:
        names = {one.metadata.name for one in unwrap(await client.list(PRIORITY_CLASSES)).items}
        assert {"koord-prod", "koord-mid", "koord-batch", "koord-free"} <= names
        unwrap(await client.create(NODES, {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8"}}}))
        await settled()
        assert unwrap(await client.get(NODE_METRICS, "n1")).spec.metric_collect_policy is not None
        slo = unwrap(await client.get(NODE_SLOS, "n1")).spec
        assert slo.resource_used_threshold_with_be is not None
        assert slo.resource_used_threshold_with_be.enable is True

    in_cluster(test)


def test_gates_are_set_on_the_command_line_of_up() -> None:
    def said(text: str) -> object:
        return choose_components("manager", nodes=0, profile=None, settings={"manager.feature-gates": text})

    wrong = said("Nonsense=true")
    assert isinstance(wrong, str)
    assert "Nonsense" in wrong
    assert not isinstance(said("NodeMutatingWebhook=true"), str)
