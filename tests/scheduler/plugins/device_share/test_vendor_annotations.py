"""What vendors' device plugins read from a pod, and the lock by which some of them take one pod of a node at a time."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.protocol import A_CAMBRICON_LOCK, L_GPU_ISOLATION_PROVIDER, L_GPU_VENDOR
from koord.scheduler.framework.verdict import Fault, PodPatch, PreBindActions
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.plugins.device_share.device_builders import device, gpu, place
from tests.scheduler.plugins.device_share.device_cluster import NOW, DeviceCluster, asking, named

SHARE: dict[str, int | str] = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory": "4Gi"}


def vendor(name: str) -> DeviceCluster:
    cards = [gpu(m, place(0, str(m))) for m in range(2)]
    return DeviceCluster(named(device(*cards, labels={L_GPU_VENDOR: name}), "n0"), adapts=True)


def test_every_pod_tells_its_cards_and_when() -> None:
    world = vendor("nvidia")
    pod = asking("p", SHARE, labels={L_GPU_ISOLATION_PROVIDER: "HAMi-core"})
    world.state.set_node(make_node("n0", labels={L_GPU_ISOLATION_PROVIDER: "HAMi-core"}))
    assert world.reserve(pod) == ""
    mark = world.mark(pod)
    assert isinstance(mark, PodPatch)
    assert mark.annotations["scheduling.koordinator.sh/gpu-minors"] == "0"
    assert mark.annotations["scheduling.koordinator.sh/bind-timestamp"] == str(int(NOW * 1e9))
    assert mark.labels == {"hami.io/vgpu-node": "n0"}


def test_a_locked_vendor_is_locked_with_the_write() -> None:
    world = vendor("cambricon")
    pod = asking("p", SHARE)
    assert world.reserve(pod) == ""
    work = world.mark(pod)
    assert isinstance(work, PreBindActions)
    (write,) = work.writes
    assert write.patch["metadata"]["annotations"] == {A_CAMBRICON_LOCK: "2026-01-01T00:00:00Z,default,p"}
    assert "resourceVersion" in write.patch["metadata"]
    assert work.pod_patch is not None
    assert work.pod_patch.annotations["CAMBRICON_DSMLU_PROFILE"] == "0_50_16"


@pytest.mark.parametrize(
    ("lock", "holder", "said"),
    [
        ("2025-12-31T23:59:00Z,default,other", True, 'failed to lock node: node "n0" has been locked'),
        ("2025-12-31T23:59:00Z,default,other", False, ""),
        ("2025-12-31T23:50:00Z,default,other", True, ""),
        ("2025-12-31T23:59:00Z,default,p", True, ""),
        ("nonsense", True, 'invalid node lock value "nonsense"'),
    ],
    ids=["held", "holder-gone", "too-old", "my-own", "unreadable"],
)
def test_whose_lock_it_is(lock: str, holder: bool, said: str) -> None:
    world = vendor("cambricon")
    world.state.set_node(make_node("n0", annotations={A_CAMBRICON_LOCK: lock}))
    if holder:
        world.lister_of("Pod").put(make_pod("other"))
    pod = asking("p", SHARE)
    assert world.reserve(pod) == ""
    work: Any = world.mark(pod)
    assert (work.message if isinstance(work, Fault) else "") == said
    world.undo(pod)
    assert list(world.book.iter_allocations()) == []


def test_what_a_vendor_cannot_serve_is_said() -> None:
    world = vendor("cambricon")
    pod = asking("p", {"koordinator.sh/gpu": 200})
    assert world.reserve(pod) == ""
    said = "multiple gpu share is not supported on device side"
    assert world.mark(pod) == Fault(f'failed to adapt for GPU device plugin of vendor "cambricon": {said}')
