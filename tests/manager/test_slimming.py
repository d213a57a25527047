"""What the manager keeps of pods and reports is all that it reads of them."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.builtin import PODS
from koord.api.config.gate_tables import MANAGER
from koord.api.config.gates import defaults
from koord.api.custom import NODE_METRICS
from koord.api.model import convert, encode
from koord.api.pod import Pod
from koord.api.pod_qos import pod_qos
from koord.api.pod_resources import pod_requests
from koord.api.slo import NodeMetric
from koord.manager.slimming import slim, slim_metric, slim_pod
from koord.manager.world import Settings, World
from tests.manager.manager_world import in_world


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
    full, kept = pod(), slim_pod(pod())
    assert pod_requests(kept.spec) == pod_requests(full.spec)
    assert pod_qos(kept) == pod_qos(full)
    assert kept.metadata.labels == full.metadata.labels
    assert kept.metadata.owner_references == full.metadata.owner_references
    assert kept.metadata.annotations == {"kept": "yes"}
    assert (kept.spec.priority, kept.spec.scheduler_name, kept.status.phase) == (9500, "koord-scheduler", "Running")
    assert len(encode(kept)) < len(encode(full)) / 2


def test_pods_of_one_make_share_their_containers() -> None:
    assert slim_pod(pod("a")).spec.containers is slim_pod(pod("b")).spec.containers


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
    kept = slim_metric(full)
    assert kept.status.node_metric is None
    assert kept.status.pods_metric == full.status.pods_metric
    assert kept.status.update_time == full.status.update_time


@pytest.mark.parametrize(("on", "whole"), [(False, False), (True, True)], ids=["gate-off", "gate-on"])
def test_the_profile_controller_gets_whole_pods(on: bool, whole: bool) -> None:
    async def check(world: World) -> None:
        slim(world.informers, Settings(gates={**defaults(MANAGER), "ColocationProfileController": on}))
        assert (world.informers.of(PODS).transform is None) == whole
        assert world.informers.of(NODE_METRICS).transform is not None

    in_world(check)
