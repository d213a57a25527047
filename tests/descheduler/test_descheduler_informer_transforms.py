"""Cut pods and reports: every decision about them is as it was."""

from __future__ import annotations

from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import pod_requests
from koord.api.model import convert, to_dict
from koord.descheduler.framework.pod_selection import pod_rank
from koord.descheduler.snapshot_source import trim_node_metric, trim_pod

WHOLE = {
    "metadata": {
        "name": "a",
        "namespace": "x",
        "uid": "u",
        "labels": {"app": "w", "koordinator.sh/qosClass": "LS"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "kept": "1"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "w", "uid": "o", "controller": True}],
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {
        "nodeName": "n",
        "schedulerName": "koord-scheduler",
        "priority": 9500,
        "containers": [
            {
                "name": "c",
                "image": "i",
                "command": ["run"],
                "env": [{"name": "A", "value": "B"}],
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
            }
        ],
        "initContainers": [
            {"name": "s", "image": "j", "restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}}
        ],
        "overhead": {"cpu": "50m"},
        "volumes": [
            {"name": "token-1", "projected": {}},
            {"name": "h", "hostPath": {"path": "/x"}},
            {"name": "e", "emptyDir": {}},
            {"name": "p", "persistentVolumeClaim": {"claimName": "c"}},
        ],
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "k"}]}},
        "topologySpreadConstraints": [{"topologyKey": "z", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
        "resourceClaims": [{"name": "r"}],
    },
    "status": {
        "phase": "Running",
        "reason": "Evicted",
        "qosClass": "Burstable",
        "startTime": "2026-01-01T00:00:00Z",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {"name": "c", "restartCount": 3, "imageID": "x", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        ],
    },
}


def test_what_decisions_look_at_is_kept() -> None:
    whole = convert(WHOLE, Pod)
    slim = trim_pod(whole)
    assert pod_rank(slim) == pod_rank(whole)
    assert pod_requests(slim.spec, slim.status) == pod_requests(whole.spec, whole.status)
    for field in ("affinity", "tolerations", "node_selector", "topology_spread_constraints", "resource_claims"):
        assert getattr(slim.spec, field) == getattr(whole.spec, field)
    for field in ("phase", "reason", "conditions", "start_time", "qos_class"):
        assert getattr(slim.status, field) == getattr(whole.status, field)
    assert [c.image for c in slim.spec.containers] == ["i"]
    assert [(s.restart_count, s.state) for s in slim.status.container_statuses] == [
        (s.restart_count, s.state) for s in whole.status.container_statuses
    ]
    assert [bool(v.host_path) for v in slim.spec.volumes] == [True, False, False]
    assert slim.spec.volumes[2].persistent_volume_claim == whole.spec.volumes[3].persistent_volume_claim
    assert slim.metadata.owner_references == whole.metadata.owner_references
    assert slim.metadata.annotations == {"kept": "1"}
    assert (slim.spec.node_name, slim.metadata.uid) == ("n", "u")


def test_what_nobody_looks_at_is_gone_and_the_rest_is_shared() -> None:
    one = trim_pod(convert(WHOLE, Pod))
    other = trim_pod(convert({**WHOLE, "metadata": {**WHOLE["metadata"], "name": "b", "uid": "v"}}, Pod))  # type: ignore[dict-item]
    assert "env" not in str(to_dict(one))
    assert not one.status.pod_ip
    assert one.spec.containers[0] is other.spec.containers[0]
    assert one.metadata.labels is other.metadata.labels


def test_reports_keep_what_pods_and_the_system_use() -> None:
    report = {
        "metadata": {"name": "n"},
        "status": {
            "updateTime": "2026-01-01T00:00:00Z",
            "nodeMetric": {
                "nodeUsage": {"resources": {"cpu": "2"}},
                "systemUsage": {"resources": {"cpu": "1"}},
                "aggregatedNodeUsages": [{"usage": {"p95": {"resources": {"cpu": "3"}}}, "duration": "5m"}],
            },
            "podsMetric": [{"name": "a", "namespace": "x", "podUsage": {"resources": {"cpu": "1"}}}],
        },
    }
    whole = convert(report, NodeMetric)
    slim = trim_node_metric(whole)
    assert slim.status.pods_metric == whole.status.pods_metric
    assert slim.status.update_time == whole.status.update_time
    assert slim.status.node_metric is not None
    assert whole.status.node_metric is not None
    assert slim.status.node_metric.system_usage == whole.status.node_metric.system_usage
    assert slim.status.node_metric.aggregated_node_usages == ()
