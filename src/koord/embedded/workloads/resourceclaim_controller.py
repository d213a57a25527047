"""The resource claim controller creates the claims of pods from their templates, and gives back what pods have left.
Pure functions decide what is created, who stays a consumer and what is freed.

The scheduler allocates a claim and reserves it for a pod. When the last consumer has ended the claim is deallocated; a
claim that was made for a pod is deleted with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random

import msgspec

from koord.api.kubernetes.builtin_kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from koord.api.kubernetes.dynamic_resources import ResourceClaim, ResourceClaimConsumer, ResourceClaimTemplate
from koord.api.kubernetes.pod import Pod, PodResourceClaim
from koord.api.model import RawTemplate, to_dict
from koord.embedded.workloads.controller_context import ControllerContext, error_unless_gone
from koord.embedded.workloads.controller_ref import (
    controller_owner_of_kind,
    controller_reference,
    index_by_controller,
    owned_objects,
)
from koord.embedded.workloads.pod_control import generate_name, is_namespace_terminating, is_pod_finished
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, WorkQueue
from koord.kube.events.recorder import object_reference
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError

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


_NAME_TRIES = 4


class ResourceClaimController:
    name = "resourceclaim"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._rng = context.rng_for(self.name)
        self._claims = context.informers.for_resource(RESOURCE_CLAIMS)
        self._templates = context.informers.for_resource(RESOURCE_CLAIM_TEMPLATES)
        self._pods = context.pods()
        self._pod_queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name="resourceclaim-pods")
        self._claim_queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name="resourceclaim-claims")
        index_by_controller(self._claims)
        self._claims.add_event_handler(self._claim_changed)
        self._templates.add_event_handler(self._template_changed)
        self._pods.add_event_handler(self._pod_changed)

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        if not pod.spec.resource_claims:
            return
        namespace = pod.metadata.namespace
        if change.kind != "deleted":
            self._pod_queue.add(object_key(pod))
        if change.kind == "deleted" or is_pod_done_with_claims(pod):
            for name in claim_names(pod):
                self._claim_queue.add((namespace, name))
            for claim in owned_objects(self._claims, pod.metadata.uid):
                self._claim_queue.add(object_key(claim))

    def _claim_changed(self, change: ObjectChange[ResourceClaim]) -> None:
        claim = change.object
        if change.kind != "deleted":
            self._claim_queue.add(object_key(claim))
        owner = controller_owner_of_kind(claim.metadata, PODS)
        if owner is not None:  # its pod learns its name, or gets another one
            self._pod_queue.add((claim.metadata.namespace, owner.name))

    def _template_changed(self, change: ObjectChange[ResourceClaimTemplate]) -> None:
        """Try pods again that may have waited for a template of this name."""
        meta = change.object.metadata
        if change.kind != "added":
            return
        for pod in self._pods.list(meta.namespace):
            if any(wanted.resource_claim_template_name == meta.name for wanted in pod.spec.resource_claims):
                self._pod_queue.add(object_key(pod))

    async def run(self) -> None:
        needs = (self._claims, self._templates, self._pods)
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self._context.run_controller("resourceclaim-pods", self._pod_queue, self._sync_pod, needs)
            )
            group.create_task(
                self._context.run_controller("resourceclaim-claims", self._claim_queue, self._sync_claim, needs)
            )

    # Pods --------------------------------------------------------------------------------------------------------

    async def _sync_pod(self, key: ObjectKey) -> ReconcileResult:
        pod = self._pods.get(*key)
        if pod is None or pod.metadata.deletion_timestamp is not None or is_pod_done_with_claims(pod):
            return Done()
        known = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
        found: dict[str, str] = {}
        for wanted in pod.spec.resource_claims:
            if wanted.resource_claim_template_name is None:
                continue
            if wanted.name in known and known[wanted.name] is None:
                continue  # this claim is not needed
            claim = await self._ensure_claim(pod, wanted)
            if isinstance(claim, ApiError):
                return Done() if is_namespace_terminating(claim) else Requeue(claim.message)
            if claim is None:
                return Done()  # without a template; its creation wakes this pod
            if known.get(wanted.name) != claim.metadata.name:
                found[wanted.name] = claim.metadata.name
        if found:
            refused = await self._report_names(pod, found)
            if refused is not None:
                return Requeue(refused.message)
        return await self._reserve(pod)

    async def _ensure_claim(self, pod: Pod, wanted: PodResourceClaim) -> ResourceClaim | ApiError | None:
        """Return the claim of an entry of the pod; make it where there is none. None: its template is not there."""
        made = generated_claim(pod, wanted, owned_objects(self._claims, pod.metadata.uid))
        if made is not None:
            return made
        namespace = pod.metadata.namespace
        listed = await self._client.list(RESOURCE_CLAIMS, namespace)  # what was just made may not be in the cache
        if isinstance(listed, ApiError):
            return listed
        made = generated_claim(pod, wanted, listed.items)
        if made is not None:
            return made
        name = wanted.resource_claim_template_name or ""
        template = await self._client.get(RESOURCE_CLAIM_TEMPLATES, name, namespace)
        if isinstance(template, ApiError):
            if not template.not_found:
                return template
            self._record_failure(
                pod, f'PodResourceClaim {wanted.name}: resource claim template "{name}": {template.message}'
            )
            return None
        answer: ResourceClaim | ApiError | None = None
        for _ in range(_NAME_TRIES):
            body = claim_from_template(pod, wanted, template.spec, self._rng)
            answer = await self._client.create(RESOURCE_CLAIMS, body, namespace)
            if not (isinstance(answer, ApiError) and answer.already_exists):
                break
        if isinstance(answer, ApiError) and not is_namespace_terminating(answer):
            self._record_failure(
                pod, f"PodResourceClaim {wanted.name}: failed to create ResourceClaim: {answer.message}"
            )
        return answer

    def _record_failure(self, pod: Pod, message: str) -> None:
        self._context.recorder.record(object_reference(PODS, pod), "Warning", "FailedResourceClaimCreation", message)

    async def _report_names(self, pod: Pod, found: dict[str, str]) -> ApiError | None:
        listed = [{"name": name, "resourceClaimName": claim} for name, claim in sorted(found.items())]
        patch: Unstructured = {"status": {"resourceClaimStatuses": listed}}
        answer = await self._client.patch_object(PODS, pod, patch, kind="strategic", subresource="status")
        return error_unless_gone(answer)

    async def _reserve(self, pod: Pod) -> ReconcileResult:
        """Reserve allocated claims for a pod that somebody bound without the scheduler."""
        if not pod.spec.node_name:
            return Done()
        consumer = {"resource": PODS.plural, "name": pod.metadata.name, "uid": pod.metadata.uid}
        for name in claim_names(pod):
            claim = self._claims.get(pod.metadata.namespace, name)
            if claim is None or not can_reserve(claim, pod):
                continue
            reserved = [*map(to_dict, claim.status.reserved_for), consumer]
            ended = await self._context.update_status(RESOURCE_CLAIMS, claim, {"reservedFor": reserved}, exactly=True)
            if ended is not None:
                return ended
        return Done()

    # Claims ------------------------------------------------------------------------------------------------------

    async def _sync_claim(self, key: ObjectKey) -> ReconcileResult:
        claim = self._claims.get(*key)
        if claim is None:
            return Done()
        pods = await self._consumers(claim)
        if isinstance(pods, ApiError):
            return Requeue(pods.message)
        reference = controller_owner_of_kind(claim.metadata, PODS)
        owner = self._pods.get(key[0], reference.name) if reference is not None else None
        if owner is not None and reference is not None and owner.metadata.uid != reference.uid:
            owner = None
        return await self._apply(claim, decide_claim(claim, lambda consumer: pods.get(consumer.uid), owner))

    async def _consumers(self, claim: ResourceClaim) -> dict[str, Pod] | ApiError:
        """Return the pods of a claim's consumers by UID. The cache may lag, so its absent pods are asked for."""
        found: dict[str, Pod] = {}
        for consumer in claim.status.reserved_for:
            if consumer.resource != PODS.plural:
                continue
            pod = self._pods.get(claim.metadata.namespace, consumer.name)
            if pod is None or pod.metadata.uid != consumer.uid:
                answer = await self._client.get(PODS, consumer.name, claim.metadata.namespace)
                if isinstance(answer, ApiError):
                    if not answer.not_found:
                        return answer
                    continue
                pod = answer
            found[pod.metadata.uid] = pod
        return found

    async def _apply(self, claim: ResourceClaim, plan: ClaimSync) -> ReconcileResult:
        patch: Unstructured = {}
        if plan.consumers is not None:
            patch["reservedFor"] = [to_dict(consumer) for consumer in plan.consumers] or None
        if plan.deallocate:
            patch |= {"allocation": None, "devices": None}
        if patch:
            ended = await self._context.update_status(RESOURCE_CLAIMS, claim, patch, exactly=True)
            if ended is not None:
                return ended
        if plan.unprotect:
            removed = {"metadata": {"$deleteFromPrimitiveList/finalizers": [DELETE_PROTECTION]}}
            answer = await self._client.patch_object(RESOURCE_CLAIMS, claim, removed, kind="strategic")
            if (refused := error_unless_gone(answer)) is not None:
                return Requeue(refused.message)
        if plan.delete:
            meta = claim.metadata
            gone = await self._client.delete(RESOURCE_CLAIMS, meta.name, meta.namespace, uid=meta.uid)
            if (refused := error_unless_gone(gone)) is not None:
                return Requeue(refused.message)
        return Done()
