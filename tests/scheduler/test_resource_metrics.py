"""/metrics/resources has the lines that kube-scheduler serves for the same pods."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.model import convert
from koord.scheduler.cache.pod_info import PodShapes
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.resource_metrics import render_resource_metrics


def pod(**spec: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": "2", "example.com/gpu": "1"}}
    made = {"schedulerName": "s", "containers": [{"name": "c", "resources": resources}], **spec}
    return {"metadata": {"namespace": "ns", "name": "p"}, "spec": made}


async def lines(*pods: dict[str, Any]) -> list[str]:
    text = (await render_resource_metrics([convert(one, Pod) for one in pods])).decode()
    return [line for line in text.splitlines() if line[0] != "#"]


async def test_amounts_have_units() -> None:
    labels = 'namespace="ns",node="n",pod="p",priority="7"'
    assert await lines(pod(nodeName="n", priority=7)) == [
        f'kube_pod_resource_limit{{{labels},resource="cpu",scheduler="s",unit="cores"}} 2',
        f'kube_pod_resource_limit{{{labels},resource="example.com/gpu",scheduler="s",unit=""}} 1',
        f'kube_pod_resource_request{{{labels},resource="cpu",scheduler="s",unit="cores"}} 1.5',
        f'kube_pod_resource_request{{{labels},resource="memory",scheduler="s",unit="bytes"}} 1.073741824e+09',
    ]


@pytest.mark.parametrize(
    ("node", "phase", "count"),
    [
        pytest.param("n", "Running", 4, id="running"),
        pytest.param("n", "Succeeded", 0, id="ended"),
        pytest.param("", "Failed", 4, id="never-placed"),
    ],
)
async def test_pods_that_ended_are_left_out(node: str, phase: str, count: int) -> None:
    assert len(await lines(pod(nodeName=node) | {"status": {"phase": phase}})) == count


async def test_pods_of_one_shape_are_computed_once_and_a_resized_one_for_itself() -> None:
    shapes = PodShapes()
    plain = [shapes.intern(convert(pod(nodeName=f"n{i}"), Pod)) for i in range(300)]
    running = {"name": "c", "resources": {"requests": {"cpu": "3"}}}
    resized = shapes.intern(convert(pod(nodeName="big") | {"status": {"containerStatuses": [running]}}, Pod))
    text = (await render_resource_metrics([*plain, resized])).decode()
    assert text.count('resource="cpu",scheduler="s",unit="cores"} 1.5') == 300
    assert 'node="big",pod="p",priority="",resource="cpu",scheduler="s",unit="cores"} 3' in text
