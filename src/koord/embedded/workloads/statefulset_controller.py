"""The StatefulSet controller: pods with stable names and storage, created, updated and deleted in order."""

from __future__ import annotations

import msgspec

from koord.api.kubernetes.builtin_kinds import CONTROLLER_REVISIONS, PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.workload import ControllerRevision, StatefulSet
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
from koord.embedded.workloads.controller_revision import RevisionHistory
from koord.embedded.workloads.pod_control import OwnedPodWatch, is_namespace_terminating, pod_from_template
from koord.embedded.workloads.statefulset_plan import (
    NewStatefulPod,
    StatefulSetPlan,
    StatefulSetView,
    claim_bodies,
    claim_names,
    claim_owner_references,
    decide_stateful_set,
    is_condemned,
    ordinal_of,
    pod_revision,
    pod_volumes,
)
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, WorkQueue
from koord.kube.events import recorder
from koord.kube.informer.cache import ObjectChange, ObjectKey
from koord.kube.transport.api_error import ApiError

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
