"""What objects use of a ResourceQuota, and which objects a quota's scopes select."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from koord.api.kubernetes.core_v1 import ResourceQuotaSpec
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.quota_usage import (
    claim_usage,
    counted_kind,
    object_usage,
    pod_usage,
    selects_object,
    selects_pod,
    service_usage,
    unstated_resources,
)
from koord.api.model import convert
from koord.values.resources import to_wire

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(resources: Any = None, status: Any = None, meta: Any = None, **spec: Any) -> Pod:
    containers = [{"name": "c", "image": "i", "resources": resources or {}}]
    return convert({"metadata": meta or {}, "spec": {"containers": containers, **spec}, "status": status or {}}, Pod)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pods", "pods"),
        ("count/pods", "pods"),
        ("cpu", "pods"),
        ("requests.memory", "pods"),
        ("limits.ephemeral-storage", "pods"),
        ("hugepages-2Mi", "pods"),
        ("requests.hugepages-2Mi", "pods"),
        ("requests.example.com/gpu", "pods"),
        ("services.nodeports", "services"),
        ("requests.storage", "persistentvolumeclaims"),
        ("gold.storageclass.storage.k8s.io/requests.storage", "persistentvolumeclaims"),
        ("secrets", "secrets"),
        ("count/deployments.apps", "deployments.apps"),
        ("example.com/gpu", None),
        ("limits.example.com/gpu", None),
    ],
)
def test_every_resource_is_counted_over_one_kind(name: str, kind: str | None) -> None:
    assert counted_kind(name) == kind


def test_a_pod_uses_its_requests_and_limits() -> None:
    asked = {
        "requests": {"cpu": "500m", "memory": "1Gi", "example.com/gpu": "2"},
        "limits": {"cpu": "1", "example.com/gpu": "2"},
    }
    assert to_wire(pod_usage(pod(asked), NOW)) == {
        "count/pods": "1",
        "pods": "1",
        "cpu": "500m",
        "requests.cpu": "500m",
        "memory": "1Gi",
        "requests.memory": "1Gi",
        "requests.example.com/gpu": "2",
        "limits.cpu": "1",
    }


def test_a_pod_that_ended_or_outlived_its_deletion_is_an_object_and_nothing_more() -> None:
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    assert to_wire(pod_usage(pod(status={"phase": "Succeeded"}), NOW)) == {"count/pods": "1"}
    assert "pods" in pod_usage(pod(meta=leaving), NOW + timedelta(seconds=30))
    assert "pods" not in pod_usage(pod(meta=leaving), NOW + timedelta(seconds=31))


@pytest.mark.parametrize(
    ("spec", "node_ports", "balancers"),
    [
        ({"ports": [{"port": 1}]}, "0", "0"),
        ({"type": "NodePort", "ports": [{"port": 1}, {"port": 2}]}, "2", "0"),
        ({"type": "LoadBalancer", "ports": [{"port": 1}]}, "1", "1"),
        ({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False, "ports": [{"port": 1}]}, "0", "1"),
        (
            {
                "type": "LoadBalancer",
                "allocateLoadBalancerNodePorts": False,
                "ports": [{"port": 1, "nodePort": 3}, {"port": 2}],
            },
            "1",
            "1",
        ),
    ],
)
def test_services(spec: Any, node_ports: str, balancers: str) -> None:
    found = to_wire(service_usage({"spec": spec}))
    assert (found["services.nodeports"], found["services.loadbalancers"]) == (node_ports, balancers)


def test_claims_count_for_their_class_too() -> None:
    spec = {"storageClassName": "gold", "resources": {"requests": {"storage": "2Gi"}}}
    found = to_wire(claim_usage({"spec": spec}))
    assert found["requests.storage"] == found["gold.storageclass.storage.k8s.io/requests.storage"] == "2Gi"
    assert found["gold.storageclass.storage.k8s.io/persistentvolumeclaims"] == "1"
    assert to_wire(object_usage("crontabs.example.com", {})) == {"count/crontabs.example.com": "1"}
    assert to_wire(object_usage("secrets", {})) == {"count/secrets": "1", "secrets": "1"}


def _expression(scope: str, operator: str, *values: str) -> Any:
    return {"scopeSelector": {"matchExpressions": [{"scopeName": scope, "operator": operator, "values": values}]}}


REQUESTS = {"requests": {"cpu": "1"}}
FAR = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "t", "namespaces": ["x"]}]}}
NEAR = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "t"}]}}


@pytest.mark.parametrize(
    ("quota", "inside", "outside"),
    [
        ({"scopes": ["Terminating"]}, pod(activeDeadlineSeconds=5), pod()),
        ({"scopes": ["NotTerminating"]}, pod(), pod(activeDeadlineSeconds=5)),
        ({"scopes": ["BestEffort"]}, pod(), pod(REQUESTS)),
        ({"scopes": ["NotBestEffort"]}, pod(REQUESTS), pod()),
        ({"scopes": ["BestEffort", "Terminating"]}, pod(activeDeadlineSeconds=5), pod()),
        (_expression("PriorityClass", "Exists"), pod(priorityClassName="a"), pod()),
        (_expression("PriorityClass", "In", "a", "b"), pod(priorityClassName="b"), pod(priorityClassName="c")),
        (_expression("PriorityClass", "NotIn", "a"), pod(priorityClassName="b"), pod(priorityClassName="a")),
        (_expression("PriorityClass", "DoesNotExist"), pod(), pod(priorityClassName="a")),
        (_expression("CrossNamespacePodAffinity", "Exists"), pod(affinity=FAR), pod(affinity=NEAR)),
    ],
)
def test_scopes(quota: Any, inside: Pod, outside: Pod) -> None:
    spec = convert(quota, ResourceQuotaSpec)
    assert selects_pod(spec, inside)
    assert not selects_pod(spec, outside)
    assert not selects_object(spec, "secrets", {})


def test_a_class_of_volume_attributes_selects_claims() -> None:
    spec = convert(_expression("VolumeAttributesClass", "In", "fast"), ResourceQuotaSpec)
    assert selects_object(spec, "persistentvolumeclaims", {"spec": {"volumeAttributesClassName": "fast"}})
    assert not selects_object(spec, "persistentvolumeclaims", {"spec": {}})
    assert selects_object(ResourceQuotaSpec(), "persistentvolumeclaims", {"spec": {}})


def test_limited_cpu_and_memory_must_be_stated() -> None:
    assert unstated_resources(pod(REQUESTS), ("pods", "limits.cpu", "requests.cpu", "memory")) == {
        "limits.cpu": ["c"],
        "memory": ["c"],
    }
