"""Disks and claims that pods may not share."""

from __future__ import annotations

from typing import Any

import pytest

from koord.scheduler.framework.cluster_event import ADD, DELETE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.verdict import SKIP
from koord.scheduler.plugins.volumes.volume_restrictions import VolumeRestrictions
from tests.scheduler.builders import make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.volumes.volume_objects import ObjectHandle, make_claim, said, told, volumes

NO_DISK = "node(s) had no available disk"
TAKEN = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)


def gce(name: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"gcePersistentDisk": {"pdName": name, "readOnly": read_only}}


def ebs(name: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"awsElasticBlockStore": {"volumeID": name, "readOnly": read_only}}


def iscsi(name: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"iscsi": {"targetPortal": "10.0.0.1", "iqn": name, "lun": 0, "readOnly": read_only}}


def rbd(image: str, *monitors: str, pool: str = "rbd", read_only: bool = False) -> dict[str, Any]:
    return {"rbd": {"monitors": list(monitors), "image": image, "pool": pool, "readOnly": read_only}}


def on(*sources: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": f"v{i}", **source} for i, source in enumerate(sources)]


@pytest.mark.parametrize(
    ("held", "wanted", "clash"),
    [
        pytest.param(gce("a"), gce("a"), True, id="gce disk written twice"),
        pytest.param(gce("a", read_only=True), gce("a"), True, id="gce disk read and written"),
        pytest.param(gce("a", read_only=True), gce("a", read_only=True), False, id="gce disk read twice"),
        pytest.param(gce("a"), gce("b"), False, id="two gce disks"),
        pytest.param(ebs("a", read_only=True), ebs("a", read_only=True), True, id="ebs is never shared"),
        pytest.param(ebs("a"), ebs("b"), False, id="two ebs volumes"),
        pytest.param(ebs("a"), gce("a"), False, id="equal names of different kinds"),
        pytest.param(iscsi("a"), iscsi("a", read_only=True), True, id="iscsi target written"),
        pytest.param(iscsi("a", read_only=True), iscsi("a", read_only=True), False, id="iscsi target read"),
        pytest.param(rbd("i", "m1", "m2"), rbd("i", "m2", "m3"), True, id="rbd image by a shared monitor"),
        pytest.param(rbd("i", "m1"), rbd("i", "m2"), False, id="rbd of two clusters"),
        pytest.param(rbd("i", "m1"), rbd("i", "m1", pool="x"), False, id="rbd of two pools"),
        pytest.param(rbd("i", "m", read_only=True), rbd("i", "m", read_only=True), False, id="rbd image read"),
    ],
)
def test_disks_of_pods_on_one_node(held: dict[str, Any], wanted: dict[str, Any], clash: bool) -> None:
    state = make_state([make_node("n0"), make_node("n1")], [make_pod("old", node="n0", volumes=on(held))])
    found = said(state, VolumeRestrictions(ObjectHandle(state)), make_pod(volumes=on(wanted)))
    assert found == ({"n0": NO_DISK} if clash else {})


def test_pod_without_restricted_volumes_is_skipped() -> None:
    state = make_state([make_node()])
    plugin = VolumeRestrictions(ObjectHandle(state, make_claim("c0")))
    for pod in (make_pod(), make_pod(volumes=on({"emptyDir": {}})), make_pod(volumes=volumes("c0"))):
        assert plugin.pre_filter(CycleState(state), state.pod_info(pod)) is SKIP


def test_missing_claim_is_named() -> None:
    state = make_state([make_node()])
    plugin = VolumeRestrictions(ObjectHandle(state))
    assert said(state, plugin, make_pod(volumes=volumes("c0"))) == 'persistentvolumeclaim "c0" not found'


def test_claim_for_one_pod_is_taken_on_every_node_until_its_user_goes() -> None:
    state = make_state([make_node("n0"), make_node("n1")])
    handle = ObjectHandle(state, make_claim("c0", modes=["ReadWriteOncePod"]))
    engine = SchedulingEngine(profile_of([VolumeRestrictions(handle)]), state)
    pod = make_pod(volumes=volumes("c0"))
    assert told(engine, state, pod) == {}
    state.set_pod(make_pod("elsewhere", namespace="other", node="n0", volumes=volumes("c0")))
    assert told(engine, state, pod) == {}
    state.set_pod(make_pod("user", node="n0", volumes=volumes("c0")))
    assert told(engine, state, pod) == {"n0": TAKEN, "n1": TAKEN}
    assert told(engine, state, make_pod(namespace="other", volumes=volumes("c0"))) == (
        'persistentvolumeclaim "c0" not found'
    )
    state.drop_pod("uid-default-user")
    assert told(engine, state, pod) == {}


def test_removing_the_user_of_a_claim_helps_in_a_what_if_only() -> None:
    state = make_state([make_node("n0")], [make_pod("user", node="n0", volumes=volumes("c0"))])
    stranger = state.set_pod(make_pod("stranger", namespace="other", node="n0", volumes=volumes("c0")))
    plugin = VolumeRestrictions(ObjectHandle(state, make_claim("c0", modes=["ReadWriteOncePod"])))
    pod, node, user = (
        state.pod_info(make_pod(volumes=volumes("c0"))),
        state.node("n0"),
        state.placed_pod("uid-default-user"),
    )
    assert node is not None
    assert user is not None
    assert stranger is not None
    cycle = CycleState(state)
    assert plugin.pre_filter(cycle, pod) is None
    trial = cycle.fork()
    plugin.remove_pod(trial, pod, stranger, node)
    assert plugin.filter(trial, pod, node) is not None
    plugin.remove_pod(trial, pod, user, node)
    assert plugin.filter(trial, pod, node) is None
    assert plugin.filter(cycle, pod, node) is not None
    plugin.add_pod(trial, pod, user, node)
    assert plugin.filter(trial, pod, node) is not None


def test_what_wakes_a_refused_pod() -> None:
    state = make_state([make_node()])
    plugin = VolumeRestrictions(ObjectHandle(state))
    pod = state.pod_info(make_pod(volumes=[*volumes("c0"), {"name": "d", **gce("a")}]))

    def helps(kind: str, action: str, **objects: Any) -> bool:
        return plugin.queueing_hint(pod, ObjectEvent(ClusterEvent(kind, action), **objects))

    def gone(**words: Any) -> bool:
        return helps("Pod", DELETE, old=state.pod_info(make_pod("gone", **words)))

    assert helps("Node", ADD, new=make_node("n1"))
    assert helps("PersistentVolumeClaim", ADD, new=make_claim("c0"))
    assert not helps("PersistentVolumeClaim", ADD, new=make_claim("c1"))
    assert not helps("PersistentVolumeClaim", ADD, new=make_claim("c0", namespace="other"))
    assert gone(volumes=volumes("c0"))
    assert gone(volumes=on(gce("a")))
    assert not gone(volumes=volumes("c1"))
    assert not gone(namespace="other", volumes=volumes("c0"))
