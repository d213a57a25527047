"""Pods as controllers see them (phase, readiness, their nodes, who is deleted first) and as controllers make them
(the body from a template, its hash, random names).

Pods are created in batches that double with success, and expected until the caches show them.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.meta import Object, ObjectMeta
from koord.api.kubernetes.pod import Pod, PodCondition
from koord.api.kubernetes.resource import Resource
from koord.api.model import RawTemplate
from koord.embedded.workloads.controller_context import ControllerContext, ControllerExpectations, error_unless_gone
from koord.embedded.workloads.controller_ref import (
    controller_owner,
    controller_owner_of_kind,
    index_by_controller,
    index_by_selector,
    objects_selecting,
)
from koord.kube.client.request_builder import Unstructured
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventType, object_reference
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError
from koord.values import timestamp
from koord.values.names import SAFE_NAME_ALPHABET
from koord.values.selector import Selector

_SUFFIX_LENGTH = 5
_MAX_BASE_LENGTH = 63 - _SUFFIX_LENGTH

POD_TEMPLATE_HASH = "pod-template-hash"


class _ReplicatedSpec(Protocol):
    @property
    def replicas(self) -> int | None: ...


class _ReplicatedObject(Protocol):
    @property
    def spec(self) -> _ReplicatedSpec: ...


def desired_replicas(owner: _ReplicatedObject) -> int:
    replicas = owner.spec.replicas
    return 1 if replicas is None else replicas


def name_suffix(rng: Random) -> str:
    return "".join(rng.choices(SAFE_NAME_ALPHABET, k=_SUFFIX_LENGTH))


def generate_name(base: str, rng: Random) -> str:
    """Return a name as the server generates it from `base`, cut so that it stays a label."""
    return base[:_MAX_BASE_LENGTH] + name_suffix(rng)


def safe_encode(text: str) -> str:
    """Encode text in the alphabet of generated names."""
    return "".join(SAFE_NAME_ALPHABET[ord(letter) % len(SAFE_NAME_ALPHABET)] for letter in text)


def template_hash(template: Any, collisions: int | None = None) -> str:
    """Return a short hash of the content; `collisions` gives another one after a collision."""
    digest = hashlib.blake2b(msgspec.json.encode(template, order="deterministic"), digest_size=4)
    if collisions is not None:
        digest.update(collisions.to_bytes(4, "little"))
    return safe_encode(str(int.from_bytes(digest.digest(), "big")))


def template_labels(template: RawTemplate) -> dict[str, str]:
    return dict((template.get("metadata") or {}).get("labels") or {})


def same_template(one: RawTemplate, other: RawTemplate) -> bool:
    """Return whether two templates are equal but for the hash label that a Deployment adds to its ReplicaSets."""
    return _without_hash(one) == _without_hash(other)


def _without_hash(template: RawTemplate) -> RawTemplate:
    meta = {k: v for k, v in (template.get("metadata") or {}).items() if v is not None}
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k != POD_TEMPLATE_HASH}
    meta.pop("labels", None)
    return {"metadata": {**meta, "labels": labels}, "spec": template.get("spec") or {}}


def pod_from_template(
    template: RawTemplate,
    *,
    name: str,
    namespace: str,
    owner: Unstructured,
    generate_name: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    spec: Unstructured | None = None,
) -> Unstructured:
    """Return the pod to create. Parts are shared with the template: whoever sends it must not change it."""
    given = template.get("metadata") or {}
    meta: Unstructured = {"name": name, "namespace": namespace}
    if generate_name:
        meta["generateName"] = generate_name
    for key, extra in (("labels", labels), ("annotations", annotations)):
        merged = {**(given.get(key) or {}), **(extra or {})}
        if merged:
            meta[key] = merged
    held = [*(given.get("finalizers") or ()), *finalizers]
    if held:
        meta["finalizers"] = list(dict.fromkeys(held))
    meta["ownerReferences"] = [owner]
    return {"metadata": meta, "spec": {**(template.get("spec") or {}), **(spec or {})}}


# A template that the server refuses is refused once, not five hundred times.
SLOW_START_BATCH = 1
BURST_REPLICAS = 500
_NAME_TRIES = 4


class PodControl:
    def __init__(
        self, context: ControllerContext, resource: Resource[Any], expectations: ControllerExpectations
    ) -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._resource = resource
        self._expectations = expectations

    async def create(self, owner: Object, bodies: Sequence[Callable[[], Unstructured]]) -> tuple[int, ApiError | None]:
        """Create pods; return how many were made and the first refusal, after which no further batch was begun.

        A body is made anew when its name turns out to be taken.
        """
        made, size, at = 0, SLOW_START_BATCH, 0
        while at < len(bodies):
            batch = bodies[at : at + size]
            answers = await asyncio.gather(*(self._create(owner, body) for body in batch), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            refusals = [answer for answer in answers if isinstance(answer, ApiError)]
            made += len(batch) - len(refusals)
            if refusals:
                return made, refusals[0]
            at += len(batch)
            size *= 2
        return made, None

    async def delete(self, owner: Object, pods: Sequence[Pod]) -> ApiError | None:
        answers = await asyncio.gather(*(self._delete(owner, pod) for pod in pods), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return next((answer for answer in answers if isinstance(answer, ApiError)), None)

    async def _create(self, owner: Object, make: Callable[[], Unstructured]) -> ApiError | None:
        uid = owner.metadata.uid
        self._expectations.expect_creation(uid)
        answer: Pod | ApiError | None = None
        try:
            for _ in range(_NAME_TRIES):
                answer = await self._client.create(PODS, make())
                if not (isinstance(answer, ApiError) and answer.already_exists):
                    break
        finally:
            if isinstance(answer, Pod):
                self._expectations.created(uid, answer.metadata.uid)
            else:
                self._expectations.creation_failed(uid)
        assert answer is not None, "at least one try was made"
        if isinstance(answer, ApiError):
            # A namespace that is being emptied refuses everything: that is no news.
            if not is_namespace_terminating(answer):
                self._record_event(owner, "Warning", "FailedCreate", f"Error creating: {answer.message}")
            return answer
        self._record_event(owner, "Normal", "SuccessfulCreate", f"Created pod: {answer.metadata.name}", answer)
        return None

    async def _delete(self, owner: Object, pod: Pod) -> ApiError | None:
        uid, meta = owner.metadata.uid, pod.metadata
        self._expectations.expect_deletion(uid, meta.uid)
        done = False
        try:
            answer = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
            done = not isinstance(answer, ApiError)
        finally:
            if not done:
                self._expectations.deletion_failed(uid, meta.uid)
        if isinstance(answer, ApiError):
            if answer.not_found or answer.conflict:
                return None  # gone already, which is what was wanted
            self._record_event(owner, "Warning", "FailedDelete", f"Error deleting: {answer.message}")
            return answer
        self._record_event(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {meta.name}", pod)
        return None

    def _record_event(self, owner: Object, type: EventType, reason: str, message: str, pod: Pod | None = None) -> None:
        """Record an event. It names the pod, so that events about two pods do not count as repetitions."""
        related = None if pod is None else object_reference(PODS, pod)
        self._recorder.record(object_reference(self._resource, owner), type, reason, message, related=related)


def is_namespace_terminating(refused: ApiError) -> bool:
    """Return whether a request was refused because its namespace is terminating."""
    return refused.forbidden and any(
        cause.reason == "NamespaceTerminating" for cause in (refused.details.causes if refused.details else ())
    )


O = TypeVar("O", bound=Object)  # noqa: E741  an object


class OwnedPodWatch(Generic[O]):
    """Connects an informer of owners with the one of pods. `wake(key)` enqueues an owner."""

    def __init__(
        self,
        context: ControllerContext,
        owners: Informer[O],
        expectations: ControllerExpectations,
        select: Callable[[O], Selector],
        wake: Callable[[ObjectKey], None],
    ) -> None:
        self._owners = owners
        self._expectations = expectations
        self._select = select
        self._enqueue = wake
        self.pods: Informer[Pod] = context.pods()
        index_by_controller(self.pods)
        index_by_selector(owners, select)
        owners.add_event_handler(self._owner_changed)
        self.pods.add_event_handler(self._pod_changed)

    def _owner_changed(self, change: ObjectChange[Any]) -> None:
        if change.kind == "deleted":
            self._expectations.forget(change.object.metadata.uid)
        self._enqueue(object_key(change.object))

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        pod, old = change.object, change.old
        meta = pod.metadata
        owner = controller_owner_of_kind(meta, self._owners.resource)
        if old is not None:
            before = controller_owner_of_kind(old.metadata, self._owners.resource)
            if before is not None and (owner is None or before.uid != owner.uid):
                self._expectations.observed_deletion(before.uid, meta.uid)
                self._enqueue((meta.namespace, before.name))
        if owner is not None:
            if change.kind == "deleted" or meta.deletion_timestamp is not None:
                self._expectations.observed_deletion(owner.uid, meta.uid)
            else:
                self._expectations.observed(owner.uid, meta.uid)
            self._enqueue((meta.namespace, owner.name))
        elif change.kind != "deleted" and controller_owner(meta) is None and _matters_to_adopters(old, meta):
            for candidate in objects_selecting(self._owners, meta, self._select):
                self._enqueue(object_key(candidate))


def _matters_to_adopters(old: Pod | None, meta: ObjectMeta) -> bool:
    """Return whether a change matters to possible adopters: only labels and the loss of an owner do."""
    return old is None or old.metadata.labels != meta.labels or bool(old.metadata.owner_references)


FINISHED_PHASES = ("Succeeded", "Failed")


def is_pod_finished(pod: Pod) -> bool:
    return pod.status.phase in FINISHED_PHASES


def is_pod_terminating(pod: Pod) -> bool:
    """Return whether the pod is being deleted and still runs."""
    return pod.metadata.deletion_timestamp is not None and not is_pod_finished(pod)


def is_pod_active(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and not is_pod_finished(pod)


def pod_condition(pod: Pod, type: str) -> PodCondition | None:
    for found in pod.status.conditions:
        if found.type == type:
            return found
    return None


def is_pod_ready(pod: Pod) -> bool:
    found = pod_condition(pod, "Ready")
    return found is not None and found.status == "True"


def pod_ready_since(pod: Pod) -> datetime | None:
    found = pod_condition(pod, "Ready")
    return found.last_transition_time if found is not None and found.status == "True" else None


def pod_available_at(pod: Pod, min_ready_s: int) -> datetime | None:
    """Return when the pod counts as available if it stays ready; None when it is not ready."""
    since = pod_ready_since(pod)
    return None if since is None else since + timedelta(seconds=min_ready_s)


def is_pod_available(pod: Pod, min_ready_s: int, now: datetime) -> bool:
    if not min_ready_s:
        return is_pod_ready(pod)
    at = pod_available_at(pod, min_ready_s)
    return at is not None and at <= now


def next_available_s(pods: Iterable[Pod], min_ready_s: int, now: datetime) -> float | None:
    """Return the seconds until the next ready pod becomes available, or None."""
    if not min_ready_s:
        return None
    ahead = [at for pod in pods if (at := pod_available_at(pod, min_ready_s)) is not None and at > now]
    return (min(ahead) - now).total_seconds() if ahead else None


def max_restart_count(pod: Pod) -> int:
    return max((status.restart_count for status in pod.status.container_statuses), default=0)


_NODE_INDEX = "node"


def index_pods_by_node(pods: Informer[Pod]) -> None:
    if not pods.has_index(_NODE_INDEX):
        pods.add_index(_NODE_INDEX, lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ())


def pods_on_node(pods: Informer[Pod], node: str) -> list[Pod]:
    return pods.by_index(_NODE_INDEX, node)


def nodes_with_pods(pods: Informer[Pod]) -> list[str]:
    return pods.index_values(_NODE_INDEX)


DISRUPTION_TARGET = "DisruptionTarget"


async def add_disruption_target(
    client: Client, pod: Pod, reason: str, message: str, now: datetime, *, phase: str = ""
) -> ApiError | None:
    """Add the DisruptionTarget condition. `phase` is also set, for a pod that no kubelet will ever report on again."""
    status: Unstructured = {}
    known = pod_condition(pod, DISRUPTION_TARGET)
    if known is None or known.status != "True" or known.reason != reason:
        mark = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": timestamp.text(now),
        }
        status["conditions"] = [mark]
    if phase and pod.status.phase != phase:
        status["phase"] = phase
    if not status:
        return None
    answer = await client.patch_object(PODS, pod, {"status": status}, kind="strategic", subresource="status")
    return error_unless_gone(answer)


DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASE_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}


def deletion_cost(pod: Pod) -> int:
    """Return the deletion cost; 0 when the annotation is absent or not a 32-bit integer."""
    text = pod.metadata.annotations.get(DELETION_COST)
    if text is None:
        return 0
    try:
        cost = int(text)
    except ValueError:
        return 0
    return cost if -(1 << 31) <= cost < 1 << 31 else 0


def pods_to_delete(pods: Sequence[Pod], count: int, related: Iterable[Pod], now: datetime) -> tuple[Pod, ...]:
    """Return `count` of `pods` to delete; `related` are the pods of all ReplicaSets of the same Deployment."""
    if count >= len(pods):
        return tuple(pods)
    crowd = Counter(pod.spec.node_name for pod in related if is_pod_active(pod) and pod.spec.node_name)
    return tuple(heapq.nsmallest(count, pods, key=lambda pod: _deletion_rank(pod, crowd, now)))


def _deletion_rank(
    pod: Pod, crowd: Counter[str], now: datetime
) -> tuple[bool, int, bool, int, int, int, int, int, str]:
    """Return the deletion rank, lowest first: unassigned, pending, not ready, cheap, crowded, lately ready, often
    restarted, young.

    Ages of one order of magnitude are equal, and in the end the UID decides: between equals the choice is random.
    """
    return (
        bool(pod.spec.node_name),
        _PHASE_RANK.get(pod.status.phase, 0),
        is_pod_ready(pod),
        deletion_cost(pod),
        -crowd[pod.spec.node_name],
        _magnitude(pod_ready_since(pod), now),
        -max_restart_count(pod),
        _magnitude(pod.metadata.creation_timestamp, now),
        pod.metadata.uid,
    )


def _magnitude(at: datetime | None, now: datetime) -> int:
    nanoseconds = (now - at).total_seconds() * 1e9 if at is not None else 0.0
    return int(math.log2(nanoseconds)) if nanoseconds >= 1 else 0
