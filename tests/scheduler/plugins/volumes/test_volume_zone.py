"""Volumes that are reached from their zone only."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.kubernetes.volume import StorageClass
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.verdict import SKIP
from koord.scheduler.plugins.volumes.volume_zone import VolumeZone
from tests.scheduler.builders import ZONE, make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.volumes.volume_objects import (
    ObjectHandle,
    make_claim,
    make_class,
    make_volume,
    said,
    told,
    volumes,
)

REGION = "topology.kubernetes.io/region"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
CONFLICT = "node(s) had no available volume zone"


@pytest.mark.parametrize(
    ("volume", "node", "fits"),
    [
        pytest.param({ZONE: "a"}, {ZONE: "a"}, True, id="same zone"),
        pytest.param({ZONE: "a"}, {ZONE: "b"}, False, id="other zone"),
        pytest.param({ZONE: "a__b"}, {ZONE: "b"}, True, id="one of the zones"),
        pytest.param({ZONE: "a__b"}, {ZONE: "c"}, False, id="none of the zones"),
        pytest.param({ZONE: "a____b"}, {ZONE: "c"}, True, id="an empty zone makes the label void"),
        pytest.param({ZONE: "a"}, {}, True, id="node without any of the labels"),
        pytest.param({ZONE: "a"}, {REGION: "r"}, False, id="node with another of the labels"),
        pytest.param({ZONE: "a", REGION: "r"}, {ZONE: "a", REGION: "s"}, False, id="other region"),
        pytest.param({OLD_ZONE: "a"}, {ZONE: "a"}, True, id="old label of the volume, new label of the node"),
        pytest.param({OLD_ZONE: "a"}, {OLD_ZONE: "a", ZONE: "b"}, True, id="old label goes first"),
        pytest.param({ZONE: "a"}, {OLD_ZONE: "a"}, False, id="new label of the volume, old label of the node"),
    ],
)
def test_labels_of_volume_and_node(volume: dict[str, str], node: dict[str, str], fits: bool) -> None:
    state = make_state([make_node("n0", labels=node)])
    plugin = VolumeZone(ObjectHandle(state, make_claim("c0", volume="pv0"), make_volume("pv0", labels=volume)))
    assert said(state, plugin, make_pod(volumes=volumes("c0"))) == ({} if fits else {"n0": CONFLICT})


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        pytest.param(None, 'persistentvolumeclaim "c0" not found', id="no claim"),
        pytest.param({"volume": "pv9"}, 'persistentvolume "pv9" not found', id="no volume"),
        pytest.param({}, "PersistentVolumeClaim had no pv name and storageClass name", id="no class"),
        pytest.param(
            {"storage_class": "none"}, 'storageclass.storage.k8s.io "none" not found', id="class is not there"
        ),
        pytest.param({"storage_class": "now"}, "PersistentVolume had no name", id="class that binds at once"),
        pytest.param({"storage_class": "odd"}, 'VolumeBindingMode not set for StorageClass "odd"', id="class says not"),
        pytest.param({"storage_class": "later"}, {}, id="class that waits for the pod"),
    ],
)
def test_claims_without_a_volume(claim: dict[str, Any] | None, message: str | dict[str, str]) -> None:
    state = make_state([make_node("n0", labels={ZONE: "a"})])
    odd = StorageClass(metadata=make_class("odd").metadata)
    handle = ObjectHandle(state, make_class("now", waits=False), make_class("later"), odd)
    if claim is not None:
        handle.put(make_claim("c0", **claim))
    assert said(state, VolumeZone(handle), make_pod(volumes=volumes("c0"))) == message


def test_pod_without_zonal_volumes_is_skipped() -> None:
    state = make_state([make_node()])
    plugin = VolumeZone(ObjectHandle(state, make_claim("c0", volume="pv0"), make_volume("pv0")))
    for pod in (make_pod(), make_pod(volumes=volumes("c0"))):
        assert plugin.pre_filter(CycleState(state), state.pod_info(pod)) is SKIP


def test_kept_verdicts_follow_the_volume_and_tell_namespaces_apart() -> None:
    state = make_state([make_node("n0", labels={ZONE: "a"})])
    handle = ObjectHandle(state, make_claim("c0", volume="pv0"), make_volume("pv0", labels={ZONE: "b"}))
    engine = SchedulingEngine(profile_of([VolumeZone(handle)]), state)
    pod = make_pod(volumes=volumes("c0"))
    assert told(engine, state, pod) == {"n0": CONFLICT}
    handle.put(make_claim("c0", namespace="other", volume="pv1"), make_volume("pv1", labels={ZONE: "a"}))
    assert told(engine, state, make_pod(namespace="other", volumes=volumes("c0"))) == {}
    assert told(engine, state, pod) == {"n0": CONFLICT}
    handle.put(make_volume("pv0", labels={ZONE: "a"}))
    assert told(engine, state, pod) == {}


def test_what_wakes_a_refused_pod() -> None:
    state = make_state([make_node()])
    plugin = VolumeZone(ObjectHandle(state))
    pod = state.pod_info(make_pod(volumes=volumes("c0")))

    def helps(kind: str, action: str, **objects: Any) -> bool:
        return plugin.queueing_hint(pod, ObjectEvent(ClusterEvent(kind, action), **objects))

    near, far = make_volume("pv0", labels={ZONE: "a"}), make_volume("pv0", labels={ZONE: "b"})
    assert helps("StorageClass", ADD, new=make_class())
    assert not helps("StorageClass", ADD, new=make_class(waits=False))
    assert helps("PersistentVolumeClaim", UPDATE, old=make_claim("c0"), new=make_claim("c0", volume="pv0"))
    assert not helps("PersistentVolumeClaim", ADD, new=make_claim("c1"))
    assert helps("PersistentVolume", ADD, new=near)
    assert helps("PersistentVolume", UPDATE, old=near, new=far)
    assert not helps("PersistentVolume", UPDATE, old=near, new=near)
    assert helps("Node", ADD, new=make_node("n1"))
