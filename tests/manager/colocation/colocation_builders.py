"""Builders of nodes, pods and reports for the co-location tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from koord.api.config.slo.defaults import overlay
from koord.api.config.slo.slo_documents import (
    DEFAULT_COLOCATION,
    DEFAULT_CPU_NORMALIZATION,
    DEFAULT_RESOURCE_AMPLIFICATION,
    ColocationStrategy,
)
from koord.api.model import convert
from koord.manager.colocation.decision import (
    ColocationDecision,
    ColocationNodeView,
    ColocationSettings,
    decide_colocation,
)
from koord.manager.colocation.models import (
    ColocationDevice,
    ColocationNode,
    ColocationNodeMetric,
    ColocationPod,
    ColocationTopology,
    PodShare,
    pod_share_of,
)
from koord.manager.colocation.strategy import LayeredStrategy

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CAPACITY = {"cpu": "100", "memory": "120G"}


def node(
    capacity: dict[str, Any] = CAPACITY,
    allocatable: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> ColocationNode:
    return convert(
        {
            "metadata": {
                "name": "n1",
                "uid": "u1",
                "labels": labels or {},
                "annotations": {"a": "b"} if annotations is None else annotations,
            },
            "status": {"capacity": capacity, "allocatable": capacity if allocatable is None else allocatable},
        },
        ColocationNode,
    )


def pod(
    name: str,
    qos: str = "",
    *requests: dict[str, Any],
    priority: int | None = None,
    zone: str = "",
    limits: bool = False,
) -> PodShare:
    """Build a pod with one container per given request."""
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    annotations = {"scheduling.koordinator.sh/resource-status": zone} if zone else {}
    containers = [{"resources": {"requests": asked, "limits": asked if limits else {}}} for asked in requests]
    return pod_share_of(
        convert(
            {
                "metadata": {"namespace": "default", "name": name, "labels": labels, "annotations": annotations},
                "spec": {"nodeName": "n1", "priority": priority, "containers": containers},
                "status": {"phase": "Running"},
            },
            ColocationPod,
        )
    )


def used(cpu: Any, memory: Any) -> dict[str, Any]:
    return {"resources": {"cpu": cpu, "memory": memory}}


def sample(name: str, cpu: Any, memory: Any, priority: str = "") -> dict[str, Any]:
    return {"namespace": "default", "name": name, "podUsage": used(cpu, memory), "priority": priority}


def metric(
    *pods: dict[str, Any],
    system: dict[str, Any] | None = None,
    usage: dict[str, Any] | None = None,
    age_s: float = 0,
    applications: list[dict[str, Any]] | None = None,
    reclaimable: dict[str, Any] | None = None,
    **status: Any,
) -> ColocationNodeMetric:
    at = (NOW - timedelta(seconds=age_s)).isoformat()
    report = {
        "updateTime": at,
        "nodeMetric": {"nodeUsage": usage or used("50", "55G"), "systemUsage": system or used("7", "12G")},
        "podsMetric": list(pods),
        "hostApplicationMetric": applications or [],
    }
    if reclaimable is not None:
        report["prodReclaimableMetric"] = {"resource": reclaimable}
    return convert({"metadata": {"name": "n1"}, "status": {**report, **status}}, ColocationNodeMetric)


def topology(*zones: dict[str, Any], annotations: dict[str, str] | None = None) -> ColocationTopology:
    made = [
        {
            "name": f"node-{i}",
            "type": "Node",
            "resources": [{"name": n, "capacity": v, "allocatable": v, "available": v} for n, v in zone.items()],
        }
        for i, zone in enumerate(zones)
    ]
    return convert({"metadata": {"name": "n1", "annotations": annotations or {}}, "zones": made}, ColocationTopology)


def device(*infos: dict[str, Any], labels: dict[str, str] | None = None) -> ColocationDevice:
    return convert(
        {"metadata": {"name": "n1", "labels": labels or {}}, "spec": {"devices": list(infos)}}, ColocationDevice
    )


def colocation(**fields: Any) -> ColocationStrategy:
    return overlay(DEFAULT_COLOCATION, ColocationStrategy(**{"enable": True, **fields}))


def settings(strategy: ColocationStrategy | None = None, **given: Any) -> ColocationSettings:
    made: dict[str, Any] = {
        "colocation": LayeredStrategy(cluster=strategy or colocation()),
        "normalization": LayeredStrategy(cluster=DEFAULT_CPU_NORMALIZATION),
        "amplification": LayeredStrategy(cluster=DEFAULT_RESOURCE_AMPLIFICATION),
    }
    return ColocationSettings(**{**made, **given})


def decided(
    strategy: ColocationStrategy | None = None,
    of: ColocationNode | None = None,
    report: ColocationNodeMetric | None = None,
    pods: tuple[PodShare, ...] = (),
    **seen: Any,
) -> ColocationDecision:
    view = ColocationNodeView(now=NOW, node=of or node(), metric=report, pods=pods, **seen)
    return decide_colocation(view, settings(strategy))
