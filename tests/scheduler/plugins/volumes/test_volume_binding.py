"""Where a pod's claims can be served."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUMES
from koord.api.kubernetes.volume import StorageClass
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.verdict import SKIP
from koord.scheduler.plugins.volumes.volume_binding import VolumeBinding
from tests.scheduler.builders import ZONE, make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.volumes.volume_objects import (
    ObjectHandle,
    make_capacity,
    make_claim,
    make_class,
    make_csi_node,
    make_driver,
    make_volume,
    said,
    told,
    volumes,
)

FAR = "node(s) didn't match PersistentVolume's node affinity"
NONE = "node(s) didn't find available persistent volumes to bind"
FULL = "node(s) did not have enough free storage"
GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
NODES = ("n0", "n1")
SELECTED = "volume.kubernetes.io/selected-node"


def answer(*objects: Any, claims: tuple[str, ...] = ("c0",)) -> Any:
    """What is said of two nodes, n0 in zone a and n1 in zone b."""
    state = make_state([make_node("n0", labels={ZONE: "a"}), make_node("n1", labels={ZONE: "b"})])
    plugin = VolumeBinding(None, ObjectHandle(state, *objects))
    return said(state, plugin, make_pod(volumes=volumes(*claims)))


def static() -> StorageClass:
    return make_class("static", provisioner="kubernetes.io/no-provisioner")


def waiting(name: str = "c0", **words: Any) -> Any:
    return make_claim(name, storage_class="static", **words)


def local(name: str = "pv0", **words: Any) -> Any:
    return make_volume(name, **({"storage_class": "static", "on": ["n0"]} | words))


# Before nodes are looked at ----------------------------------------------------------------------------------------


def test_pod_without_claims_is_skipped() -> None:
    state = make_state([make_node()])
    assert VolumeBinding(None, ObjectHandle(state)).pre_filter(CycleState(state), state.pod_info(make_pod())) is SKIP


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        pytest.param(None, 'persistentvolumeclaim "c0" not found', id="missing"),
        pytest.param(
            {"volume": "pv0", "phase": "Lost"},
            'persistentvolumeclaim "c0" bound to non-existent persistentvolume "pv0"',
            id="lost",
        ),
        pytest.param({"volume": "pv0", "deleted": True}, 'persistentvolumeclaim "c0" is being deleted', id="deleting"),
        pytest.param({}, "pod has unbound immediate PersistentVolumeClaims", id="without a class"),
        pytest.param({"storage_class": "now"}, "pod has unbound immediate PersistentVolumeClaims", id="binds at once"),
        pytest.param({"storage_class": "?"}, "pod has unbound immediate PersistentVolumeClaims", id="class is gone"),
        pytest.param(
            {"storage_class": "slow", "volume": "pv0", "bound": False},
            "pod has unbound immediate PersistentVolumeClaims",
            id="asks for a volume by name",
        ),
        pytest.param({"storage_class": "odd"}, 'VolumeBindingMode not set for StorageClass "odd"', id="class says not"),
    ],
)
def test_claims_that_no_node_can_serve(claim: dict[str, Any] | None, message: str) -> None:
    odd = StorageClass(metadata=make_class("odd").metadata)
    made = [] if claim is None else [make_claim("c0", **claim)]
    assert answer(make_class("now", waits=False), make_class("slow"), odd, make_volume("pv0"), *made) == message


def test_ephemeral_claims_must_exist_and_be_the_pods_own() -> None:
    state = make_state([make_node("n0")])
    handle = ObjectHandle(state, make_class("slow"))
    engine = SchedulingEngine(profile_of([VolumeBinding(None, handle)]), state)
    pod = make_pod("p0", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}])
    awaited = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "p0-scratch"'
    assert told(engine, state, pod) == awaited
    handle.put(make_claim("p0-scratch", storage_class="slow", owner="another"))
    foreign = "PVC default/p0-scratch was not created for pod default/p0 (pod is not owner)"
    assert told(engine, state, pod) == foreign
    handle.put(make_claim("p0-scratch", storage_class="slow", owner="uid-default-p0"))
    assert told(engine, state, pod) == {}


# Bound claims ------------------------------------------------------------------------------------------------------


def test_bound_volume_is_reached_from_its_nodes_only() -> None:
    claim = make_claim("c0", volume="pv0")
    assert answer(claim, make_volume("pv0", on=["n0"])) == {"n1": FAR}
    assert answer(claim, make_volume("pv0", on=["b"], key=ZONE)) == {"n0": FAR}
    assert answer(claim, make_volume("pv0")) == {}


def test_bound_volume_that_does_not_exist() -> None:
    assert answer(make_claim("c0", volume="pv0")) == dict.fromkeys(NODES, GONE)


def test_first_bound_claim_that_fails_is_the_one_told() -> None:
    lost, far = make_claim("lost", volume="pv9"), make_claim("far", volume="pv0")
    objects = (lost, far, make_volume("pv0", on=["n0"]))
    assert answer(*objects, claims=("lost", "far")) == {"n0": GONE, "n1": GONE}
    assert answer(*objects, claims=("far", "lost")) == {"n0": GONE, "n1": FAR}


def test_reasons_of_bound_and_unbound_claims_are_told_together() -> None:
    objects = (make_claim("c0", volume="pv0"), make_volume("pv0", on=["n0"]), static(), waiting("c1"))
    assert answer(*objects, claims=("c0", "c1")) == {"n0": NONE, "n1": f"{FAR}, {NONE}"}


def test_kept_verdicts_follow_a_bound_volume() -> None:
    state = make_state([make_node("n0")])
    handle = ObjectHandle(state, make_claim("c0", volume="pv0"), make_volume("pv0", on=["n9"]))
    engine = SchedulingEngine(profile_of([VolumeBinding(None, handle)]), state)
    pod = make_pod(volumes=volumes("c0"))
    assert told(engine, state, pod) == {"n0": FAR}
    handle.drop(PERSISTENT_VOLUMES, "pv0")
    assert told(engine, state, pod) == {"n0": GONE}
    handle.put(make_volume("pv0", on=["n0"]))
    assert told(engine, state, pod) == {}


# Claims that wait for a node: existing volumes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "volume", "fits"),
    [
        pytest.param({}, {}, True, id="suits"),
        pytest.param({"size": "2Gi"}, {}, False, id="too small"),
        pytest.param({"size": "1Gi"}, {"size": "2Gi"}, True, id="larger than asked"),
        pytest.param({}, {"storage_class": "other"}, False, id="another class"),
        pytest.param({"modes": ["ReadWriteMany"]}, {}, False, id="another access mode"),
        pytest.param({}, {"modes": ["ReadWriteOnce", "ReadOnlyMany"]}, True, id="more access modes than asked"),
        pytest.param({"selector": {"matchLabels": {"a": "b"}}}, {}, False, id="not selected"),
        pytest.param({"selector": {"matchLabels": {"a": "b"}}}, {"labels": {"a": "b"}}, True, id="selected"),
        pytest.param({"volumeMode": "Block"}, {}, False, id="another volume mode"),
        pytest.param({"volumeMode": "Filesystem"}, {}, True, id="the mode that is meant by none"),
        pytest.param({"volumeAttributesClassName": "gold"}, {}, False, id="another attributes class"),
        pytest.param({}, {"phase": "Released"}, False, id="not available"),
        pytest.param({}, {"deleted": True}, False, id="being deleted"),
        pytest.param({}, {"claimRef": {"namespace": "default", "name": "x"}}, False, id="held for another claim"),
        pytest.param(
            {},
            {"claimRef": {"namespace": "default", "name": "c0"}, "phase": "Pending", "modes": []},
            True,
            id="held for this claim by its name",
        ),
        pytest.param(
            {}, {"claimRef": {"namespace": "default", "name": "c0", "uid": "old"}}, False, id="held for an older claim"
        ),
    ],
)
def test_matching_of_claim_and_volume(claim: dict[str, Any], volume: dict[str, Any], fits: bool) -> None:
    found = answer(static(), waiting(**claim), local(**volume))
    assert found == ({"n1": NONE} if fits else dict.fromkeys(NODES, NONE))


def test_held_volume_that_is_out_of_reach_is_not_replaced_by_another() -> None:
    held = local("held", on=["n0"], claimRef={"namespace": "default", "name": "c0"})
    assert answer(static(), waiting(), held, local("free", on=["n0", "n1"])) == {"n1": NONE}


def test_two_claims_need_two_volumes() -> None:
    small, large = waiting("c0", size="1Gi"), waiting("c1", size="5Gi")
    both = ("c1", "c0")
    assert answer(static(), small, large, local("pv0", size="5Gi"), claims=both) == dict.fromkeys(NODES, NONE)
    objects = (static(), small, large, local("pv0", size="5Gi"), local("pv1", size="2Gi"))
    assert answer(*objects, claims=both) == {"n1": NONE}


# Claims that wait for a node: volumes to be made ------------------------------------------------------------------


def test_class_that_provisions_serves_where_its_topologies_allow() -> None:
    claim = make_claim("c0", storage_class="slow")
    assert answer(make_class("slow"), claim) == {}
    assert answer(make_class("slow", topologies=[{ZONE: ["a", "c"]}]), claim) == {"n1": NONE}
    assert answer(make_class("slow", topologies=[{ZONE: ["a"], "disk": ["ssd"]}]), claim) == dict.fromkeys(NODES, NONE)
    assert answer(make_class("slow", topologies=[{ZONE: ["a"]}, {ZONE: ["b"]}]), claim) == {}
    assert answer(make_class("slow", topologies=[{}]), claim) == dict.fromkeys(NODES, NONE)


def test_claim_whose_node_was_selected_goes_nowhere_else() -> None:
    claim = make_claim("c0", storage_class="slow", annotations={SELECTED: "n0"})
    assert answer(make_class("slow"), claim) == {"n1": NONE}


def test_storage_that_drivers_report() -> None:
    claim, kind = make_claim("c0", storage_class="slow", size="5Gi"), make_class("slow")

    def pool(name: str, zone: str | None, size: str | None, **words: Any) -> Any:
        near = None if zone is None else {ZONE: zone}
        return make_capacity(name, labels=near, size=size, **({"storage_class": "slow"} | words))

    nowhere = dict.fromkeys(NODES, FULL)
    assert answer(kind, claim, make_driver()) == nowhere
    assert answer(kind, claim, make_driver(capacity=False)) == {}
    assert answer(kind, claim, make_driver(), pool("a", "a", "5Gi"), pool("b", "b", "4Gi")) == {"n1": FULL}
    assert answer(kind, claim, make_driver(), pool("a", "a", "9Gi", largest="4Gi")) == nowhere
    assert answer(kind, claim, make_driver(), pool("a", "a", None)) == nowhere
    assert answer(kind, claim, make_driver(), pool("a", None, "5Gi")) == nowhere
    assert answer(kind, claim, make_driver(), pool("a", "a", "5Gi", storage_class="other")) == nowhere


def test_kept_verdicts_follow_volumes_classes_and_capacity() -> None:
    state = make_state([make_node("n0", labels={ZONE: "a"})])
    handle = ObjectHandle(state, make_class("slow"), make_driver(), make_claim("c0", storage_class="slow"))
    engine = SchedulingEngine(profile_of([VolumeBinding(None, handle)]), state)
    pod = make_pod(volumes=volumes("c0"))
    assert told(engine, state, pod) == {"n0": FULL}
    handle.put(make_capacity("a", storage_class="slow", labels={ZONE: "a"}, size="1Gi"))
    assert told(engine, state, pod) == {}
    handle.put(make_class("slow", topologies=[{ZONE: ["b"]}]))
    assert told(engine, state, pod) == {"n0": NONE}
    handle.put(make_volume("pv0", storage_class="slow"))
    assert told(engine, state, pod) == {}


# Waking ----------------------------------------------------------------------------------------------------


def test_what_wakes_a_refused_pod() -> None:
    state = make_state([make_node()])
    plugin = VolumeBinding(None, ObjectHandle(state))
    inline = {"name": "inline", "csi": {"driver": "disks.example.com"}}
    pod = state.pod_info(make_pod("p0", volumes=[*volumes("c0"), inline, {"name": "e", "ephemeral": {}}]))

    def helps(kind: str, action: str, **objects: Any) -> bool:
        return plugin.queueing_hint(pod, ObjectEvent(ClusterEvent(kind, action), **objects))

    def pool(size: str | None) -> Any:
        return make_capacity("a", storage_class="slow", labels={}, size=size)

    allowed = make_class(topologies=[{ZONE: ["a"]}])
    assert helps("StorageClass", ADD, new=allowed)
    assert helps("StorageClass", UPDATE, old=allowed, new=make_class())
    assert not helps("StorageClass", UPDATE, old=allowed, new=allowed)
    assert helps("PersistentVolumeClaim", ADD, new=make_claim("c0"))
    assert helps("PersistentVolumeClaim", UPDATE, old=make_claim("p0-e"), new=make_claim("p0-e"))
    assert not helps("PersistentVolumeClaim", ADD, new=make_claim("c1"))
    assert not helps("PersistentVolumeClaim", ADD, new=make_claim("c0", namespace="other"))
    assert helps("PersistentVolume", UPDATE, old=make_volume(), new=make_volume())
    assert helps("Node", ADD, new=make_node("n1"))
    assert helps("CSINode", ADD, new=make_csi_node())
    assert not helps("CSINode", UPDATE, old=make_csi_node(), new=make_csi_node())
    assert helps("CSIDriver", UPDATE, old=make_driver(), new=make_driver(capacity=None))
    assert not helps("CSIDriver", UPDATE, old=make_driver(capacity=None), new=make_driver())
    assert not helps("CSIDriver", UPDATE, old=make_driver("x"), new=make_driver("x", capacity=None))
    assert helps("CSIStorageCapacity", UPDATE, old=pool("1Gi"), new=pool("2Gi"))
    assert helps("CSIStorageCapacity", UPDATE, old=pool(None), new=pool("2Gi"))
    assert not helps("CSIStorageCapacity", UPDATE, old=pool("2Gi"), new=pool("1Gi"))
