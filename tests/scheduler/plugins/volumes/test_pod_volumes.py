"""What becomes of the volumes that were chosen for a pod."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.config.scheduler.in_tree_args import VolumeBindingArgs
from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from koord.api.model import ObjectReference
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.verdict import Fault, ObjectPatch, PreBindActions
from koord.scheduler.plugins.volumes.volume_binding import VolumeBinding
from tests.scheduler.builders import make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.volumes.volume_objects import (
    ObjectHandle,
    make_claim,
    make_class,
    make_volume,
    told,
    volumes,
)

NONE = "node(s) didn't find available persistent volumes to bind"
SELECTED = "volume.kubernetes.io/selected-node"


class Case:
    """Two nodes, a class with volumes and one without, and pods that are given a node."""

    def __init__(self, *objects: Any, args: VolumeBindingArgs | None = None) -> None:
        self.state = make_state([make_node("n0"), make_node("n1")])
        static = make_class("static", provisioner="kubernetes.io/no-provisioner")
        self.handle = ObjectHandle(self.state, static, make_class("slow"), *objects)
        self.plugin = VolumeBinding(args, self.handle)
        self.engine = SchedulingEngine(profile_of([self.plugin]), self.state)
        self.cycle = CycleState(self.state)

    def pod(self, name: str, *claims: str) -> PodInfo:
        return self.state.pod_info(make_pod(name, volumes=volumes(*claims)))

    def says(self, *claims: str) -> Any:
        return told(self.engine, self.state, make_pod("asked", volumes=volumes(*claims)))

    def reserve(self, pod: PodInfo, name: str = "n0") -> Any:
        node = self.state.node(name)
        assert node is not None
        return self.plugin.reserve(self.cycle, pod, node)

    def writes(self, pod: PodInfo, name: str = "n0") -> tuple[ObjectPatch, ...]:
        work = self.plugin.pre_bind(self.cycle, pod, name)
        assert work is not None
        return work.writes

    def volume(self, name: str) -> Any:
        return self.handle.lister(PERSISTENT_VOLUMES).get("", name)

    def claim(self, name: str) -> Any:
        return self.handle.lister(PERSISTENT_VOLUME_CLAIMS).get("default", name)


def static(name: str = "c0", **words: Any) -> Any:
    return make_claim(name, storage_class="static", **words)


def dynamic(name: str = "c0", **words: Any) -> Any:
    return make_claim(name, storage_class="slow", **words)


def local(name: str = "pv0", **words: Any) -> Any:
    return make_volume(name, **({"storage_class": "static", "on": ["n0"]} | words))


def held_for(volume: Any, name: str, uid: str) -> Any:
    ref = ObjectReference(namespace="default", name=name, uid=uid)
    return msgspec.structs.replace(volume, spec=msgspec.structs.replace(volume.spec, claim_ref=ref))


def test_chosen_volume_is_taken_until_the_pod_is_unreserved() -> None:
    case = Case(static("c0"), static("c1"), local())
    assert case.says("c1") == {"n1": NONE}
    pod = case.pod("p0", "c0")
    assert case.reserve(pod) is None
    assert case.says("c1") == {"n0": NONE, "n1": NONE}
    assert case.says("c0") == {"n1": NONE}  # another pod may use the same claim there
    for _ in range(2):
        case.plugin.unreserve(case.cycle, pod, "n0")
        assert case.says("c1") == {"n1": NONE}
        assert case.plugin.pre_bind(case.cycle, pod, "n0") is None


def test_volume_that_was_taken_since_the_pod_was_judged_is_not_taken_twice() -> None:
    case = Case(static("c0"), static("c1"), local())
    assert case.reserve(case.pod("p0", "c0")) is None
    refused = case.reserve(case.pod("p1", "c1"))
    assert refused is not None
    assert refused.text == NONE


def test_choices_leave_with_a_pod_that_is_forgotten() -> None:
    case = Case(static("c0"), static("c1"), local())
    pod = case.pod("p0", "c0")
    case.state.assume(pod, "n0")
    assert case.reserve(pod) is None
    case.state.forget(pod.uid)
    assert case.says("c1") == {"n1": NONE}


def test_choices_are_shared_between_profiles() -> None:
    case = Case(static("c0"), static("c1"), local())
    other = SchedulingEngine(profile_of([VolumeBinding(None, case.handle)]), case.state)
    assert case.reserve(case.pod("p0", "c0")) is None
    asked = make_pod("asked", volumes=volumes("c1"))
    assert told(other, case.state, asked) == {"n0": NONE, "n1": NONE}


def test_what_the_watch_shows_later_goes_before_what_was_assumed() -> None:
    case = Case(static("c0"), static("c1"), local())
    assert case.reserve(case.pod("p0", "c0")) is None
    case.handle.put(local())  # somebody wrote the volume, and it is free
    assert case.says("c1") == {"n1": NONE}


def test_smallest_volume_that_suffices_is_chosen() -> None:
    case = Case(static("c0", size="2Gi"), *(local(f"pv{size}", size=f"{size}Gi") for size in (9, 1, 3, 5)))
    pod = case.pod("p0", "c0")
    assert case.reserve(pod) is None
    assert [write.name for write in case.writes(pod)] == ["pv3"]


def test_writes_that_bind_an_existing_volume() -> None:
    case = Case(static("c0"), local(), args=VolumeBindingArgs(bind_timeout_seconds=7))
    pod = case.pod("p0", "c0")
    assert case.reserve(pod) is None
    work = case.plugin.pre_bind(case.cycle, pod, "n0")
    revision, claim = case.volume("pv0").metadata.resource_version, case.claim("c0").metadata
    patch = {
        "metadata": {
            "resourceVersion": revision,
            "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
        },
        "spec": {
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": "default",
                "name": "c0",
                "uid": claim.uid,
                "resourceVersion": claim.resource_version,
            }
        },
    }
    assert isinstance(work, PreBindActions)
    assert (work.writes, work.timeout_s) == ((ObjectPatch(PERSISTENT_VOLUMES, "", "pv0", patch),), 7.0)


def test_volume_that_a_user_held_for_the_claim_is_not_said_to_be_bound_by_us() -> None:
    case = Case(static("c0"), local(claimRef={"namespace": "default", "name": "c0"}))
    pod = case.pod("p0", "c0")
    assert case.reserve(pod) is None
    (write,) = case.writes(pod)
    assert "annotations" not in write.patch["metadata"]
    assert write.patch["spec"]["claimRef"]["uid"] == "uid-c0"


def test_writes_that_have_a_volume_made() -> None:
    case = Case(dynamic("c0"))
    pod = case.pod("p0", "c0")
    assert case.reserve(pod, "n1") is None
    revision = case.claim("c0").metadata.resource_version
    patch = {"metadata": {"resourceVersion": revision, "annotations": {SELECTED: "n1"}}}
    assert case.writes(pod, "n1") == (ObjectPatch(PERSISTENT_VOLUME_CLAIMS, "default", "c0", patch),)
    assert case.says("c0") == {"n0": NONE}


def test_nothing_is_written_for_bound_claims_and_for_selected_nodes() -> None:
    bound = [make_claim("b", volume="pvb"), make_volume("pvb")]
    case = Case(*bound, dynamic("c0", annotations={SELECTED: "n0"}))
    ready, half = case.pod("p0", "b"), case.pod("p1", "b", "c0")
    assert case.reserve(ready) is None
    assert case.plugin.pre_bind(case.cycle, ready, "n0") is None
    assert case.plugin.is_bound(ready) is True
    assert case.reserve(half) is None
    assert case.writes(half) == ()
    assert case.plugin.is_bound(half) is False


def test_binding_is_done_when_the_claim_is_bound() -> None:
    case = Case(static("c0"), local())
    pod = case.pod("p0", "c0")
    assert case.reserve(pod) is None
    assert case.plugin.is_bound(pod) is False
    case.handle.put(held_for(local(), "c0", "uid-c0"))
    assert case.plugin.is_bound(pod) is False
    case.handle.put(static("c0", volume="pv0"))
    assert case.plugin.is_bound(pod) is True


def test_provisioning_is_done_when_the_claim_is_bound() -> None:
    case = Case(dynamic("c0"))
    pod = case.pod("p0", "c0")
    assert case.reserve(pod) is None
    assert case.plugin.is_bound(pod) is False
    case.handle.put(dynamic("c0", annotations={SELECTED: "n0"}))
    assert case.plugin.is_bound(pod) is False
    case.handle.put(dynamic("c0", annotations={SELECTED: "n0"}, volume="made"))
    assert case.plugin.is_bound(pod) is False
    case.handle.put(make_volume("made", on=["n0"]))
    assert case.plugin.is_bound(pod) is True


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        pytest.param([local()], 'ClaimRef got reset for pv "pv0"', id="volume was released"),
        pytest.param(
            [held_for(local(on=["n1"]), "c0", "uid-c0")],
            'pv "pv0" node affinity doesn\'t match node "n0": no matching NodeSelectorTerms',
            id="volume moved",
        ),
    ],
)
def test_binding_that_comes_to_nothing(shown: list[Any], message: str) -> None:
    case = Case(static("c0"), local())
    pod = case.pod("p0", "c0")
    assert case.reserve(pod) is None
    case.handle.put(*shown)
    assert case.plugin.is_bound(pod) == Fault(f"binding volumes: {message}")


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        pytest.param({"other": "x"}, 'provisioning failed for PVC "c0"', id="provisioner gave up"),
        pytest.param({}, 'selectedNode annotation reset for PVC "c0"', id="no annotations are left"),
    ],
)
def test_provisioning_that_comes_to_nothing(annotations: dict[str, str], message: str) -> None:
    case = Case(dynamic("c0"))
    pod = case.pod("p0", "c0")
    assert case.reserve(pod) is None
    case.handle.put(dynamic("c0", annotations=annotations))
    assert case.plugin.is_bound(pod) == Fault(f"binding volumes: {message}")


def test_objects_that_vanish_while_they_are_waited_for() -> None:
    case = Case(static("c0"), dynamic("c1"), local())
    pod, other = case.pod("p0", "c0"), case.pod("p1", "c1")
    assert case.reserve(pod) is None
    assert case.reserve(other) is None
    case.handle.drop(PERSISTENT_VOLUMES, "pv0")
    case.handle.drop(PERSISTENT_VOLUME_CLAIMS, "c1", "default")
    gone = 'failed to check binding: could not find v1.PersistentVolume "pv0"'
    assert case.plugin.is_bound(pod) == Fault(f"binding volumes: {gone}")
    gone = 'failed to check provisioning pvc: could not find v1.PersistentVolumeClaim "default/c1"'
    assert case.plugin.is_bound(other) == Fault(f"binding volumes: {gone}")


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=12))
def test_no_volume_is_ever_chosen_for_two_claims(steps: list[tuple[int, bool]]) -> None:
    case = Case(*(static(f"c{i}") for i in range(5)), *(local(f"pv{i}", on=["n0", "n1"]) for i in range(3)))
    reserved: dict[int, str] = {}
    for number, take in steps:
        pod = case.pod(f"p{number}", f"c{number}")
        if not take:
            case.plugin.unreserve(case.cycle, pod, "n0")
            reserved.pop(number, None)
        elif number not in reserved and case.reserve(pod) is None:
            (write,) = case.writes(pod)
            assert write.name not in reserved.values()
            reserved[number] = write.name
        free = len(reserved) < 3
        for i in range(5):
            assert (case.says(f"c{i}") == {}) == (free or i in reserved)
