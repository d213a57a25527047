"""What the manager keeps of pods and reports is all that it reads of them."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.gates import default_feature_gates
from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import pod_requests, recorded_qos_class
from koord.api.model import convert, encode
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.program import register_transforms, trim_node_metric, trim_pod
from koord.manager.reconcile_loop import ManagerContext, ManagerSettings
from tests.manager.manager_harness import run_with_context


def pod(name: str = "a") -> Pod:
    amounts = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    container = {
        "name": "main",
        "image": "example/app:1",
        "resources": amounts,
        "env": [{"name": f"SETTING_{i}", "value": "x" * 50} for i in range(10)],
        "readinessProbe": {"httpGet": {"path": "/", "port": 80}},
    }
    plain: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "work",
            "uid": f"u-{name}",
            "labels": {"app": "web"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}" * 200, "kept": "yes"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "r"}],
        },
        "spec": {
            "nodeName": "n1",
            "schedulerName": "koord-scheduler",
            "priority": 9500,
            "containers": [container],
            "initContainers": [{**container, "name": "side", "restartPolicy": "Always"}],
            "overhead": {"cpu": "100m"},
            "tolerations": [{"key": "a", "operator": "Exists"}],
        },
        "status": {"phase": "Running", "qosClass": "Burstable", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return convert(plain, Pod)


def test_a_slim_pod_asks_for_the_same_and_is_of_the_same_class() -> None:
    full, kept = pod(), trim_pod(pod())
    assert pod_requests(kept.spec) == pod_requests(full.spec)
    assert recorded_qos_class(kept) == recorded_qos_class(full)
    assert kept.metadata.labels == full.metadata.labels
    assert kept.metadata.owner_references == full.metadata.owner_references
    assert kept.metadata.annotations == {"kept": "yes"}
    assert (kept.spec.priority, kept.spec.scheduler_name, kept.status.phase) == (9500, "koord-scheduler", "Running")
    assert len(encode(kept)) < len(encode(full)) / 2


def test_pods_of_one_make_share_their_containers() -> None:
    assert trim_pod(pod("a")).spec.containers is trim_pod(pod("b")).spec.containers


def test_a_report_keeps_the_use_of_pods() -> None:
    usage = {"resources": {"cpu": "1"}}
    plain = {
        "metadata": {"name": "n1"},
        "status": {
            "updateTime": "2026-01-01T00:00:00Z",
            "nodeMetric": {"nodeUsage": usage},
            "podsMetric": [{"namespace": "work", "name": "a", "podUsage": usage}],
        },
    }
    full = convert(plain, NodeMetric)
    kept = trim_node_metric(full)
    assert kept.status.node_metric is None
    assert kept.status.pods_metric == full.status.pods_metric
    assert kept.status.update_time == full.status.update_time


@pytest.mark.parametrize(("on", "whole"), [(False, False), (True, True)], ids=["gate-off", "gate-on"])
def test_the_profile_controller_gets_whole_pods(on: bool, whole: bool) -> None:
    async def check(context: ManagerContext) -> None:
        register_transforms(
            context.informers,
            ManagerSettings(gates={**default_feature_gates(MANAGER_GATES), "ColocationProfileController": on}),
        )
        assert (context.informers.for_resource(PODS).transform is None) == whole
        assert context.informers.for_resource(NODE_METRICS).transform is not None

    run_with_context(check)
