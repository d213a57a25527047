"""Pods with resource claims. The words are those of kube-scheduler 1.35, up to where devices would be allocated."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.kubernetes.builtin_kinds import DEVICE_CLASSES, RESOURCE_CLAIMS
from koord.api.kubernetes.dynamic_resources import DeviceClass, ResourceClaim
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.verdict import SKIP
from koord.scheduler.plugins.dynamic_resources import CLAIMS_NOT_WATCHED, DynamicResources
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.builders import make_node, make_state
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


def make_claim(
    name: str, *, deleting: bool = False, owner: str = "", reserved: str = "", **parts: Any
) -> ResourceClaim:
    request = {"name": "r", "exactly": {"deviceClassName": parts.get("device_class", "there")}}
    status: dict[str, Any] = {}
    if "zone" in parts:
        zone = {"key": "zone", "operator": "In", "values": [parts["zone"]]}
        selector = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
        status = {"allocation": {"nodeSelector": selector}, "reservedFor": [{"resource": "pods", "uid": reserved}]}
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": True}] if owner else []
    return convert(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "ownerReferences": owners,
                "deletionTimestamp": "2024-01-01T00:00:00Z" if deleting else None,
            },
            "spec": {"devices": {"requests": parts.get("requests", [request])}},
            "status": status,
        },
        ResourceClaim,
    )


NAMED = {"name": "a", "resourceClaimName": "c0"}
MADE = {"name": "a", "resourceClaimTemplateName": "t"}


class Devices(ObjectHandle):
    def __init__(self, state: ClusterState, *claims: ResourceClaim) -> None:
        super().__init__(state)
        self.claims, self.classes = self._of(RESOURCE_CLAIMS.plural), self._of(DEVICE_CLASSES.plural)
        self.classes.put(convert({"metadata": {"name": "there"}}, DeviceClass))
        for claim in claims:
            self.claims.put(claim)


def cluster() -> ClusterState:
    return make_state([make_node("n0", labels={"zone": "z0"}), make_node("n1", labels={"zone": "z1"})])


def default_profile(handle: ObjectHandle) -> SchedulerProfile:
    completed_config = CompletedConfig.complete(KubeSchedulerConfiguration(), REGISTRY)
    assert isinstance(completed_config, CompletedConfig), completed_config
    (profile,) = completed_config.make_profiles(handle)
    return profile


def told(pod: Pod, *claims: ResourceClaim) -> str:
    """What a user reads of the pod, who uses the default profile; the node if there is one."""
    state = cluster()
    engine = SchedulingEngine(default_profile(Devices(state, *claims)), state)
    info = state.pod_info(pod)
    attempt = engine.decide(info)
    decision = attempt.decision
    if isinstance(decision, ChosenNode):
        return decision.node
    if isinstance(decision, Unschedulable):
        return engine.post_filter(attempt).message()
    return decision.message


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
    plugin = DynamicResources(Devices(state, *claims))
    held = plugin.pre_enqueue(state.pod_info(pod))
    assert held is not None
    assert (held.text, held.resolvable) == (words, False)
    assert plugin.pre_filter(CycleState(state), state.pod_info(pod)) == held


@pytest.mark.parametrize(
    ("pod", "claims", "message"),
    [
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", device_class="gone")],
            f"0/2 nodes are available: request r: device class gone does not exist. {NOTHING}, {NOT_HELPFUL}",
            id="no-device-class",
        ),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", requests=[{"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "gone"}]}])],
            f"0/2 nodes are available: request r/s: device class gone does not exist. {NOTHING}, {NOT_HELPFUL}",
            id="no-device-class-of-an-alternative",
        ),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", requests=[{"name": "r"}])],
            "0/2 nodes are available: resource claim default/c0, request r: unknown request type. "
            f"no new claims to deallocate, {NOT_HELPFUL}",
            id="request-of-no-kind",
        ),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0")],
            "0/2 nodes are available: resource claim default/c0 is not allocated, and koord does not allocate devices. "
            f"no new claims to deallocate, {NOT_HELPFUL}",
            id="to-be-allocated",
        ),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", zone="z1")],
            "0/2 nodes are available: resource claim default/c0 is not reserved for the pod, "
            f"and koord does not reserve devices. no new claims to deallocate, {NOT_HELPFUL}",
            id="to-be-reserved",
        ),
        pytest.param(claimant(NAMED), [make_claim("c0", zone="z1", reserved="uid-p")], "n1", id="already-its-own"),
        pytest.param(
            claimant(NAMED),
            [make_claim("c0", zone="nowhere", reserved="uid-p")],
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
    plugin = DynamicResources(Devices(state))
    assert plugin.pre_enqueue(state.pod_info(pod)) is None
    assert plugin.pre_filter(CycleState(state), state.pod_info(pod)) is SKIP


def test_without_the_watch_only_pods_with_claims_are_refused() -> None:
    state = cluster()
    plugin = DynamicResources(None)
    assert plugin.pre_filter(CycleState(state), state.pod_info(claimant())) is SKIP
    refused = plugin.pre_filter(CycleState(state), state.pod_info(claimant(NAMED)))
    assert getattr(refused, "text", "") == CLAIMS_NOT_WATCHED
    assert plugin.pre_enqueue(state.pod_info(claimant(NAMED))) is None


def test_what_is_kept_for_a_pod_ends_when_claims_change() -> None:
    state = cluster()
    handle = Devices(state, make_claim("c0", zone="z0", reserved="uid-p"))
    engine = SchedulingEngine(default_profile(handle), state)
    pod = state.pod_info(claimant(NAMED))
    for zone, node in (("z0", "n0"), ("z1", "n1"), ("z0", "n0")):
        handle.claims.put(make_claim("c0", zone=zone, reserved="uid-p"))
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
    claim, free = make_claim("c0"), make_claim("c1")
    plugin = DynamicResources(Devices(state, claim, free))
    pod = state.pod_info(claimant(NAMED))
    allocated = make_claim("c0", zone="z0")
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
