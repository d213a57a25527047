"""metrics.k8s.io shows what NodeMetrics report, and a debug container on a simulated node ends at once."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from koord.embedded.apiserver.server import ApiServer
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.telemetry.clock import ManualClock
from tests.embedded.apiserver.rest_harness import NS, STRATEGIC, TABLE, Api, pod, started

METRICS = "/apis/metrics.k8s.io/v1beta1"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    cluster = EmbeddedCluster(ClusterSettings(http=False))
    await cluster.start()
    assert isinstance(cluster.server, ApiServer)
    made = Api(cluster.server, ManualClock(), random.Random(1))
    for name in ("n1", "n2"):
        assert (await made.post("/api/v1/nodes", {"metadata": {"name": name, "labels": {"zone": name}}}))[0] == 201
    two = [{"name": "main", "image": "i"}, {"name": "side", "image": "i"}]
    assert (await made.post(f"{NS}/pods", pod("web", {"app": "web"}, nodeName="n1", containers=two)))[0] == 201
    assert (await made.post(f"{NS}/pods", pod("new", nodeName="n1")))[0] == 201
    metric = {
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": "n1"}, "spec": {},
    }  # fmt: skip
    path = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
    assert (await made.post(path, metric))[0] == 201
    status = {
        "updateTime": "2026-01-01T00:00:00Z",
        "nodeMetric": {"nodeUsage": {"resources": {"cpu": "1500m", "memory": "2Gi"}}},
        "podsMetric": [
            {"name": "web", "namespace": "default", "podUsage": {"resources": {"cpu": "250m", "memory": "100Mi"}}}
        ],
    }
    assert (await made.patch(f"{path}/n1/status", {"status": status}))[0] == 200
    yield made
    await cluster.stop()


async def test_nodes(api: Api) -> None:
    status, found = await api.get(f"{METRICS}/nodes")
    assert (status, found["kind"]) == (200, "NodeMetricsList")
    assert [(item["metadata"]["name"], item["usage"]) for item in found["items"]] == [
        ("n1", {"cpu": "1500m", "memory": "2Gi"})  # n2 has no report
    ]
    assert found["items"][0]["timestamp"] == "2026-01-01T00:00:00Z"
    assert (await api.get(f"{METRICS}/nodes/n1"))[0] == 200
    status, said = await api.get(f"{METRICS}/nodes/n2")
    assert (status, said["reason"]) == (404, "NotFound")
    assert (await api.get(f"{METRICS}/nodes?labelSelector=zone=n2"))[1]["items"] == []


@pytest.mark.parametrize("path", [f"{METRICS}/namespaces/default/pods", f"{METRICS}/pods"], ids=["namespace", "all"])
async def test_pods(api: Api, path: str) -> None:
    _, found = await api.get(path)
    assert [item["metadata"]["name"] for item in found["items"]] == ["web"]
    usage = {"cpu": "250m", "memory": "100Mi"}
    assert found["items"][0]["containers"] == [
        {"name": "main", "usage": usage},
        {"name": "side", "usage": {"cpu": "0", "memory": "0"}},
    ]
    assert (await api.get(f"{path}?labelSelector=app=other"))[1]["items"] == []
    assert len((await api.get(f"{path}?fieldSelector=spec.nodeName=n1"))[1]["items"]) == 1


async def test_the_group_is_found_and_read_only(api: Api) -> None:
    _, groups = await api.get("/apis")
    assert "metrics.k8s.io" in {group["name"] for group in groups["groups"]}
    _, listed = await api.get(METRICS)
    assert {row["name"]: row["kind"] for row in listed["resources"]} == {"nodes": "NodeMetrics", "pods": "PodMetrics"}
    assert (await api.post(f"{METRICS}/nodes", {}))[0] == 405
    assert (await api.get(f"{METRICS}/nodes", accept=TABLE))[1]["kind"] == "Table"
    assert (await api.get("/openapi/v2"))[0] == 200
    assert (await api.get("/openapi/v3/apis/metrics.k8s.io/v1beta1"))[0] == 200


async def test_a_debug_container_ends_at_once_and_says_why(api: Api) -> None:
    patch = {"spec": {"ephemeralContainers": [{"name": "debugger", "image": "busybox", "targetContainerName": "main"}]}}
    status, made = await api.patch(f"{NS}/pods/web/ephemeralcontainers", patch, STRATEGIC)
    assert status == 200
    (ended,) = made["status"]["ephemeralContainerStatuses"]
    assert (ended["name"], ended["state"]["terminated"]["reason"]) == ("debugger", "NotSupported")
    status, said = await api.get(f"{NS}/pods/web/attach")
    assert (status, said["message"]) == (
        501,
        "the embedded API server has no attach for pods: its nodes are simulated and run no processes",
    )
    assert (await api.get(f"{NS}/pods/web/log?container=debugger"))[0] == 200
    assert api.last is not None
    assert b"debugger ended with exit code 1: NotSupported" in api.last.body.raw()


async def test_a_pod_without_a_node_waits_for_one() -> None:
    api = await started()
    assert (await api.post(f"{NS}/pods", pod("p")))[0] == 201
    patch: dict[str, Any] = {"spec": {"ephemeralContainers": [{"name": "debugger", "image": "busybox"}]}}
    status, made = await api.patch(f"{NS}/pods/p/ephemeralcontainers", patch, STRATEGIC)
    assert (status, "ephemeralContainerStatuses" in made["status"]) == (200, False)
    await api.server.close()
