"""Pod resources of a real kubelet through koordlet: exporters and network plugins see the devices of pods."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from koord.wire import pod_resources
from koord.wire.pod_resources import ContainerDevices
from koord.wire.raw_fields import encode_string
from tests.real.real_node import Site, known
from tools import nodeagent, realnode
from tools.nodeagent import GATES, PODS, pod, until

pytest.importorskip("grpc", reason="gRPC is not installed")

from tests.real.pod_resources_reader import PodResourcesReader, devices

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real-node")]

ALLOCATED = {
    "gpu": [{"minor": 0, "id": "GPU-0", "resources": {"koordinator.sh/gpu-core": "50"}}],
    "rdma": [{"minor": 1, "id": "0000:01:00.0", "extension": {"vfs": [{"minor": -1, "busID": "0000:01:00.2"}]}}],
}
ADDED = [
    ContainerDevices(resource_name="koordinator.sh/rdma", device_ids=("0000:01:00.2",)),
    ContainerDevices(resource_name="nvidia.com/gpu", device_ids=("GPU-0",)),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    reason = realnode.missing()
    if reason:
        pytest.skip(reason)
    with realnode.running() as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        site = Site(node, tree, tmp_path_factory.mktemp("pod-resources"))
        nodeagent.install(site.api)
        yield site


def test_a_pod_has_its_devices_from_the_moment_that_the_kubelet_lists_it(site: Site) -> None:
    folder = site.node.folder / "pr"
    given = pod("given", annotations={"scheduling.koordinator.sh/device-allocated": json.dumps(ALLOCATED)})
    gates = f"{GATES},PodResourcesProxy=true"
    flag = f"--pod-resources-proxy-path={folder}"
    kubelet = PodResourcesReader(site.node.kubelet_root / "pod-resources" / "kubelet.sock")
    proxy = PodResourcesReader(folder / "kubelet.sock")
    site.run(pod("plain"))
    with nodeagent.running(site.node, site.folder / "agent", flag, gates=gates) as agent:
        until(lambda: known(agent).get("podResources") == "served", "pod resources are served")
        until(lambda: known(agent).get("podsFrom") == "kubelet", "the kubelet tells its pods")
        site.api.create(PODS, given)
        until(lambda: "given" in kubelet.pods(), "the kubelet lists the pod")
        assert devices(proxy.pods()["given"]) == ADDED
        assert proxy.pods()["plain"] == kubelet.pods()["plain"], "every byte of the others is the kubelet's"
        assert proxy.call(pod_resources.ALLOCATABLE) == kubelet.call(pod_resources.ALLOCATABLE)
        one = encode_string(1, "given") + encode_string(2, "default")
        assert devices(proxy.pods(pod_resources.GET, one)["given"]) == ADDED
        assert "Traceback" not in agent.log()
    for reader in (kubelet, proxy):
        reader.close()
    assert not (folder / "kubelet.sock").exists()
