"""What Koordinator's programs leave in a cluster that they run: a node, bound pods with their annotations, and one
object of each kind that they write.
"""

from __future__ import annotations

import json
import time
from typing import Any

Obj = dict[str, Any]

NODE = "node-a"
SPACE = "default"
GPU = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi", "koordinator.sh/gpu-memory-ratio": "100"}
AMOUNTS = {"cpu": "8", "memory": "64Gi", "pods": "110", **GPU}
_SLO, _SCHEDULING = "slo.koordinator.sh/v1alpha1", "scheduling.koordinator.sh/v1alpha1"
_USAGE = {"resources": {"cpu": "1", "memory": "2Gi"}}


def node() -> Obj:
    labels = {"node.koordinator.sh/gpu-vendor": "nvidia", "kubernetes.io/hostname": NODE}
    annotations = {"node.koordinator.sh/originExtendedAllocatable": '{"resources":{"kubernetes.io/batch-cpu":"5000"}}'}
    return {"metadata": {"name": NODE, "labels": labels, "annotations": annotations}}


def node_status() -> Obj:
    batch = {"kubernetes.io/batch-cpu": "5000", "kubernetes.io/batch-memory": "32Gi"}
    return {"status": {"capacity": {**AMOUNTS, **batch}, "allocatable": {**AMOUNTS, **batch}}}


def bound_pods() -> list[Obj]:
    """Return a service, a batch pod that a profile changed, and the holder of a part of the GPU."""
    held = {
        "koordinator.sh/gpu-core": "60",
        "koordinator.sh/gpu-memory": "9830Mi",
        "koordinator.sh/gpu-memory-ratio": "60",
    }
    batch = {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1Gi"}
    spec = {"containers": {"c": {"requests": batch, "limits": batch}}}
    return [
        pod(
            "service",
            {"cpu": "2", "memory": "4Gi"},
            "koord-prod",
            labels={"koordinator.sh/qosClass": "LSR"},
            annotations={"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-1"}'},
            node_name=NODE,
        ),
        pod(
            "batch",
            batch,
            "koord-batch",
            labels={"koordinator.sh/qosClass": "BE"},
            annotations={"node.koordinator.sh/extended-resource-spec": json.dumps(spec)},
            node_name=NODE,
        ),
        pod(
            "training",
            gpu_share(60),
            "koord-prod",
            annotations={
                "scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 0, "resources": held}]})
            },
            node_name=NODE,
        ),
    ]


def gpu_share(percent: int) -> Obj:
    return {"koordinator.sh/gpu-core": str(percent), "koordinator.sh/gpu-memory-ratio": str(percent)}


def pod(
    name: str,
    amounts: Obj,
    priority_class: str,
    *,
    labels: Obj | None = None,
    annotations: Obj | None = None,
    node_name: str = "",
) -> Obj:
    placed = {"nodeName": node_name} if node_name else {}
    return {
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {
            "containers": [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}],
            "priorityClassName": priority_class,
            "schedulerName": "koord-scheduler",
            **placed,
        },
    }


def custom_objects() -> list[Obj]:
    """Return one object of each kind; `status` is what its program wrote."""
    reported = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}}}
    return [
        {
            "apiVersion": _SLO,
            "kind": "NodeMetric",
            "metadata": {"name": NODE},
            "spec": {"metricCollectPolicy": {"aggregateDurationSeconds": 300, "reportIntervalSeconds": 60}},
            "status": {
                "updateTime": reported,
                "nodeMetric": {"nodeUsage": _USAGE, "systemUsage": _USAGE},
                "podsMetric": [{"name": "service", "namespace": SPACE, "podUsage": _USAGE}],
            },
        },
        {
            "apiVersion": _SLO,
            "kind": "NodeSLO",
            "metadata": {"name": NODE},
            "spec": {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 65}},
        },
        {
            "apiVersion": _SCHEDULING,
            "kind": "Device",
            "metadata": {"name": NODE, "labels": {"node.koordinator.sh/gpu-vendor": "nvidia"}},
            "spec": {
                "devices": [
                    {"type": "gpu", "id": "GPU-1", "minor": 0, "health": True, "resources": GPU},
                ]
            },
        },
        {
            "apiVersion": _SCHEDULING,
            "kind": "Reservation",
            "metadata": {"name": "held"},
            "spec": {
                "template": {"metadata": {"namespace": SPACE}, "spec": {"containers": [container]}},
                "owners": [{"labelSelector": {"matchLabels": {"app": "owner"}}}],
                "expires": "2100-01-02T03:04:05Z",
                "allocateOnce": True,
            },
            "status": {
                "phase": "Available",
                "nodeName": NODE,
                "allocatable": {"cpu": "4"},
                "conditions": [
                    {"type": kind, "status": "True", "reason": reason, "lastProbeTime": reported}
                    for kind, reason in (("Scheduled", "Scheduled"), ("Ready", "Available"))
                ],
            },
        },
        {
            "apiVersion": _SCHEDULING,
            "kind": "PodMigrationJob",
            "metadata": {"name": "moved", "annotations": {}},
            "spec": {"podRef": {"namespace": SPACE, "name": "gone"}, "mode": "EvictDirectly", "ttl": "0s"},
            "status": {"phase": "Succeeded", "status": "Complete", "podRef": {"namespace": SPACE, "name": "new"}},
        },
        {
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "kind": "ElasticQuota",
            "metadata": {
                "name": "team",
                "namespace": SPACE,
                "labels": {"quota.scheduling.koordinator.sh/is-parent": "false"},
                "annotations": {"quota.scheduling.koordinator.sh/shared-weight": '{"cpu":"4","memory":"8Gi"}'},
            },
            "spec": {"min": {"cpu": "1", "memory": "1Gi"}, "max": {"cpu": "4", "memory": "8Gi"}},
        },
        {
            "apiVersion": "config.koordinator.sh/v1alpha1",
            "kind": "ClusterColocationProfile",
            "metadata": {"name": "batch"},
            "spec": {
                "selector": {"matchLabels": {"app": "job"}},
                "qosClass": "BE",
                "priorityClassName": "koord-batch",
                "schedulerName": "koord-scheduler",
            },
        },
    ]
