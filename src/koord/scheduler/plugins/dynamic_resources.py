"""DynamicResources holds pods with ResourceClaims until the claims can be used, and rejects what koord cannot
serve.

No device is allocated here. A pod whose claims are allocated and reserved for it goes where its devices
are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import ClassVar

import msgspec

from koord.api.kubernetes.builtin_kinds import DEVICE_CLASSES, RESOURCE_CLAIMS
from koord.api.kubernetes.dynamic_resources import DeviceRequest, ResourceClaim
from koord.api.kubernetes.pod import PodResourceClaim
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.policy.node_match import NodeTerms
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import PostFilterRejection
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Reject, Skip, unresolvable

NOTHING_TO_FREE = "no new claims to deallocate"
STILL_NOT_SCHEDULABLE = "still not schedulable"
CLAIM_NOT_AVAILABLE = "resourceclaim not available on the node"
CLAIMS_NOT_WATCHED = "resource claims are not watched: feature gate DisableDynamicResourceAllocationInformer is on"


class _ClaimState(msgspec.Struct, frozen=True):
    """The node selectors of the devices that are allocated to the pod's claims."""

    claims: int = 0
    terms: tuple[NodeTerms, ...] = ()


_NO_CLAIMS = _ClaimState()


class DynamicResources(Plugin):
    name = "DynamicResources"
    scope = ROW
    reads_pods = "nothing"
    wakes_on = (
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "labels"),
        ClusterEvent("Node", UPDATE, "allocatable"),
        ClusterEvent("ResourceClaim", ADD),
        ClusterEvent("ResourceClaim", UPDATE),
        ClusterEvent("Pod", UPDATE, "claims"),
        ClusterEvent("DeviceClass", ADD),
        ClusterEvent("DeviceClass", UPDATE),
    )

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("resource.k8s.io", ("resourceclaims", "deviceclasses"), READ_VERBS),
    )

    def __init__(self, handle: Handle | None) -> None:
        """Read claims from the handle's listers; None is for API servers that have no ResourceClaims."""
        self._claims = handle.lister(RESOURCE_CLAIMS) if handle is not None else None
        self._classes = handle.lister(DEVICE_CLASSES) if handle is not None else None

    def signature(self, pod: PodInfo) -> Hashable:
        if not pod.shape.spec.resource_claims or self._claims is None:
            return None
        return pod.uid, self._claims.version

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        kind, new = object_event.event.kind, object_event.new
        if kind == "Pod":
            return bool(new.uid == pod.uid) and not isinstance(self._claims_of_pod(new), Reject)
        if kind != "ResourceClaim":
            return True
        found = self._claims_of_pod(pod)
        if isinstance(found, Reject) or all(claim.metadata.uid != new.metadata.uid for claim in found):
            return False
        return object_event.old is None or object_event.old.status != new.status

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        if not pod.shape.spec.resource_claims or self._claims is None:
            return None
        found = self._claims_of_pod(pod)
        return found if isinstance(found, Reject) else None

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | Fault | None:
        cycle.write(self.name, _NO_CLAIMS)
        if not pod.shape.spec.resource_claims:
            return SKIP
        if self._claims is None:
            return unresolvable(CLAIMS_NOT_WATCHED)
        found = self._claims_of_pod(pod)
        if isinstance(found, Reject):
            return found
        if not found:
            return SKIP
        terms: list[NodeTerms] = []
        for claim in found:
            refusal = self._check_claim(pod, claim)
            if refusal is not None:
                return refusal
            selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
            if selector is not None:
                terms.append(NodeTerms(selector))
                if terms[-1].error:
                    return Fault(terms[-1].error)
        cycle.write(self.name, _ClaimState(len(found), tuple(terms)))
        return None

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        assert node.node is not None
        here = all(terms.matches(node.node) for terms in cycle.read(self.name, _ClaimState).terms)
        return None if here else unresolvable(CLAIM_NOT_AVAILABLE)

    def post_filter(self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext) -> PostFilterRejection | Fault:
        """Return Kubernetes' message, which users read before that of preemption for every rejected pod.

        Where PreFilter ended before this plugin ran, kube-scheduler reports an error and tries nothing else; so
        does this.
        """
        kept = cycle.plugin_data.get(self.name)
        if not isinstance(kept, _ClaimState):
            return Fault("not found")
        return PostFilterRejection((STILL_NOT_SCHEDULABLE if kept.claims else NOTHING_TO_FREE,))

    # Claims ------------------------------------------------------------------------------------------------------

    def _claims_of_pod(self, pod: PodInfo) -> list[ResourceClaim] | Reject:
        """Return the claims of the pod, or the rejection for the first that is missing or not the pod's own."""
        found = []
        for wanted in pod.shape.spec.resource_claims:
            name = _claim_name(pod, wanted)
            if isinstance(name, Reject):
                return name
            if name is None:  # the claim controller found that this claim is not needed
                continue
            claim = self._claims.get(pod.namespace, name) if self._claims is not None else None
            if claim is None:
                return unresolvable(f'could not find ResourceClaim "{pod.namespace}/{name}"')
            if claim.metadata.deletion_timestamp is not None:
                return unresolvable(f'resourceclaim "{name}" is being deleted')
            if wanted.resource_claim_name is None and not _is_owner(pod, claim):
                whose = f"ResourceClaim {pod.namespace}/{name} was not created for pod {pod.key}"
                return unresolvable(f"{whose} (pod is not owner)")
            found.append(claim)
        return found

    def _check_claim(self, pod: PodInfo, claim: ResourceClaim) -> Reject | Fault | None:
        """Return why the devices of an existing claim cannot be given to the pod; None when they can."""
        key = f"{claim.metadata.namespace}/{claim.metadata.name}"
        if claim.status.allocation is not None:
            if any(consumer.uid == pod.uid for consumer in claim.status.reserved_for):
                return None
            return unresolvable(f"resource claim {key} is not reserved for the pod, and koord does not reserve devices")
        for request in claim.spec.devices.requests:
            asked = list(_device_classes(request))
            if not asked:
                return unresolvable(f"resource claim {key}, request {request.name}: unknown request type")
            for name, device_class in asked:
                if not device_class:
                    return Fault(f"request {name}: unsupported request type")
                if self._classes is not None and self._classes.get("", device_class) is None:
                    return unresolvable(f"request {name}: device class {device_class} does not exist")
        return unresolvable(f"resource claim {key} is not allocated, and koord does not allocate devices")


def _claim_name(pod: PodInfo, wanted: PodResourceClaim) -> str | Reject | None:
    if wanted.resource_claim_name is not None:
        return wanted.resource_claim_name
    if wanted.resource_claim_template_name is None:
        whose = f'pod "{pod.key}", spec.resourceClaim "{wanted.name}"'
        return unresolvable(f"{whose}: none of the supported fields are set")
    for made in pod.claims:
        if made.name == wanted.name:
            return made.resource_claim_name
    return unresolvable(f'pod "{pod.key}": ResourceClaim not created yet')


def _is_owner(pod: PodInfo, claim: ResourceClaim) -> bool:
    return any(owner.controller and owner.uid == pod.uid for owner in claim.metadata.owner_references)


def _device_classes(request: DeviceRequest) -> Iterator[tuple[str, str]]:
    """Yield each device class that a request names, with the name of the request."""
    if request.exactly is not None:
        yield request.name, request.exactly.device_class_name
    for alternative in request.first_available:
        yield f"{request.name}/{alternative.name}", alternative.device_class_name
