"""A real kubelet and containerd join `koord up`: pods of the embedded cluster run as containers of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.koord_up_process import koord_up_plane
from tools import nodeagent, realnode
from tools.nodeagent import PODS, Api, is_running, until
from tools.realnode import NODE, Node

pytestmark = [pytest.mark.real, pytest.mark.machine]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    reason = realnode.missing()
    if reason:
        pytest.skip(reason)
    with realnode.running(plane=koord_up_plane) as found:
        yield found


def test_koord_scheduler_binds_a_pod_to_it_and_its_container_runs_until_the_pod_is_deleted(node: Node) -> None:
    api = Api(node.plane)
    asked = nodeagent.pod("web", {"requests": {"cpu": "100m"}})
    del asked["spec"]["nodeName"]
    api.create(PODS, asked)
    until(lambda: is_running(api.get(f"{PODS}/web")), "the container runs", 60)
    found = api.seen(f"{PODS}/web")
    assert found["spec"]["nodeName"] == NODE
    container = found["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    assert container in node.ctr("containers", "list", "-q").split()
    api.delete(f"{PODS}/web")
    until(lambda: api.get(f"{PODS}/web") is None, "the pod is gone", 60)


def test_a_deployment_of_the_embedded_controllers_runs_and_scales_there(node: Node) -> None:
    api = Api(node.plane)
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    spec = nodeagent.pod("x")["spec"]
    del spec["nodeName"]
    labels = {"app": "web"}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    api.create(deployments, body)
    path = f"{deployments}/web"
    until(lambda: api.seen(path).get("status", {}).get("readyReplicas") == 2, "two replicas are ready", 60)
    api.merge(path, {"spec": {"replicas": 0}})
    until(lambda: not api.seen(PODS)["items"], "no pod is left", 60)
