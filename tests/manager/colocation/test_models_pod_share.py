"""A pod's share equals the scheduler's sum, and its classes decide whether it counts."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.model import convert
from koord.manager.colocation.models import ColocationPod, transform_pod

ONE = {"resources": {"requests": {"cpu": "1", "memory": "1G"}}}


def slim(spec: dict[str, Any], phase: str = "Running", **meta: Any) -> ColocationPod | None:
    body = {
        "metadata": {"namespace": "default", "name": "p", "uid": "u", "resourceVersion": "1", **meta},
        "spec": {"nodeName": "n1", **spec},
        "status": {"phase": phase},
    }
    return transform_pod(convert(body, ColocationPod))


@pytest.mark.parametrize(
    ("spec", "cpu_milli", "memory"),
    [
        pytest.param({"containers": [ONE, ONE]}, 2000, "2G", id="containers"),
        pytest.param(
            {"containers": [ONE], "initContainers": [{"restartPolicy": "Always", **ONE}]}, 2000, "2G", id="sidecar"
        ),
        pytest.param(
            {"containers": [ONE], "initContainers": [{"resources": {"requests": {"cpu": "3"}}}]},
            3000,
            "1G",
            id="large-init-container",
        ),
        pytest.param(
            {"containers": [ONE], "resources": {"requests": {"cpu": "5", "memory": "7G"}}}, 5000, "7G", id="pod-level"
        ),
        pytest.param({"containers": [ONE], "overhead": {"cpu": "100m"}}, 1100, "1G", id="overhead"),
        pytest.param({"containers": [{}]}, 0, "0", id="nothing-asked"),
    ],
)
def test_requests(spec: dict[str, Any], cpu_milli: int, memory: str) -> None:
    found = slim(spec)
    assert found is not None
    assert found.share is not None
    assert found.share.request.cpu.milli_value() == cpu_milli
    assert str(found.share.request.memory) == memory


@pytest.mark.parametrize(
    ("labels", "priority", "containers", "priority_class", "qos"),
    [
        pytest.param({}, None, [{}], "koord-batch", "BE", id="best-effort-counts-as-batch"),
        pytest.param({}, None, [ONE], "koord-prod", "LS", id="burstable-counts-as-prod"),
        pytest.param({"koordinator.sh/qosClass": "LSE"}, None, [ONE], "koord-prod", "LSE", id="stated-class"),
        pytest.param({}, 7500, [ONE], "koord-mid", "LS", id="priority"),
        pytest.param({"koordinator.sh/priority-class": "koord-free"}, 9500, [ONE], "koord-free", "LS", id="label-wins"),
        pytest.param({}, 0, [ONE], "koord-prod", "LS", id="priority-of-no-band"),
    ],
)
def test_classes(
    labels: dict[str, str], priority: int | None, containers: list[Any], priority_class: str, qos: str
) -> None:
    found = slim({"priority": priority, "containers": containers}, labels=labels)
    assert found is not None
    assert found.share is not None
    assert (found.share.priority_class, found.share.qos) == (priority_class, qos)


@pytest.mark.parametrize(
    ("spec", "phase", "held"),
    [
        pytest.param({}, "Running", True, id="running"),
        pytest.param({}, "Pending", True, id="placed-and-starting"),
        pytest.param({}, "Succeeded", False, id="done"),
        pytest.param({}, "Failed", False, id="failed"),
        pytest.param({"nodeName": ""}, "Pending", False, id="not-placed"),
    ],
)
def test_who_holds_anything(spec: dict[str, Any], phase: str, held: bool) -> None:
    assert (slim(spec, phase) is not None) is held


def test_nothing_else_is_kept() -> None:
    found = slim({"containers": [ONE]}, labels={"a": "b"}, annotations={"c": "d"})
    assert found is not None
    assert found.spec.containers == ()
    assert found.metadata.labels == {}
    assert found.metadata.annotations == {}
