"""Decide what becomes of the resource claims of pods: what is created, who stays a consumer, what is freed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.dynamic_resources import ResourceClaim, ResourceClaimConsumer
from koord.api.kubernetes.pod import Pod, PodResourceClaim
from koord.api.model import RawTemplate
from koord.embedded.workloads.controller_ref import controller_owner_of_kind, controller_reference
from koord.embedded.workloads.pod_state import is_pod_finished
from koord.embedded.workloads.pod_template import generate_name
from koord.kube.client.request_builder import Unstructured

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
DELETE_PROTECTION = "resource.kubernetes.io/delete-protection"
MAX_CONSUMERS = 256


class ClaimSync(msgspec.Struct, frozen=True, kw_only=True):
    """The writes that a claim needs. `consumers` is None where the status stays as it is."""

    consumers: tuple[ResourceClaimConsumer, ...] | None = None
    deallocate: bool = False
    unprotect: bool = False
    delete: bool = False


def is_pod_done_with_claims(pod: Pod) -> bool:
    """Return whether a pod needs its claims no longer: it has ended, or is deleted and will never run."""
    return is_pod_finished(pod) or (pod.metadata.deletion_timestamp is not None and not pod.spec.node_name)


def claim_from_template(pod: Pod, wanted: PodResourceClaim, template: RawTemplate, rng: Random) -> Unstructured:
    """Return the claim to create for one entry of a pod."""
    given = template.get("metadata") or {}
    base = f"{pod.metadata.name}-{wanted.name}-"
    meta: Unstructured = {
        "name": generate_name(base, rng),
        "generateName": base,
        "annotations": {**(given.get("annotations") or {}), POD_CLAIM_NAME: wanted.name},
        "ownerReferences": [controller_reference(PODS, pod)],
    }
    if given.get("labels"):
        meta["labels"] = {**given["labels"]}
    return {"metadata": meta, "spec": template.get("spec") or {}}


def generated_claim(pod: Pod, wanted: PodResourceClaim, claims: Iterable[ResourceClaim]) -> ResourceClaim | None:
    """Return the claim that was created before for an entry of the pod, whose status may not tell yet."""
    for claim in claims:
        meta = claim.metadata
        owner = controller_owner_of_kind(meta, PODS)
        is_own = owner is not None and owner.uid == pod.metadata.uid
        if is_own and meta.deletion_timestamp is None and meta.annotations.get(POD_CLAIM_NAME) == wanted.name:
            return claim
    return None


def claim_names(pod: Pod) -> list[str]:
    """Return the names of the claims of a pod as far as they are known."""
    made = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    stated = (
        wanted.resource_claim_name if wanted.resource_claim_name is not None else made.get(wanted.name)
        for wanted in pod.spec.resource_claims
    )
    return [name for name in stated if name]


def decide_claim(
    claim: ResourceClaim, pod_of: Callable[[ResourceClaimConsumer], Pod | None], owner: Pod | None
) -> ClaimSync:
    """Decide the writes for a claim.

    `pod_of` finds the pod of a consumer, None where there is none; `owner` is the pod that the claim was made for.
    """
    consumers = claim.status.reserved_for
    kept = tuple(consumer for consumer in consumers if _still_consumes(consumer, pod_of(consumer)))
    is_changed = len(kept) < len(consumers)
    meta = claim.metadata
    is_deleted = meta.deletion_timestamp is not None
    has_ended = owner is not None and is_pod_done_with_claims(owner)
    is_unused = not kept and (is_changed or is_deleted)
    return ClaimSync(
        consumers=kept if is_changed else None,
        deallocate=is_unused and claim.status.allocation is not None,
        unprotect=is_unused and DELETE_PROTECTION in meta.finalizers,
        delete=not kept and not is_deleted and has_ended,
    )


def _still_consumes(consumer: ResourceClaimConsumer, pod: Pod | None) -> bool:
    if consumer.api_group or consumer.resource != PODS.plural:
        return True  # of a kind that this controller does not know
    return pod is not None and pod.metadata.uid == consumer.uid and not is_pod_done_with_claims(pod)


def can_reserve(claim: ResourceClaim, pod: Pod) -> bool:
    """Return whether a pod that was bound past the scheduler is entered into an allocated claim."""
    reserved = claim.status.reserved_for
    return (
        bool(pod.spec.node_name)
        and not is_pod_done_with_claims(pod)
        and claim.status.allocation is not None
        and claim.metadata.deletion_timestamp is None
        and len(reserved) < MAX_CONSUMERS
        and all(consumer.uid != pod.metadata.uid for consumer in reserved)
    )
