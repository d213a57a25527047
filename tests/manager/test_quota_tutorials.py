"""The steps of the capacity-scheduling tutorials that the manager answers, on a whole cluster with its webhooks on."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api.config.gates import default_feature_gates
from koord.api.koordinator.custom_kinds import ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.koordinator.protocol import (
    A_QUOTA_SHARED_WEIGHT,
    A_QUOTA_TOTAL_RESOURCE,
    L_QUOTA_IS_PARENT,
    L_QUOTA_IS_ROOT,
    L_QUOTA_NAME,
    L_QUOTA_PARENT,
    L_QUOTA_PROFILE,
    L_QUOTA_TREE_ID,
    ROOT_QUOTA,
)
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.cli.up.local_manager import LocalManager
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import ManagerSettings
from koord.telemetry.clock import Clock, LoopClock, run_virtual
from tests.manager.webhooks.quota.quota_builders import quota

EXAMPLE: dict[str, Any] = {"max": {"cpu": 40, "memory": "40Gi"}, "min": {"cpu": 10, "memory": "20Mi"}}
KEYS = "failed to check sub and parent group quotaKey, err: checkSubAndParentGroupQuotaKey failed: "


def managed(main: Callable[[Client, Clock], Awaitable[None]], **gates: bool) -> None:
    async def run(clock: LoopClock) -> None:
        settings = ManagerSettings(gates={**default_feature_gates(MANAGER_GATES), **gates})
        parts = [("manager", lambda context: LocalManager(context, settings))]
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), parts, clock=clock)
        await cluster.start()
        assert cluster.client is not None
        try:
            await main(cluster.client, clock)
        finally:
            await cluster.stop()

    run_virtual(run)


def stored(name: str, **more: Any) -> dict[str, Any]:
    return quota(name, namespace="default", **{**EXAMPLE, **more})


def pod(name: str, quota_name: str) -> dict[str, Any]:
    amounts = {"cpu": "1", "memory": "2Gi"}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {L_QUOTA_NAME: quota_name}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]},
    }


def refusal(answer: object) -> str:
    assert isinstance(answer, ApiError)
    return answer.message


def test_a_quota_is_completed() -> None:
    async def main(client: Client, clock: Clock) -> None:
        made = unwrap(await client.create(ELASTIC_QUOTAS, stored("quota-example", is_parent=False)))
        assert made.metadata.labels[L_QUOTA_PARENT] == ROOT_QUOTA
        assert json.loads(made.metadata.annotations[A_QUOTA_SHARED_WEIGHT]) == {"cpu": "40", "memory": "40Gi"}

    managed(main)


@pytest.mark.parametrize(
    ("child", "words"),
    [
        pytest.param(
            stored("child", parent="parent", min={"cpu": 20, "memory": "20Mi"}),
            "checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: parent",
            id="min-above-the-parent's",
        ),
        pytest.param(
            stored("child", parent="parent", max={"cpu": 40, "memory": "40Gi", "test": 200}),
            KEYS + "parent's max keys are not the same with child's",
            id="a-key-more",
        ),
        pytest.param(
            stored("child", parent="leaf"),
            "child has parentName leaf but the parentQuotaInfo's IsParent is false",
            id="below-a-leaf",
        ),
    ],
)
def test_a_quota_that_does_not_fit_is_refused(child: dict[str, Any], words: str) -> None:
    async def main(client: Client, clock: Clock) -> None:
        for obj in (stored("parent", is_parent=True), stored("leaf", is_parent=False)):
            unwrap(await client.create(ELASTIC_QUOTAS, obj))
        assert words in refusal(await client.create(ELASTIC_QUOTAS, child))

    managed(main)


def test_parents_take_no_pods_and_stay_parents_while_they_have_children() -> None:
    async def main(client: Client, clock: Clock) -> None:
        unwrap(await client.create(ELASTIC_QUOTAS, stored("parent", is_parent=True)))
        unwrap(await client.create(ELASTIC_QUOTAS, stored("child", parent="parent")))
        words = "pod can not be linked to a parentQuotaGroup,quota:parent, pod:p"
        assert words in refusal(await client.create(PODS, pod("p", "parent")))
        unwrap(await client.create(PODS, pod("p", "child")))
        demotion = {"metadata": {"labels": {L_QUOTA_IS_PARENT: "false"}}}
        words = "quota has children, isParent is forbidden to modify as false, quotaName:parent"
        assert words in refusal(await client.patch(ELASTIC_QUOTAS, "parent", demotion, "default", kind="merge"))
        await clock.sleep(1)
        words = "delete quota failed, quota child has 1 child pods: p"
        assert words in refusal(await client.delete(ELASTIC_QUOTAS, "child", "default"))
        unwrap(await client.delete(PODS, "p", "default", grace_seconds=0))
        await clock.sleep(1)
        unwrap(await client.delete(ELASTIC_QUOTAS, "child", "default"))
        unwrap(await client.patch(ELASTIC_QUOTAS, "parent", demotion, "default", kind="merge"))

    managed(main)


def test_quota_trees_of_node_pools() -> None:
    async def main(client: Client, clock: Clock) -> None:
        for name, zone, memory in (("k1", "k", "13132408Ki"), ("k2", "k", "13132408Ki"), ("g1", "g", "12903364Ki")):
            amounts = {"cpu": "3900m", "memory": memory, "pods": "64"}
            node = {
                "metadata": {"name": name, "labels": {"region": "cn-hangzhou", "zone": f"cn-hangzhou-{zone}"}},
                "status": {
                    "capacity": amounts,
                    "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            unwrap(await client.create(NODES, node))
        for zone in ("k", "g"):
            place = {"region": "cn-hangzhou", "zone": f"cn-hangzhou-{zone}"}
            profile = {
                "metadata": {"name": f"cn-hangzhou-{zone}-nodepool", "namespace": "kube-system"},
                "spec": {
                    "nodeSelector": {"matchLabels": place},
                    "quotaLabels": {L_QUOTA_IS_PARENT: "true", **place},
                    "quotaName": f"cn-hangzhou-{zone}-root-quota",
                },
            }
            unwrap(await client.create(ELASTIC_QUOTA_PROFILES, profile))
        await clock.sleep(12)
        for zone, tree, least in (
            ("k", "18340441938858026940", {"cpu": "7800m", "memory": "26264816Ki"}),
            ("g", "8589367430557242040", {"cpu": "3900m", "memory": "12903364Ki"}),
        ):
            root = unwrap(await client.get(ELASTIC_QUOTAS, f"cn-hangzhou-{zone}-root-quota", "kube-system"))
            labels = root.metadata.labels
            assert (labels[L_QUOTA_TREE_ID], labels[L_QUOTA_IS_ROOT]) == (tree, "true")
            assert (labels[L_QUOTA_PARENT], labels[L_QUOTA_PROFILE]) == (ROOT_QUOTA, f"cn-hangzhou-{zone}-nodepool")
            assert root.spec.min == least
            assert root.spec.max == {"cpu": "4611686018427387", "memory": "4611686018427387"}
            assert json.loads(root.metadata.annotations[A_QUOTA_TOTAL_RESOURCE]).keys() == {"cpu", "memory", "pods"}

        share = {"cpu": 3, "memory": "6Gi"}
        obj = quota("test-child", namespace="default", parent="cn-hangzhou-k-root-quota", min=share, max=share)
        child = unwrap(await client.create(ELASTIC_QUOTAS, obj))
        assert child.metadata.labels[L_QUOTA_TREE_ID] == "18340441938858026940"
        unwrap(await client.create(PODS, pod("p", "test-child")))
        made: Any = await client.dynamic.get(PODS, "p", "default")
        required = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert required["nodeSelectorTerms"] == [
            {
                "matchExpressions": [
                    {"key": "region", "operator": "In", "values": ["cn-hangzhou"]},
                    {"key": "zone", "operator": "In", "values": ["cn-hangzhou-k"]},
                ]
            }
        ]

    managed(main, MultiQuotaTree=True)


def test_pods_beyond_their_quota_are_refused_at_the_door() -> None:
    async def main(client: Client, clock: Clock) -> None:
        unwrap(await client.create(ELASTIC_QUOTAS, stored("q", max={"cpu": 2, "memory": "40Gi"}, min={})))
        await clock.sleep(1)
        for name in ("a", "b"):
            unwrap(await client.create(PODS, pod(name, "q")))
        words = "exceeded quota: default/q, requested: cpu=1, used: cpu=2, limited: cpu=2"
        assert words in refusal(await client.create(PODS, pod("c", "q")))

    managed(main, EnableQuotaAdmission=True)
