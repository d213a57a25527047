"""A PodMeta is built correctly from a pod of the API."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.koordlet.inputs.pod_meta import PodMeta, build_pod_meta

GROUP = "kubepods.slice/kubepods-pod1.slice"


def seen(**changes: Any) -> PodMeta:
    raw: dict[str, Any] = {
        "metadata": {
            "uid": "1",
            "namespace": "ns",
            "name": "p",
            "labels": {"koordinator.sh/qosClass": "BE"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "priority": 5500,
            "containers": [
                {"name": "main", "resources": {"requests": {"kubernetes.io/batch-cpu": "1500"}, "limits": {"cpu": "2"}}}
            ],
            "initContainers": [
                {"name": "once", "resources": {}},
                {
                    "name": "sidecar",
                    "restartPolicy": "Always",
                    "resources": {"requests": {"kubernetes.io/batch-cpu": "500"}},
                },
            ],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "containerStatuses": [{"name": "main", "containerID": "containerd://a", "state": {"running": {}}}],
        },
    }
    for path, value in changes.items():
        part, _, name = path.partition("__")
        raw[part][name] = value
    return build_pod_meta(convert(raw, Pod), GROUP, {"containerd://a": f"{GROUP}/a"})


def test_amounts_classes_and_groups() -> None:
    pod = seen()
    assert (pod.uid, pod.full_name, pod.group, pod.created_s) == ("1", "ns/p", GROUP, 1_767_225_600.0)
    assert (pod.qos, pod.kube_qos, pod.priority_class, pod.priority_value) == ("BE", "Burstable", "koord-batch", 5500)
    assert pod.requests == {"kubernetes.io/batch-cpu": 2000}, "a sidecar counts, an init container does not stay"
    main, sidecar = pod.containers
    assert (main.id, main.group, main.running, main.limits) == ("containerd://a", f"{GROUP}/a", True, {"cpu": 2000})
    assert (sidecar.name, sidecar.id, sidecar.group, sidecar.running) == ("sidecar", "", "", False)
    assert [one.name for one in pod.init_containers] == ["once"]


def test_what_hooks_need_of_a_pod() -> None:
    pod = seen(
        spec__runtimeClassName="kata",
        spec__hostNetwork=True,
        spec__resources={"limits": {"cpu": "1"}},
        status__podIP="10.0.0.7",
    )
    assert (pod.runtime_class, pod.host_network, pod.ip, pod.pod_limits) == ("kata", True, "10.0.0.7", {"cpu": 1000})
    plain = seen()
    assert (plain.runtime_class, plain.host_network, plain.ip, plain.pod_limits) == ("", False, "", {})


@pytest.mark.parametrize(
    ("annotation", "cpus", "pinned"),
    [
        pytest.param('{"cpuset":"0-3"}', "0-3", True, id="cpus"),
        pytest.param('{"numaNodeResources":[{"node":0}]}', "", True, id="numa-node"),
        pytest.param('{"cpuset":"x"}', "", True, id="no-cpu-list"),
        pytest.param("{bad", "", False, id="unreadable"),
        pytest.param("{}", "", False, id="nothing"),
    ],
)
def test_what_the_scheduler_gave(annotation: str, cpus: str, pinned: bool) -> None:
    pod = seen(metadata__annotations={"scheduling.koordinator.sh/resource-status": annotation})
    assert (str(pod.cpuset), pod.is_pinned) == (cpus, pinned)


@pytest.mark.parametrize(
    ("changes", "alive", "terminating", "best_effort"),
    [
        pytest.param({}, True, False, True, id="running"),
        pytest.param({"status__phase": "Failed"}, False, False, True, id="over"),
        pytest.param({"metadata__deletionTimestamp": "2026-01-01T00:00:00Z"}, True, True, True, id="being-deleted"),
        pytest.param({"metadata__labels": {}}, True, False, False, id="by-kubernetes-alone"),
    ],
)
def test_states(changes: dict[str, Any], alive: bool, terminating: bool, best_effort: bool) -> None:
    pod = seen(**changes)
    assert (pod.is_alive, pod.terminating, pod.is_best_effort) == (alive, terminating, best_effort)
