"""Pods with resource claims: the words are those of kube-scheduler 1.35."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.kubernetes.dynamic_resources import ResourceClaim, ResourceSlice
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.attempt import failure_of_decision
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.verdict import SKIP
from koord.scheduler.plugins.dynamic_resources.plugin import CLAIMS_NOT_WATCHED, DynamicResources
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.builders import make_node, make_state
from tests.scheduler.plugins.dynamic_resources.device_objects import (
    DRIVER,
    DeviceHandle,
    exactly,
    first_of,
    make_claim,
    make_device,
    make_slice,
)
from tests.scheduler.plugins.volumes.volume_objects import ObjectHandle


def claimant(
    *claims: dict[str, Any], made: dict[str, str | None] | None = None, volume: str = "", cpu: str = "1m"
) -> Pod:
    statuses = [{"name": name, "resourceClaimName": claim} for name, claim in (made or {}).items()]
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": volume}}] if volume else []
    requests = {"requests": {"cpu": cpu}}
    return convert(
        {
            "metadata": {"name": "p", "namespace": "default", "uid": "uid-p"},
            "spec": {
                "containers": [{"name": "c", "resources": requests}],
                "resourceClaims": list(claims),
                "volumes": volumes,
            },
            "status": {"resourceClaimStatuses": statuses},
        },
        Pod,
    )


def in_zone(zone: str) -> dict[str, Any]:
    expression = {"key": "zone", "operator": "In", "values": [zone]}
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


DEVICES = (make_slice("s", [make_device("d0"), make_device("d1")], node="n1"),)
NAMED = {"name": "a", "resourceClaimName": "c0"}
MADE = {"name": "a", "resourceClaimTemplateName": "t"}


def cluster() -> ClusterState:
    return make_state([make_node("n0", labels={"zone": "z0"}), make_node("n1", labels={"zone": "z1"})])


def default_profile(handle: ObjectHandle) -> SchedulerProfile:
    completed_config = CompletedConfig.complete(KubeSchedulerConfiguration(), REGISTRY)
    assert isinstance(completed_config, CompletedConfig), completed_config
    (profile,) = completed_config.make_profiles(handle)
    return profile


def told(pod: Pod, *claims: ResourceClaim | ResourceSlice) -> str:
    """What a user reads of the pod, who uses the default profile; the node if there is one."""
    state = cluster()
    engine = SchedulingEngine(default_profile(DeviceHandle(state, *claims)), state)
    info = state.pod_info(pod)
    attempt = engine.decide(info)
    decision = attempt.decision
    if isinstance(decision, ChosenNode):
        return decision.node
    if isinstance(decision, Unschedulable):
        return engine.post_filter(attempt).message()
    return failure_of_decision(decision).message


NOTHING = "no new claims to deallocate"
NOT_HELPFUL = "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."


@pytest.mark.parametrize(
    ("pod", "claims", "words"),
    [
        pytest.param(claimant(NAMED), [], 'could not find ResourceClaim "default/c0"', id="missing"),
        pytest.param(claimant(MADE), [], 'pod "default/p": ResourceClaim not created yet', id="not-made-yet"),
        pytest.param(
            claimant({"name": "a"}),
            [],
            'pod "default/p", spec.resourceClaim "a": none of the supported fields are set',
            id="of-no-kind",
        ),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", deleting=True)],
            'resourceclaim "c0" is being deleted',
            id="being-deleted",
        ),
        pytest.param(
            claimant(MADE, made={"a": "c0"}),
            [make_claim("c0", owner="uid-other")],
            "ResourceClaim default/c0 was not created for pod default/p (pod is not owner)",
            id="of-another-pod",
        ),
    ],
)
def test_a_pod_waits_outside_of_the_queue_for_its_claims(pod: Pod, claims: list[ResourceClaim], words: str) -> None:
    state = cluster()
    plugin = DynamicResources(None, DeviceHandle(state, *claims))
    held = plugin.pre_enqueue(state.pod_info(pod))
    assert held is not None
    assert (held.text, held.resolvable) == (words, False)
    assert plugin.pre_filter(CycleState(state), state.pod_info(pod)) == held


@pytest.mark.parametrize(
    ("pod", "claims", "message"),
    [
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", exactly(device_class="gone"))],
            f"0/2 nodes are available: request r: device class gone does not exist. {NOTHING}, {NOT_HELPFUL}",
            id="no-device-class",
        ),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", first_of("r", exactly("s", device_class="gone")))],
            f"0/2 nodes are available: request r/s: device class gone does not exist. {NOTHING}, {NOT_HELPFUL}",
            id="no-device-class-of-an-alternative",
        ),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", {"name": "r"})],
            "0/2 nodes are available: resource claim default/c0, request r: unknown request type. "
            f"no new claims to deallocate, {NOT_HELPFUL}",
            id="request-of-no-kind",
        ),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0")],
            f"0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, {NOT_HELPFUL}",
            id="no-devices",
        ),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", exactly("r", 1, "device.x")), *DEVICES],
            'running "DynamicResources" filter plugin: claim default/c0: selector #0: '
            "CEL runtime error: no such key: x",
            id="a-selector-without-an-answer",
        ),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", exactly("r", 0, allocationMode="All")), make_slice("s", [], node="n1", slices=2)],
            'running "DynamicResources" filter plugin: claim default/c0, request r: asks for all devices, '
            f"but resource pool {DRIVER}/n1 is currently being updated",
            id="all-devices-of-an-incomplete-pool",
        ),
        pytest.param(claimant(NAMED), [make_claim("c0"), *DEVICES], "n1", id="where-the-devices-are"),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", allocation=in_zone("z1"), reserved=[f"uid-{i}" for i in range(256)])],
            f"0/2 nodes are available: resourceclaim in use. {NOTHING}, {NOT_HELPFUL}",
            id="used-by-as-many-as-may-be",
        ),
        pytest.param(claimant(NAMED), [make_claim("c0", allocation=in_zone("z1"), reserved=["o"])], "n1", id="shared"),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", allocation=in_zone("z1"), reserved=["uid-p"])],
            "n1",
            id="already-its-own",
        ),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", allocation=in_zone("nowhere"), reserved=["uid-p", "uid-q"])],
            f"0/2 nodes are available: 2 resourceclaim not available on the node. still not schedulable, {NOT_HELPFUL}",
            id="its-own-and-elsewhere",
        ),
        pytest.param(
            claimant(cpu="1000"),
            [],
            f"0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, {NOT_HELPFUL}",
            id="without-claims-and-too-big",
        ),
        pytest.param(
            claimant(volume="nope"),
            [],
            '0/2 nodes are available: persistentvolumeclaim "nope" not found. not found',
            id="refused-before-claims-were-looked-at",
        ),
    ],
)
def test_what_users_read(pod: Pod, claims: list[ResourceClaim], message: str) -> None:
    assert told(pod, *claims) == message


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(claimant(), id="without-claims"),
        pytest.param(claimant(MADE, made={"a": None}), id="whose-claim-is-not-needed"),
    ],
)
def test_other_pods_are_left_alone(pod: Pod) -> None:
    state = cluster()
    plugin = DynamicResources(None, DeviceHandle(state))
    assert plugin.pre_enqueue(state.pod_info(pod)) is None
    assert plugin.pre_filter(CycleState(state), state.pod_info(pod)) is SKIP


def test_without_the_watch_only_pods_with_claims_are_refused() -> None:
    state = cluster()
    plugin = DynamicResources(None, DeviceHandle(state), no_claims=True)
    assert plugin.pre_filter(CycleState(state), state.pod_info(claimant())) is SKIP
    refused = plugin.pre_filter(CycleState(state), state.pod_info(claimant(NAMED)))
    assert getattr(refused, "text", "") == CLAIMS_NOT_WATCHED
    assert plugin.pre_enqueue(state.pod_info(claimant(NAMED))) is None


def test_what_is_kept_for_a_pod_ends_when_claims_change() -> None:
    state = cluster()
    handle = DeviceHandle(state, make_claim("c0", allocation=in_zone("z0"), reserved=["uid-p"]))
    engine = SchedulingEngine(default_profile(handle), state)
    pod = state.pod_info(claimant(NAMED))
    for version, (zone, node) in enumerate((("z0", "n0"), ("z1", "n1"), ("z0", "n0"))):
        handle.claims.put(make_claim("c0", allocation=in_zone(zone), reserved=["uid-p"], version=version))
        chosen = engine.decide(pod).decision
        assert isinstance(chosen, ChosenNode)
        assert chosen.node == node


CLAIM_ADDED, CLAIM_UPDATED, POD_UPDATED = (
    ClusterEvent("ResourceClaim", ADD),
    ClusterEvent("ResourceClaim", UPDATE),
    ClusterEvent("Pod", UPDATE, "claims"),
)


def object_event(event: ClusterEvent, new: Any, old: Any = None) -> ObjectEvent:
    return ObjectEvent(event, old, new)


def other_pod(state: ClusterState) -> PodInfo:
    return state.pod_info(convert({"metadata": {"name": "q", "namespace": "default", "uid": "uid-q"}}, Pod))


def test_what_wakes_a_pod() -> None:
    state = cluster()
    claim, free = make_claim("c0"), make_claim("c1", exactly("other"))
    plugin = DynamicResources(None, DeviceHandle(state, claim, free))
    pod = state.pod_info(claimant(NAMED))
    allocated = make_claim("c0", allocation=in_zone("z0"))
    assert plugin.queueing_hint(pod, object_event(CLAIM_ADDED, claim))
    assert plugin.queueing_hint(pod, object_event(CLAIM_UPDATED, allocated, claim))
    assert not plugin.queueing_hint(pod, object_event(CLAIM_UPDATED, claim, claim))
    assert not plugin.queueing_hint(pod, object_event(CLAIM_ADDED, free))
    assert plugin.queueing_hint(pod, object_event(ClusterEvent("DeviceClass", ADD), None))
    waiting = state.pod_info(claimant(MADE))
    made = state.pod_info(claimant({**MADE, "resourceClaimName": "c0"}))
    assert plugin.queueing_hint(waiting, object_event(POD_UPDATED, made))
    assert not plugin.queueing_hint(waiting, object_event(POD_UPDATED, waiting))
    assert not plugin.queueing_hint(waiting, object_event(POD_UPDATED, other_pod(state)))


def test_alternatives_are_scored_beside_an_allocated_claim() -> None:
    state = cluster()
    devices = [make_slice(f"s-{name}", [make_device("d0"), make_device("d1")], node=name) for name in ("n0", "n1")]
    wide = make_slice("w", [make_device("w0")], pool="w", driver="wide.example.com")
    taken = {"request": "r", "driver": "wide.example.com", "pool": "w", "device": "w0"}
    claims = [
        make_claim("c0", allocation={"devices": {"results": [taken]}}),
        make_claim("c1", first_of("r", exactly("a", 3), exactly("b", 1))),
    ]
    engine = SchedulingEngine(default_profile(DeviceHandle(state, *devices, wide, *claims)), state)
    attempt = engine.decide(state.pod_info(claimant(NAMED, {"name": "b", "resourceClaimName": "c1"})))
    assert isinstance(attempt.decision, ChosenNode)
    assert attempt.evaluation is not None
    assert attempt.decision.feasible == 2
