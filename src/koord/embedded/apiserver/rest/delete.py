"""Handle DELETE of one object and of a collection: preconditions, admission, then the plan of `delete_plan`."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api.kubernetes.meta import DeleteOptions, Preconditions
from koord.api.model import to_dict
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.admission_chain import AdmissionAttributes
from koord.embedded.apiserver.api_errors import OPTIMISTIC_LOCK_ERROR
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.rest.create_update import UPDATE_TRIES, ObjectWriter
from koord.embedded.apiserver.rest.delete_plan import DeleteFacts, DeletePlan, decide_delete, mark_namespace_terminating
from koord.embedded.apiserver.rest.listing import list_page
from koord.embedded.apiserver.rest.options import ListOptions
from koord.embedded.apiserver.rest.request_context import RequestContext, ServerDeps
from koord.embedded.apiserver.store.record import StoreRecord

Obj = dict[str, Any]


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
