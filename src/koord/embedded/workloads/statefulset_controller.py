"""The StatefulSet controller: pods with stable names and storage; pure functions decide which pod is created, updated
or deleted next."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from koord.api.kubernetes.builtin_kinds import CONTROLLER_REVISIONS, PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS
from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.workload import ControllerRevision, StatefulSet, StatefulSetStatus
from koord.api.model import RawTemplate
from koord.embedded.workloads import controller_ref, controller_revision
from koord.embedded.workloads.controller_context import (
    ControllerContext,
    ControllerExpectations,
    WrittenVersions,
    error_unless_gone,
    status_patch,
    sync_result,
)
from koord.embedded.workloads.controller_revision import REVISION_HASH_LABEL, RevisionHistory
from koord.embedded.workloads.pod_control import (
    OwnedPodWatch,
    desired_replicas,
    is_namespace_terminating,
    is_pod_available,
    is_pod_finished,
    is_pod_ready,
    next_available_s,
    pod_from_template,
)
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, WorkQueue
from koord.kube.events import recorder
from koord.kube.informer.cache import ObjectChange, ObjectKey
from koord.kube.transport.api_error import ApiError


class StatefulSetView(msgspec.Struct, frozen=True, kw_only=True):
    set: StatefulSet
    pods: tuple[Pod, ...]
    current: str  # revision names
    update: str
    collisions: int | None = None
    now: datetime


class NewStatefulPod(msgspec.Struct, frozen=True):
    ordinal: int
    revision: str


class StatefulSetPlan(msgspec.Struct, frozen=True, kw_only=True):
    create: tuple[NewStatefulPod, ...] = ()
    delete: tuple[Pod, ...] = ()
    status: StatefulSetStatus
    requeue_after_s: float | None = None


def first_ordinal(stateful_set: StatefulSet) -> int:
    return stateful_set.spec.ordinals.start if stateful_set.spec.ordinals is not None else 0


def ordinal_of(stateful_set: StatefulSet, name: str) -> int | None:
    prefix = f"{stateful_set.metadata.name}-"
    digits = name[len(prefix) :]
    if not name.startswith(prefix) or not digits.isdecimal() or str(int(digits)) != digits:
        return None
    return int(digits)


def is_condemned(stateful_set: StatefulSet, name: str) -> bool:
    """Return whether the pod's ordinal is no longer wanted."""
    ordinal, first = ordinal_of(stateful_set, name), first_ordinal(stateful_set)
    return ordinal is not None and not first <= ordinal < first + desired_replicas(stateful_set)


def rolling_partition(stateful_set: StatefulSet) -> int:
    rolling = stateful_set.spec.update_strategy.rolling_update
    return rolling.partition or 0 if rolling is not None else 0


def pod_revision(pod: Pod) -> str:
    return pod.metadata.labels.get(REVISION_HASH_LABEL, "")


def _is_terminating(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def _is_running_and_ready(pod: Pod) -> bool:
    return pod.status.phase == "Running" and is_pod_ready(pod)


def decide_stateful_set(view: StatefulSetView) -> StatefulSetPlan:
    spec = view.set.spec
    first, count = first_ordinal(view.set), desired_replicas(view.set)
    slots: dict[int, Pod] = {}
    surplus: list[tuple[int, Pod]] = []
    for pod in view.pods:
        ordinal = ordinal_of(view.set, pod.metadata.name)
        if ordinal is None:
            continue
        if first <= ordinal < first + count:
            slots[ordinal] = pod
        else:
            surplus.append((ordinal, pod))
    surplus.sort(key=lambda pair: pair[0], reverse=True)
    status = _status(view, [*slots.values(), *(pod for _, pod in surplus)])
    running = (pod for pod in view.pods if _is_running_and_ready(pod))
    wait_s = next_available_s(running, view.set.spec.min_ready_seconds, view.now)
    plan = StatefulSetPlan(status=status, requeue_after_s=wait_s)
    if view.set.metadata.deletion_timestamp is not None:
        return plan
    ordered = (spec.pod_management_policy or "OrderedReady") == "OrderedReady"
    create, delete, blocked = _create_missing(view, slots, range(first, first + count), ordered)
    if not blocked:
        gone, blocked = _delete_condemned([pod for _, pod in surplus], ordered)
        delete += gone
    if not blocked and not create and not delete and (spec.update_strategy.type or "RollingUpdate") == "RollingUpdate":
        delete += _roll_next(view, slots, first + rolling_partition(view.set))
    return msgspec.structs.replace(plan, create=tuple(create), delete=tuple(delete))


def _create_missing(
    view: StatefulSetView, slots: dict[int, Pod], ordinals: range, ordered: bool
) -> tuple[list[NewStatefulPod], list[Pod], bool]:
    """Create missing pods. In order, every pod must be ready before the next is considered."""
    create: list[NewStatefulPod] = []
    delete: list[Pod] = []
    for ordinal in ordinals:
        pod = slots.get(ordinal)
        blocked = True
        if pod is None:
            create.append(NewStatefulPod(ordinal, _revision_for_new_pod(view, ordinal)))
        elif is_pod_finished(pod) and not _is_terminating(pod):
            delete.append(pod)  # a new one takes its place when it is gone
        else:
            healthy = _is_running_and_ready(pod) and is_pod_available(pod, view.set.spec.min_ready_seconds, view.now)
            blocked = _is_terminating(pod) or not healthy
        if ordered and blocked:
            return create, delete, True
    return create, delete, False


def _revision_for_new_pod(view: StatefulSetView, ordinal: int) -> str:
    """Return the revision of a new pod: below the partition, or below what the rollout has reached, the current one."""
    strategy = view.set.spec.update_strategy
    if (strategy.type or "RollingUpdate") != "RollingUpdate":
        return view.update
    reached = rolling_partition(view.set) if strategy.rolling_update is not None else view.set.status.current_replicas
    return view.current if ordinal < first_ordinal(view.set) + reached else view.update


def _delete_condemned(condemned: Sequence[Pod], ordered: bool) -> tuple[list[Pod], bool]:
    """Delete condemned pods, the highest ordinal first; in order, only when nothing else is in motion."""
    staying = [pod for pod in condemned if not _is_terminating(pod)]
    if not ordered:
        return staying, False
    if condemned and _is_terminating(condemned[0]):
        return [], True
    return staying[:1], bool(condemned)


def _roll_next(view: StatefulSetView, slots: dict[int, Pod], lowest: int) -> list[Pod]:
    """Return one pod of an old revision, from the highest ordinal; none while a pod above it is not healthy."""
    for ordinal in sorted(slots, reverse=True):
        if ordinal < lowest:
            break
        pod = slots[ordinal]
        if pod_revision(pod) != view.update and not _is_terminating(pod):
            return [pod]
        healthy = (
            _is_running_and_ready(pod)
            and not _is_terminating(pod)
            and is_pod_available(pod, view.set.spec.min_ready_seconds, view.now)
        )
        if not healthy:
            break
    return []


def _status(view: StatefulSetView, pods: Sequence[Pod]) -> StatefulSetStatus:
    old, wait = view.set.status, view.set.spec.min_ready_seconds
    settled = [pod for pod in pods if not _is_terminating(pod)]
    status = StatefulSetStatus(
        observed_generation=view.set.metadata.generation,
        replicas=len(pods),
        ready_replicas=sum(_is_running_and_ready(pod) for pod in pods),
        available_replicas=sum(_is_running_and_ready(pod) and is_pod_available(pod, wait, view.now) for pod in pods),
        current_replicas=sum(pod_revision(pod) == view.current for pod in settled),
        updated_replicas=sum(pod_revision(pod) == view.update for pod in settled),
        current_revision=view.current,
        update_revision=view.update,
        collision_count=view.collisions if view.collisions is not None else 0,
        conditions=old.conditions,
    )
    count = desired_replicas(view.set)
    rolling = (view.set.spec.update_strategy.type or "RollingUpdate") == "RollingUpdate"
    if rolling and status.updated_replicas == status.replicas == status.ready_replicas == count:
        return msgspec.structs.replace(status, current_revision=view.update, current_replicas=status.updated_replicas)
    return status


def claim_names(stateful_set: StatefulSet, ordinal: int) -> dict[str, str]:
    """Return the claim name for each template name."""
    name = stateful_set.metadata.name
    templates = stateful_set.spec.volume_claim_templates
    return {t["metadata"]["name"]: f"{t['metadata']['name']}-{name}-{ordinal}" for t in templates}


def claim_bodies(stateful_set: StatefulSet, ordinal: int) -> list[Unstructured]:
    names = claim_names(stateful_set, ordinal)
    labels = dict(stateful_set.spec.selector.match_labels) if stateful_set.spec.selector is not None else {}
    bodies = []
    for template in stateful_set.spec.volume_claim_templates:
        given = template.get("metadata") or {}
        meta: Unstructured = {
            "name": names[given["name"]],
            "namespace": stateful_set.metadata.namespace,
            "labels": {**(given.get("labels") or {}), **labels},
        }
        if given.get("annotations"):
            meta["annotations"] = given["annotations"]
        if _retention_policy(stateful_set)[0]:
            meta["ownerReferences"] = [_stateful_set_reference(stateful_set)]
        bodies.append({"metadata": meta, "spec": template.get("spec") or {}})
    return bodies


def pod_volumes(stateful_set: StatefulSet, ordinal: int) -> list[Unstructured]:
    """Return the template's volumes, with those of claims in place of any of the same name."""
    claims = claim_names(stateful_set, ordinal)
    given = (stateful_set.spec.template.get("spec") or {}).get("volumes") or []
    kept = [volume for volume in given if volume.get("name") not in claims]
    made = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in claims.items()]
    return [*made, *kept]


def _retention_policy(stateful_set: StatefulSet) -> tuple[bool, bool]:
    """Return whether claims are deleted with the StatefulSet, and with a pod that is scaled away."""
    policy = stateful_set.spec.persistent_volume_claim_retention_policy
    if policy is None:
        return False, False
    return policy.when_deleted == "Delete", policy.when_scaled == "Delete"


def _stateful_set_reference(stateful_set: StatefulSet) -> Unstructured:
    meta = stateful_set.metadata
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": meta.name, "uid": meta.uid}
    return {**owner, "controller": True, "blockOwnerDeletion": True}


def claim_owner_references(
    stateful_set: StatefulSet, pod: Pod | None, claim: ObjectMeta, *, condemned: bool
) -> list[Unstructured] | None:
    """Return the owner references that the retention policy wants; None when the claim has them already, or when it has
    another controller, as an earlier StatefulSet of this name.
    """
    with_set, when_scaled = _retention_policy(stateful_set)
    wanted: list[Unstructured] = []
    if condemned and when_scaled and pod is not None:
        wanted = [{"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}]
    elif with_set:
        wanted = [_stateful_set_reference(stateful_set)]
    ours = {stateful_set.metadata.uid} | ({pod.metadata.uid} if pod is not None else set())
    have = {(ref.uid, ref.controller or False) for ref in claim.owner_references if ref.uid in ours}
    # A reference to an earlier pod of this name is ours too: with it the claim would go the way of that pod.
    stale = [r for r in claim.owner_references if r.kind == "Pod" and pod is not None and r.name == pod.metadata.name]
    if have == {(ref["uid"], ref.get("controller", False)) for ref in wanted} and not (stale and not condemned):
        return None
    drop = ours | {ref.uid for ref in stale}
    if any(ref.controller and ref.uid not in drop for ref in claim.owner_references):
        return None
    others = [
        {"apiVersion": r.api_version, "kind": r.kind, "name": r.name, "uid": r.uid}
        | ({"controller": True} if r.controller else {})
        | ({"blockOwnerDeletion": True} if r.block_owner_deletion else {})
        for r in claim.owner_references
        if r.uid not in drop
    ]
    return [*others, *wanted]


POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"


class StatefulSetController:
    name = "statefulset"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        informers = context.informers
        self._sets = informers.for_resource(STATEFUL_SETS)
        self._claims = informers.for_resource(PERSISTENT_VOLUME_CLAIMS)
        self._revisions = informers.for_resource(CONTROLLER_REVISIONS)
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        self._written_versions = WrittenVersions()
        controller_ref.index_by_controller(self._revisions)
        # Names are fixed, so nothing can be made twice: what the cache does not show yet needs no memory here.
        self._pods = OwnedPodWatch(
            context, self._sets, ControllerExpectations(context.clock), controller_ref.spec_selector, self._queue.add
        ).pods
        self._history = RevisionHistory(context.client, STATEFUL_SETS, self._revisions)
        self._sets.add_event_handler(self._set_changed)

    def _set_changed(self, change: ObjectChange[StatefulSet]) -> None:
        if change.kind == "deleted":
            self._written_versions.forget(change.object.metadata.uid)

    async def run(self) -> None:
        needs = (self._sets, self._pods, self._claims, self._revisions)
        await self._context.run_controller(self.name, self._queue, self.reconcile, needs)

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        stateful = self._sets.get(*key)
        if stateful is None or self._written_versions.is_stale(stateful):
            return Done()
        held = await controller_ref.claim_objects(
            self._client,
            STATEFUL_SETS,
            stateful,
            controller_ref.spec_selector(stateful),
            self._pods,
            is_eligible=lambda pod: ordinal_of(stateful, pod.metadata.name) is not None,
        )
        if not isinstance(held, tuple):
            return held
        collisions = stateful.status.collision_count
        update = await self._history.ensure_current(stateful, stateful.spec.template, collisions)
        if isinstance(update, Requeue):
            return update
        current = self._current(stateful, update)
        view = StatefulSetView(
            set=stateful,
            pods=held,
            current=current.metadata.name,
            update=update.metadata.name,
            collisions=collisions,
            now=self._context.now(),
        )
        return await self.apply(view, decide_stateful_set(view), {r.metadata.name: r for r in (current, update)})

    def _current(self, stateful: StatefulSet, update: ControllerRevision) -> ControllerRevision:
        name = stateful.status.current_revision
        known = {revision.metadata.name: revision for revision in self._history.revisions_of(stateful)}
        return known.get(name, update)

    async def apply(
        self, view: StatefulSetView, plan: StatefulSetPlan, revisions: dict[str, ControllerRevision]
    ) -> ReconcileResult:
        stateful, refused = view.set, None
        for new in plan.create:
            template = controller_revision.revision_template(revisions[new.revision])
            refused = await self._create(stateful, new, template) or refused
        for pod in plan.delete:
            refused = await self._delete(stateful, pod) or refused
        for pod in view.pods:
            if pod not in plan.delete:
                refused = await self._update_claim_owners(stateful, pod) or refused
        ended = await self._context.update_status(
            STATEFUL_SETS,
            stateful,
            status_patch(stateful.status, plan.status),
            exactly=True,
            written=self._written_versions,
        )
        if ended is not None:
            return ended
        in_use = {view.current, view.update, plan.status.current_revision, *(pod_revision(pod) for pod in view.pods)}
        refused = await self._history.prune(stateful, in_use, stateful.spec.revision_history_limit) or refused
        return sync_result(refused, plan.requeue_after_s)

    # -- pods

    async def _create(self, stateful: StatefulSet, new: NewStatefulPod, template: RawTemplate) -> ApiError | None:
        refused = await self._create_claims(stateful, new.ordinal)
        if refused is not None:
            return refused
        answer = await self._client.create(PODS, self._pod(stateful, new, template))
        if isinstance(answer, ApiError):
            if answer.already_exists:
                return None  # of ours, the cache will show it; of another's, its end will wake us
            if not is_namespace_terminating(answer):
                who = f"Pod {self._pod_name(stateful, new)} in StatefulSet {stateful.metadata.name}"
                self._record_event(stateful, "Warning", "FailedCreate", f"create {who} failed error: {answer.message}")
            return answer
        message = f"create Pod {answer.metadata.name} in StatefulSet {stateful.metadata.name} successful"
        self._record_event(stateful, "Normal", "SuccessfulCreate", message, answer)
        return None

    def _pod_name(self, stateful: StatefulSet, new: NewStatefulPod) -> str:
        return f"{stateful.metadata.name}-{new.ordinal}"

    def _pod(self, stateful: StatefulSet, new: NewStatefulPod, template: RawTemplate) -> Unstructured:
        name = self._pod_name(stateful, new)
        spec: Unstructured = {"hostname": name}
        if stateful.spec.service_name:
            spec["subdomain"] = stateful.spec.service_name
        if stateful.spec.volume_claim_templates:
            at = msgspec.structs.replace(stateful, spec=msgspec.structs.replace(stateful.spec, template=template))
            spec["volumes"] = pod_volumes(at, new.ordinal)
        labels = {
            POD_NAME_LABEL: name,
            POD_INDEX_LABEL: str(new.ordinal),
            controller_revision.REVISION_HASH_LABEL: new.revision,
        }
        return pod_from_template(
            template,
            name=name,
            generate_name=f"{stateful.metadata.name}-",
            namespace=stateful.metadata.namespace,
            owner=controller_ref.controller_reference(STATEFUL_SETS, stateful),
            labels=labels,
            spec=spec,
        )

    async def _delete(self, stateful: StatefulSet, pod: Pod) -> ApiError | None:
        refused = await self._update_claim_owners(stateful, pod)
        if refused is not None:
            return refused
        meta = pod.metadata
        answer = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        if isinstance(answer, ApiError):
            return error_unless_gone(answer)
        message = f"delete Pod {meta.name} in StatefulSet {stateful.metadata.name} successful"
        self._record_event(stateful, "Normal", "SuccessfulDelete", message, pod)
        return None

    # -- claims

    async def _create_claims(self, stateful: StatefulSet, ordinal: int) -> ApiError | None:
        for body in claim_bodies(stateful, ordinal):
            meta = body["metadata"]
            known = self._claims.get(meta["namespace"], meta["name"])
            if known is not None:
                if known.metadata.deletion_timestamp is not None:
                    message = f"persistentvolumeclaim {meta['name']} is being deleted"
                    self._record_event(stateful, "Warning", "FailedCreate", message)
                continue
            answer = await self._client.create(PERSISTENT_VOLUME_CLAIMS, body)
            if isinstance(answer, ApiError) and not answer.already_exists:
                return answer
            if not isinstance(answer, ApiError):
                message = f"create Claim {meta['name']} Pod {stateful.metadata.name}-{ordinal} in StatefulSet "
                self._record_event(
                    stateful, "Normal", "SuccessfulCreate", f"{message}{stateful.metadata.name} success", answer
                )
        return None

    async def _update_claim_owners(self, stateful: StatefulSet, pod: Pod) -> ApiError | None:
        """Update the owners of a pod's claims, which go with the set, with a scaled-away pod, or never."""
        ordinal = ordinal_of(stateful, pod.metadata.name)
        if ordinal is None or not stateful.spec.volume_claim_templates:
            return None
        for name in claim_names(stateful, ordinal).values():
            claim = self._claims.get(stateful.metadata.namespace, name)
            if claim is None:
                continue
            meta = claim.metadata
            owners = claim_owner_references(stateful, pod, meta, condemned=is_condemned(stateful, pod.metadata.name))
            if owners is None:
                continue
            patch = {"metadata": {"ownerReferences": owners or None}}
            answer = await self._client.patch_object(PERSISTENT_VOLUME_CLAIMS, claim, patch, kind="merge", exactly=True)
            if isinstance(answer, ApiError) and not answer.not_found:
                return answer
        return None

    def _record_event(
        self, stateful: StatefulSet, type: recorder.EventType, reason: str, message: str, about: object = None
    ) -> None:
        related = None
        if isinstance(about, Pod):
            related = recorder.object_reference(PODS, about)
        regarding = recorder.object_reference(STATEFUL_SETS, stateful)
        self._context.recorder.record(regarding, type, reason, message, related=related)
