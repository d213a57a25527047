"""Handle DELETE of one object and of a collection: preconditions, admission, and the plan, a pure decision."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import msgspec

from koord.api.kubernetes.meta import DeleteOptions, Preconditions
from koord.api.model import Obj, to_dict
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.api_errors import OPTIMISTIC_LOCK_ERROR
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.rest.create_update import UPDATE_TRIES, ObjectWriter
from koord.embedded.apiserver.rest.listing import list_page
from koord.embedded.apiserver.rest.object_metadata import ordered_metadata
from koord.embedded.apiserver.rest.options import ListOptions
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes, RequestContext, ServerDeps
from koord.embedded.apiserver.store.collection import StoreRecord
from koord.values import timestamp


class DeleteOutcome(msgspec.Struct, frozen=True):
    """The result of a DELETE. `record` is the object as the deletion left it; `plain` the same after a dry run."""

    removed: bool
    uid: str
    record: StoreRecord | None = None
    plain: Obj | None = None


class Deleter:
    def __init__(self, deps: ServerDeps, writer: ObjectWriter) -> None:
        self._deps = deps
        self._writer = writer

    async def delete(self, context: RequestContext, options: DeleteOptions, *, admitted: bool = False) -> DeleteOutcome:
        resource = context.resource
        collection = context.collection(self._deps)
        for _ in range(UPDATE_TRIES):
            record = collection.get(context.namespace, context.name)
            if record is None:
                raise api_errors.not_found(resource.plural, resource.group, context.name)
            check_preconditions(resource, record.plain(), options.preconditions)
            if not admitted:
                await self._admit(context, record, options)
            if collection.get(context.namespace, context.name) is record:
                return await self._execute(context, record, options)
        raise api_errors.conflict(resource.plural, resource.group, context.name, OPTIMISTIC_LOCK_ERROR)

    async def _admit(self, context: RequestContext, record: StoreRecord, options: DeleteOptions) -> None:
        admission = self._deps.admission
        if not admission.mutating and not admission.validating:
            return
        attributes = AdmissionAttributes(
            "DELETE",
            context.resource,
            context.name,
            context.namespace,
            None,
            record.plain(),
            dry_run=bool(options.dry_run),
            user=context.request.user,
            options={**to_dict(options), "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"},
            warnings=context.warnings,
        )
        await admission.mutate(attributes)
        await admission.validate(attributes)

    def _plan(self, resource: ServedResource, obj: Obj, options: DeleteOptions) -> DeletePlan:
        now = self._deps.metadata_generator.now()
        if resource.storage == "namespaces":
            marked = mark_namespace_terminating(obj, now)
            if obj.get("spec", {}).get("finalizers"):
                return DeletePlan(None if marked is obj else marked, remove=False)
        if resource.strategy.mark_for_deletion is not None:
            marked = resource.strategy.mark_for_deletion(obj, now)
            return DeletePlan(None if marked is obj else marked, remove=False)
        facts = DeleteFacts(now, resource.storage == "pods", resource.orphans_by_default)
        return decide_delete(obj, options, facts)

    async def _execute(self, context: RequestContext, record: StoreRecord, options: DeleteOptions) -> DeleteOutcome:
        deps, resource = self._deps, context.resource
        obj = record.plain()
        plan = self._plan(resource, obj, options)
        uid = obj["metadata"]["uid"]
        if bool(options.dry_run):
            return DeleteOutcome(plan.remove, uid, None, plan.marked or obj)
        if plan.marked is not None and plan.marked != obj:
            record = self._store_marked(resource, context.namespace, context.name, plan.marked)
        if plan.remove:
            gone = deps.store.delete(resource.storage, context.namespace, context.name)
            assert gone is not None, "the record was there and nothing was awaited"
            record = gone
        await deps.store.wait_durable(record.revision)
        return DeleteOutcome(plan.remove, uid, record)

    def _store_marked(self, resource: ServedResource, namespace: str, name: str, obj: Obj) -> StoreRecord:
        stored = self._deps.catalog.served_versions(resource.storage)[0]
        return self._writer.put_without_waiting(stored, namespace, name, obj)

    async def delete_collection(
        self, context: RequestContext, options: DeleteOptions, listing: ListOptions
    ) -> tuple[list[StoreRecord], Obj]:
        """Delete every listed object; return the records as they were and the metadata of the list."""
        page = list_page(context, self._deps, listing)
        for record in page.records:
            one = msgspec.structs.replace(context, namespace=record.namespace, name=record.name)
            try:
                await self.delete(one, options)
            except api_errors.StatusError as error:
                if error.code != 404:  # gone already is what was wanted
                    raise
        return page.records, page.metadata


def check_preconditions(resource: ServedResource, obj: Obj, wanted: Preconditions | None) -> None:
    if wanted is None:
        return
    meta = obj["metadata"]
    if wanted.uid is not None and wanted.uid != meta["uid"]:
        raise api_errors.conflict(
            resource.kind,
            resource.group,
            meta["name"],
            f"the UID in the precondition ({wanted.uid}) does not match the UID in record ({meta['uid']}). "
            "The object might have been deleted and then recreated",
        )
    if wanted.resource_version is not None and wanted.resource_version != meta["resourceVersion"]:
        raise api_errors.conflict(
            resource.kind,
            resource.group,
            meta["name"],
            f"the ResourceVersion in the precondition ({wanted.resource_version}) does not match the ResourceVersion "
            f"in record ({meta['resourceVersion']}). The object might have been modified",
        )


ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"


class DeletePlan(msgspec.Struct, frozen=True):
    """The effect of a DELETE. `marked` is the object to store first, if any; `remove`: it then goes away."""

    marked: Obj | None
    remove: bool


class DeleteFacts(msgspec.Struct, frozen=True):
    """Carries the facts of the kind and the time on which the decision depends."""

    now: str
    graceful: bool  # pods: deletion waits for the kubelet
    orphans_by_default: bool = False


def pod_grace_s(pod: Obj, asked: int | None) -> int:
    """Return how many seconds a pod may take to stop: 0 when nothing runs."""
    spec = pod.get("spec", {})
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    period = spec.get("terminationGracePeriodSeconds", 0) if asked is None else asked
    return 1 if period < 0 else int(period)


def decide_delete(obj: Obj, options: DeleteOptions, facts: DeleteFacts) -> DeletePlan:
    """Decide a DELETE whose preconditions hold. `obj` is shared and stays as it is."""
    meta = dict(obj["metadata"])
    waits = False
    if facts.graceful:
        grace = _set_grace_period(obj, meta, options, facts)
        if grace == "pending":
            return DeletePlan(None, remove=False)
        waits = grace == "waits"
    finalizers = finalizers_after_delete(meta.get("finalizers", []), options, facts.orphans_by_default)
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
    if not facts.graceful or "deletionTimestamp" not in meta:
        if not finalizers:
            changed = finalizers != obj["metadata"].get("finalizers", [])
            return DeletePlan({**obj, "metadata": ordered_metadata(meta)} if changed else None, remove=True)
        _set_deletion_timestamp(meta, facts.now)
    return DeletePlan({**obj, "metadata": ordered_metadata(meta)}, remove=not finalizers and not waits)


def _set_grace_period(
    obj: Obj, meta: Obj, options: DeleteOptions, facts: DeleteFacts
) -> Literal["pending", "waits", "now"]:
    """Set the deletion timestamp and grace period of a pod. A second DELETE may only shorten the grace of the first."""
    if "deletionTimestamp" in meta:
        left = meta.get("deletionGracePeriodSeconds")
        if left is None:
            return "now"
        asked = options.grace_period_seconds
        if asked is None or asked >= left:
            return "pending"
        asked = 1 if asked < 0 else asked
        meta["deletionTimestamp"] = shift_timestamp(meta["deletionTimestamp"], asked - left)
        meta["deletionGracePeriodSeconds"] = asked
        return "waits" if asked > 0 else "now"
    period = pod_grace_s(obj, options.grace_period_seconds)
    if meta.get("generation"):
        meta["generation"] += 1
    meta["deletionTimestamp"] = shift_timestamp(facts.now, period)
    meta["deletionGracePeriodSeconds"] = period
    return "waits" if period > 0 else "now"


def _set_deletion_timestamp(meta: Obj, now: str) -> None:
    stamp = meta.get("deletionTimestamp")
    if stamp is None and meta.get("generation"):
        meta["generation"] += 1
    if stamp is None or stamp > now:
        meta["deletionTimestamp"] = now
    meta["deletionGracePeriodSeconds"] = 0


def shift_timestamp(stamp: str, seconds: int) -> str:
    return timestamp.text(timestamp.parse(stamp) + timedelta(seconds=seconds))


def finalizers_after_delete(held: list[str], options: DeleteOptions, orphans_by_default: bool) -> list[str]:
    """Return the finalizers after the propagation policy; the garbage collector removes the two that it owns."""
    policy = options.propagation_policy
    if options.orphan_dependents is not None:
        orphan, foreground = options.orphan_dependents, False
    elif policy is not None:
        orphan, foreground = policy == "Orphan", policy == "Foreground"
    elif ORPHAN in held or FOREGROUND in held:
        orphan, foreground = ORPHAN in held, FOREGROUND in held
    else:
        orphan, foreground = orphans_by_default, False
    if (ORPHAN in held) == orphan and (FOREGROUND in held) == foreground:
        return list(held)
    kept = [name for name in held if name not in (ORPHAN, FOREGROUND)]
    return kept + [ORPHAN] * orphan + [FOREGROUND] * foreground


def mark_namespace_terminating(obj: Obj, now: str) -> Obj:
    """Mark a namespace Terminating. It ends through its spec.finalizers, so it has no grace period but a phase."""
    if "deletionTimestamp" in obj["metadata"]:
        return obj
    meta = ordered_metadata({**obj["metadata"], "deletionTimestamp": now})
    return {**obj, "metadata": meta, "status": {**obj.get("status", {}), "phase": "Terminating"}}
