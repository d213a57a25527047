"""Devices on a real node: a real kubelet's pod resources through koordlet, and the health of cards in the Device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from koord.wire import pod_resources
from koord.wire.pod_resources import ContainerDevices
from koord.wire.raw_fields import encode_string
from tests.host.nvml_stub import NvmlStub
from tests.real.real_node import Site, known
from tools import nodeagent, realnode
from tools.nodeagent import GATES, PODS, Agent, pod, until

pytest.importorskip("grpc", reason="gRPC is not installed")

from tests.real.pod_resources_reader import PodResourcesReader, devices

pytestmark = [pytest.mark.real, pytest.mark.machine]

DEVICE = "/apis/scheduling.koordinator.sh/v1alpha1/devices/node1"
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


@pytest.fixture(scope="module")
def agent(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """koordlet on a machine with two cards, whose driver follows the lines of a file."""
    stub = NvmlStub(tmp_path_factory.mktemp("nvml"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(Path(stub.path).parent))
        patch.setenv("NVML_STUB_COMMANDS", str(site.folder / "commands"))
        flag, gates = f"--pod-resources-proxy-path={site.node.folder / 'pr'}", f"{GATES},PodResourcesProxy=true"
        with nodeagent.running(site.node, site.folder / "agent", flag, gates=gates) as agent:
            until(lambda: known(agent).get("podResources") == "served", "pod resources are served")
            until(lambda: known(agent).get("podsFrom") == "kubelet", "the kubelet tells its pods")
            yield agent
            assert "Traceback" not in agent.log()
    assert not (site.node.folder / "pr/kubelet.sock").exists()


def test_a_pod_has_its_devices_from_the_moment_that_the_kubelet_lists_it(site: Site, agent: Agent) -> None:
    kubelet = PodResourcesReader(site.node.kubelet_root / "pod-resources/kubelet.sock")
    proxy = PodResourcesReader(site.node.folder / "pr/kubelet.sock")
    site.run(pod("plain"))
    given = pod("given", annotations={"scheduling.koordinator.sh/device-allocated": json.dumps(ALLOCATED)})
    site.api.create(PODS, given)
    until(lambda: "given" in kubelet.pods(), "the kubelet lists the pod")
    assert devices(proxy.pods()["given"]) == ADDED
    assert proxy.pods()["plain"] == kubelet.pods()["plain"], "every byte of the others is the kubelet's"
    assert proxy.call(pod_resources.ALLOCATABLE) == kubelet.call(pod_resources.ALLOCATABLE)
    one = encode_string(1, "given") + encode_string(2, "default")
    assert devices(proxy.pods(pod_resources.GET, one)["given"]) == ADDED
    for reader in (kubelet, proxy):
        reader.close()


def health(site: Site) -> dict[str, str]:
    """Return the reason of each card's condition, as the API server has it; `health` says the same."""
    found = site.api.get(DEVICE) or {"spec": {}}
    reasons: dict[str, str] = {}
    for card in found["spec"].get("devices") or ():
        (condition,) = card["conditions"]
        assert card["health"] is (condition["status"] == "True")
        reasons[card["id"]] = condition["reason"]
    return reasons


def test_errors_of_cards_reach_the_device_and_leave_it(site: Site, agent: Agent) -> None:
    healthy = "DeviceHealthy"
    until(lambda: health(site) == {"GPU-0": healthy, "GPU-1": healthy}, "both cards work")
    commands = site.folder / "commands"
    commands.write_text("event 1 8 79\nrows 0 1 0\n")
    until(lambda: health(site) == {"GPU-0": "RowRemapPending", "GPU-1": "Xid79"}, "neither works")
    with commands.open("a") as more:
        more.write("rows 0 0 0\n")
    until(lambda: health(site) == {"GPU-0": healthy, "GPU-1": "Xid79"}, "one works again")
    labels = site.api.seen(DEVICE)["metadata"]["labels"]
    assert labels["node.koordinator.sh/gpu-model"] == "A100-80GB"
    assert labels["node.koordinator.sh/gpu-driver-version"] == "550.54"
