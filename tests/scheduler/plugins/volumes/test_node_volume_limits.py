"""How many volumes of a driver a node can have attached."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import VOLUME_ATTACHMENTS
from koord.api.kubernetes.meta import Object
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.verdict import SKIP
from koord.scheduler.plugins.volumes.node_volume_limits import NodeVolumeLimits
from tests.scheduler.builders import make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.volumes.volume_objects import (
    ObjectHandle,
    make_attachment,
    make_claim,
    make_class,
    make_csi_node,
    make_volume,
    said,
    told,
    volumes,
)

DRIVER = "disks.example.com"
FULL = {"n0": "node(s) exceed max volume count"}


def bound(*names: str, driver: str = DRIVER) -> list[Object]:
    """Claims with a volume each."""
    pairs = [(make_claim(name, volume=f"pv-{name}"), make_volume(f"pv-{name}", driver=driver)) for name in names]
    return [each for pair in pairs for each in pair]


def room(limit: int | None = 2) -> Object:
    return make_csi_node("n0", disks_example_com=limit)


def cluster(*held: str) -> ClusterState:
    """One node with a pod per claim on it."""
    pods = [make_pod(f"on-{i}", node="n0", volumes=volumes(name)) for i, name in enumerate(held)]
    return make_state([make_node("n0")], pods)


@pytest.mark.parametrize(
    ("held", "wanted", "limit", "fits"),
    [
        pytest.param(["a"], ["b"], 2, True, id="room for one more"),
        pytest.param(["a", "b"], ["c"], 2, False, id="full"),
        pytest.param(["a"], ["b", "c"], 2, False, id="two do not fit where one would"),
        pytest.param(["a", "b"], ["b"], 2, True, id="already attached"),
        pytest.param(["a", "a"], ["b"], 2, True, id="a volume of two pods counts once"),
        pytest.param(["gone", "a"], ["b"], 2, True, id="a claim that is gone counts for nothing"),
        pytest.param(["a", "b"], ["c"], None, True, id="no limit"),
        pytest.param([], ["a"], 0, False, id="none at all"),
    ],
)
def test_counting(held: list[str], wanted: list[str], limit: int | None, fits: bool) -> None:
    state = cluster(*held)
    plugin = NodeVolumeLimits(ObjectHandle(state, room(limit), *bound("a", "b", "c")))
    assert said(state, plugin, make_pod(volumes=volumes(*wanted))) == ({} if fits else FULL)


def test_node_that_no_driver_has_reported_takes_any_number() -> None:
    state = cluster("a", "b")
    assert (
        said(state, NodeVolumeLimits(ObjectHandle(state, *bound("a", "b", "c"))), make_pod(volumes=volumes("c"))) == {}
    )


def test_other_drivers_and_other_kinds_of_volumes_are_not_counted() -> None:
    state = cluster("a", "b")
    plain = [make_claim("b", volume="pv-b"), make_volume("pv-b", hostPath={"path": "/b"})]
    handle = ObjectHandle(state, room(1), *bound("a", driver="other.example.com"), *plain, *bound("c"))
    assert said(state, NodeVolumeLimits(handle), make_pod(volumes=volumes("c"))) == {}


def test_volumes_to_be_made_count_for_the_driver_of_their_class() -> None:
    state = cluster("a", "b")
    waiting = [make_claim(name, storage_class="slow") for name in ("a", "b", "c")]
    handle = ObjectHandle(state, room(2), make_class("slow", provisioner=DRIVER), *waiting)
    plugin = NodeVolumeLimits(handle)
    assert said(state, plugin, make_pod(volumes=volumes("c"))) == FULL
    assert said(state, plugin, make_pod(volumes=volumes("b"))) == {}


def test_attachments_count_once_with_the_pods_that_need_them() -> None:
    state = cluster("a")
    handle = ObjectHandle(state, room(2), *bound("a", "b", "c"))
    engine = SchedulingEngine(profile_of([NodeVolumeLimits(handle)]), state)
    pod = make_pod(volumes=volumes("c"))
    handle.put(make_attachment("va-a", node="n0", volume="pv-a", driver=DRIVER))
    handle.put(make_attachment("elsewhere", node="n1", volume="pv-b", driver=DRIVER))
    assert told(engine, state, pod) == {}
    handle.put(make_attachment("va-b", node="n0", volume="pv-b", driver=DRIVER))
    assert told(engine, state, pod) == FULL
    handle.drop(VOLUME_ATTACHMENTS, "va-b")
    assert told(engine, state, pod) == {}


def test_kept_verdicts_follow_pods_claims_and_limits() -> None:
    state = cluster("a")
    handle = ObjectHandle(state, room(2), *bound("a", "b", "c"))
    engine = SchedulingEngine(profile_of([NodeVolumeLimits(handle)]), state)
    pod = make_pod(volumes=volumes("c"))
    assert told(engine, state, pod) == {}
    state.set_pod(make_pod("late", node="n0", volumes=volumes("b")))
    assert told(engine, state, pod) == FULL
    handle.put(room(3))
    assert told(engine, state, pod) == {}
    handle.put(room(2), make_claim("b", volume="pv-a"))
    assert told(engine, state, pod) == {}


def test_ephemeral_volumes_count_and_must_be_the_pods_own() -> None:
    state = cluster("a")
    pod = make_pod("p0", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}])
    handle = ObjectHandle(state, room(1), *bound("a"), make_class("slow", provisioner=DRIVER))
    missing = 'looking up PVC default/p0-scratch: persistentvolumeclaim "p0-scratch" not found'
    assert said(state, NodeVolumeLimits(handle), pod) == {"n0": missing}
    handle.put(make_claim("p0-scratch", storage_class="slow", owner="another"))
    foreign = "PVC default/p0-scratch was not created for pod default/p0 (pod is not owner)"
    assert said(state, NodeVolumeLimits(handle), pod) == {"n0": foreign}
    handle.put(make_claim("p0-scratch", storage_class="slow", owner="uid-default-p0"))
    assert said(state, NodeVolumeLimits(handle), pod) == FULL


def test_pod_without_claims_is_skipped() -> None:
    state = cluster("a")
    plugin = NodeVolumeLimits(ObjectHandle(state, room(0), *bound("a")))
    assert plugin.pre_filter(CycleState(state), state.pod_info(make_pod())) is SKIP


def test_what_wakes_a_refused_pod() -> None:
    state = cluster()
    plugin = NodeVolumeLimits(ObjectHandle(state))
    pod = state.pod_info(make_pod(volumes=volumes("c")))

    def helps(kind: str, action: str, **objects: Any) -> bool:
        return plugin.queueing_hint(pod, ObjectEvent(ClusterEvent(kind, action), **objects))

    def gone(**words: Any) -> bool:
        return helps("Pod", DELETE, old=state.pod_info(make_pod("gone", **words)))

    assert helps("CSINode", ADD, new=room())
    assert helps("CSINode", UPDATE, old=room(1), new=room(2))
    assert not helps("CSINode", UPDATE, old=room(2), new=room(1))
    assert helps("PersistentVolumeClaim", ADD, new=make_claim("c"))
    assert not helps("PersistentVolumeClaim", ADD, new=make_claim("d"))
    assert helps("VolumeAttachment", DELETE, old=make_attachment("x", node="n0", volume="pv", driver=DRIVER))
    assert gone(node="n0", volumes=volumes("a"))
    assert not gone(volumes=volumes("a"))
    assert not gone(node="n0")
