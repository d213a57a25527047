"""What containers use of their shares of GPUs: by HAMi-core's region, by NVML, and what is wrong with either."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from koord.host.filesystem import Host, HostPaths
from koord.host.hardware import GpuCard
from koord.koordlet.gpu_shares import GpuShares, GpuShareStatus, MpsDaemonStatus
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from tests.gpu.test_hami_region import RegionFile

GIB = 1 << 30
CARD = GpuCard(uuid="GPU-0", minor=0, total_bytes=16 * GIB, address="0000:01:00.0", model="m")
HALF = {
    "koordinator.sh/gpu-core": "50",
    "koordinator.sh/gpu-memory": "8Gi",
    "koordinator.sh/gpu-memory-ratio": "50",
}


def sharing_pod(provider: str, resources: dict[str, str] | None = None, **changes: Any) -> PodMeta:
    allocated = json.dumps({"gpu": [{"minor": 0, "resources": HALF if resources is None else resources}]})
    known: dict[str, Any] = {
        "uid": "u",
        "name": "p",
        "labels": {"koordinator.sh/gpu-isolation-provider": provider} if provider else {},
        "annotations": {"scheduling.koordinator.sh/device-allocated": allocated},
        "containers": (ContainerMeta(name="c", id="c1", running=True),),
    }
    return PodMeta(**(known | changes))


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = SeriesStore({})
        self.daemons: Sequence[MpsDaemonStatus] = ()
        self.pods: list[PodMeta] = []
        self.host = Host(HostPaths(proc=str(root / "proc")))
        (root / "proc" / "70").mkdir(parents=True)
        self.shares = GpuShares(
            self.host, self.store, lambda: 10.0, lambda: self.pods, lambda: [CARD], lambda: self.daemons, str(root)
        )

    def region(self, region: RegionFile) -> None:
        folder = self.root / "u_c"
        folder.mkdir(exist_ok=True)
        (folder / "u_c.cache").write_bytes(region.data)

    def share(self, pod: PodMeta) -> GpuShareStatus:
        self.pods = [pod]
        (found,) = self.shares.shares()
        return found


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_usage_is_that_of_the_region(node: Node) -> None:
    region = RegionFile(limit=8 * GIB, cores=50)
    region.process(7, 3 * GIB, 40, host_pid=70)
    region.process(8, 2 * GIB, 40, host_pid=80)  # gone
    node.region(region)
    found = node.share(sharing_pod("HAMi-core"))
    assert (found.memory_used_bytes, found.core_used_percent, found.problem) == (3 * GIB, 40, "")
    assert (found.memory_limit_bytes, found.core_limit_percent) == (8 * GIB, 50)


def test_usage_is_nvmls_elsewhere(node: Node) -> None:
    node.store.add((metric_kind.CONTAINER_GPU_MEMORY, "c1", "0", "GPU-0"), 9.0, 2.0 * GIB)
    node.store.add((metric_kind.CONTAINER_GPU_CORE, "c1", "0", "GPU-0"), 9.0, 25.0)
    for provider in ("MPS", "HAMi-core"):  # whose program has not started CUDA yet
        found = node.share(sharing_pod(provider))
        assert (found.memory_used_bytes, found.core_used_percent, found.problem) == (2 * GIB, 25, "")


def test_a_whole_card_has_no_limits(node: Node) -> None:
    whole = HALF | {"koordinator.sh/gpu-memory-ratio": "100"}
    found = node.share(sharing_pod("", whole))
    assert (found.memory_limit_bytes, found.core_limit_percent, found.problem) == (None, None, "")


def test_what_is_wrong_with_a_region_is_told(node: Node) -> None:
    other = RegionFile(limit=4 * GIB, cores=50)
    node.region(other)
    assert "limits memory to 4294967296 bytes" in node.share(sharing_pod("HAMi-core")).problem
    lost = RegionFile(limit=8 * GIB, cores=50)
    lost.process(7, GIB)
    node.region(lost)
    assert "has not found process 7 on the host" in node.share(sharing_pod("HAMi-core")).problem
    wrapped = RegionFile(limit=8 * GIB, cores=50)
    wrapped.process(7, 2**64 - 1, host_pid=70)
    node.region(wrapped)
    found = node.share(sharing_pod("HAMi-core"))
    assert "below zero" in found.problem
    assert found.memory_used_bytes == 0
    (node.root / "u_c" / "u_c.cache").write_bytes(b"short")
    assert "5 bytes are no region" in node.share(sharing_pod("HAMi-core")).problem


def test_a_share_that_nobody_enforces_is_told(node: Node) -> None:
    assert node.share(sharing_pod("")).problem == "nobody enforces this share"
    missing = {"koordinator.sh/gpu-core": "50"}
    assert "gpu-memory-ratio" in node.share(sharing_pod("MPS", missing)).problem


def test_containers_and_pods_that_ended_have_none(node: Node) -> None:
    stopped = ContainerMeta(name="c", id="c1", running=False)
    broken = {"scheduling.koordinator.sh/device-allocated": "{"}
    node.pods = [
        sharing_pod("MPS", phase="Succeeded"),
        sharing_pod("MPS", containers=(stopped,)),
        sharing_pod("MPS", annotations={}),
        sharing_pod("MPS", annotations=broken),
    ]
    assert list(node.shares.shares()) == []


def test_metrics_and_status_tell_the_same(node: Node) -> None:
    node.daemons = [
        MpsDaemonStatus(minor=0, uuid="GPU-0", problem="it died", starts=2, servers=(), since_s=1.0),
    ]
    node.pods = [sharing_pod("MPS")]
    node.store.add((metric_kind.CONTAINER_GPU_MEMORY, "c1", "0", "GPU-0"), 9.0, 5.0)
    node.store.add((metric_kind.NODE_GPU_MEMORY, "0", "GPU-0"), 9.0, 7.0)
    told = {one.name: dict(one.values) for one in node.shares.readings("n")}
    labels = ("n", "default", "p", "u", "c", "0", "MPS")
    assert told["koordlet_gpu_share_memory_limit_bytes"] == {labels: 8.0 * GIB}
    assert told["koordlet_gpu_share_memory_used_bytes"] == {labels: 5.0}
    assert told["koordlet_gpu_share_core_limit_percent"] == {labels: 50.0}
    assert "koordlet_gpu_share_core_used_percent" not in told
    assert told["koordlet_gpu_mps_daemon_up"] == {("n", "0", "GPU-0"): 0.0}
    status = node.shares.status()
    assert (status.cards[0].memory_used_bytes, status.cards[0].core_used_percent) == (7, None)
    assert status.daemons == tuple(node.daemons)
