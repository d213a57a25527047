"""Handle DELETE of one object and of a collection: check preconditions, run admission, then carry out the
plan of `delete_plan`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.crd import definition, ending
from koord.embedded.apiserver.refusal import STALE
from koord.embedded.apiserver.rest.admission_chain import Attributes
from koord.embedded.apiserver.rest.call import Call, Parts
from koord.embedded.apiserver.rest.deletion import Facts, Plan, decide_deletion, mark_namespace
from koord.embedded.apiserver.rest.listing import list_page
from koord.embedded.apiserver.rest.options import DeleteOptions, ListOptions, Preconditions
from koord.embedded.apiserver.rest.writing import UPDATE_TRIES, Writer
from koord.embedded.apiserver.store import Record

Obj = dict[str, Any]


class Deletion(msgspec.Struct, frozen=True):
    """The result of a DELETE. `record` is the object as the deletion left it; `plain` is the same where
    nothing was stored (dry run).
    """

    removed: bool
    uid: str
    record: Record | None = None
    plain: Obj | None = None


class Deleter:
    def __init__(self, parts: Parts, writer: Writer) -> None:
        self._parts = parts
        self._writer = writer

    async def delete(self, call: Call, options: DeleteOptions, *, admitted: bool = False) -> Deletion:
        resource = call.resource
        collection = call.collection(self._parts)
        for _ in range(UPDATE_TRIES):
            record = collection.get(call.namespace, call.name)
            if record is None:
                raise refusal.not_found(resource.plural, resource.group, call.name)
            check_preconditions(resource, record.plain(), options.preconditions)
            if not admitted:
                await self._admit(call, record, options)
            if collection.get(call.namespace, call.name) is record:
                return await self._carry_out(call, record, options)
        raise refusal.conflict(resource.plural, resource.group, call.name, STALE)

    async def _admit(self, call: Call, record: Record, options: DeleteOptions) -> None:
        admission = self._parts.admission
        if not admission.mutating and not admission.validating:
            return
        attributes = Attributes(
            "DELETE",
            call.resource,
            call.name,
            call.namespace,
            None,
            record.plain(),
            dry_run=options.is_dry_run,
            user=call.request.user,
            options={"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", **_wire(options)},
            warnings=call.warnings,
        )
        await admission.mutate(attributes)
        await admission.validate(attributes)

    def _plan(self, resource: ServedResource, obj: Obj, options: DeleteOptions) -> Plan:
        now = self._parts.stamp.now()
        if resource.storage == "namespaces":
            marked = mark_namespace(obj, now)
            if obj.get("spec", {}).get("finalizers"):
                return Plan(None if marked is obj else marked, remove=False)
        if resource.storage == definition.STORAGE:
            return ending.mark_definition(obj, now)
        facts = Facts(now, resource.storage == "pods", resource.orphans_by_default)
        return decide_deletion(obj, options, facts)

    async def _carry_out(self, call: Call, record: Record, options: DeleteOptions) -> Deletion:
        parts, resource = self._parts, call.resource
        obj = record.plain()
        plan = self._plan(resource, obj, options)
        uid = obj["metadata"]["uid"]
        if options.is_dry_run:
            return Deletion(plan.remove, uid, None, plan.mark or obj)
        if plan.mark is not None and plan.mark != obj:
            record = self._mark(resource, call.namespace, call.name, plan.mark)
        if plan.remove:
            gone = parts.store.delete(resource.storage, call.namespace, call.name)
            assert gone is not None, "the record was there and nothing was awaited"
            record = gone
        await parts.store.settled(record.revision)
        return Deletion(plan.remove, uid, record)

    def _mark(self, resource: ServedResource, namespace: str, name: str, obj: Obj) -> Record:
        stored = self._parts.catalog.sharing(resource.storage)[0]
        return self._writer.put_now(stored, namespace, name, obj)

    async def delete_all(self, call: Call, options: DeleteOptions, listing: ListOptions) -> tuple[list[Record], Obj]:
        """Delete every listed object; return the records as they were and the metadata of the list."""
        page = list_page(call, self._parts, listing)
        for record in page.records:
            one = msgspec.structs.replace(call, namespace=record.namespace, name=record.name)
            try:
                await self.delete(one, options)
            except refusal.Refusal as error:
                if error.code != 404:  # gone already is what was wanted
                    raise
        return page.records, page.metadata


def check_preconditions(resource: ServedResource, obj: Obj, wanted: Preconditions | None) -> None:
    if wanted is None:
        return
    meta = obj["metadata"]
    if wanted.uid is not None and wanted.uid != meta["uid"]:
        raise refusal.conflict(
            resource.kind,
            resource.group,
            meta["name"],
            f"the UID in the precondition ({wanted.uid}) does not match the UID in record ({meta['uid']}). "
            "The object might have been deleted and then recreated",
        )
    if wanted.resource_version is not None and wanted.resource_version != meta["resourceVersion"]:
        raise refusal.conflict(
            resource.kind,
            resource.group,
            meta["name"],
            f"the ResourceVersion in the precondition ({wanted.resource_version}) does not match the ResourceVersion "
            f"in record ({meta['resourceVersion']}). The object might have been modified",
        )


def _wire(options: DeleteOptions) -> Obj:
    plain: Obj = msgspec.to_builtins(options)
    return {key: value for key, value in plain.items() if value not in (None, [])}
