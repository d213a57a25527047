"""Create and update objects: from a decoded object through defaults, field ownership, admission and
validation to the store.

Nothing is awaited between reading the stored object and replacing it unless an admission plugin really
waits; then the write looks again, and starts over or fails with a conflict when someone else was
faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.merge.compare import same
from koord.embedded.apiserver.refusal import STALE, Refusal, bad_request
from koord.embedded.apiserver.rest import metadata, ownership, stamping
from koord.embedded.apiserver.rest.admission_chain import Attributes
from koord.embedded.apiserver.rest.call import Call, Outcome, Parts
from koord.embedded.apiserver.rest.copying import clone
from koord.embedded.apiserver.rest.deletion import dies_with_update
from koord.embedded.apiserver.rest.door import Door
from koord.embedded.apiserver.rest.expiry import EXPIRING
from koord.embedded.apiserver.rest.options import WriteOptions, wire_options
from koord.embedded.apiserver.store import Record

Obj = dict[str, Any]
NAME_TRIES = 8
UPDATE_TRIES = 8


def served(resource: ServedResource, record: Record) -> Obj:
    """Return the stored object in the version of the request. It is shared: never change it."""
    return record.plain() if resource.conversion is None else resource.conversion.from_storage(record.plain())


class Writer:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    # Create ------------------------------------------------------------------------------------------------------

    async def create(
        self, call: Call, obj: Obj, options: WriteOptions, *, applied: bool = False, name: str = ""
    ) -> Outcome:
        """Create an object. `obj` is private and decoded. `applied`: its managedFields are those of a server-side
        apply already.
        """
        meta = obj.setdefault("metadata", {})
        self._check_namespace(call, meta)
        if meta.get("resourceVersion") and not applied:
            raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
        if name and meta.get("name", name) != name:
            raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
        if meta.get("name") or not meta.get("generateName"):
            outcome = await self._create(call, obj, options, applied)
        else:
            outcome = await self._create_generated(call, obj, options)
        if outcome is None:
            raise refusal.already_exists(call.resource.plural, call.resource.group, meta["name"])
        return outcome

    async def _create_generated(self, call: Call, obj: Obj, options: WriteOptions) -> Outcome | None:
        meta = obj["metadata"]
        prefix = meta["generateName"][: stamping.MAX_GENERATED_BASE]
        for _ in range(NAME_TRIES):
            meta["name"] = prefix + self._parts.stamp.suffix()
            outcome = await self._create(call, clone(obj), options, False)
            if outcome is not None:
                return outcome
        return None

    async def _create(self, call: Call, obj: Obj, options: WriteOptions, applied: bool) -> Outcome | None:
        """Create the object under its name; return None when the name is taken."""
        parts, resource = self._parts, call.resource
        strategy = resource.strategy
        name = obj["metadata"].get("name", "")
        strategy.default(obj)
        if resource.storage == "namespaces":
            stamping.label_namespace(obj["metadata"], name)
        if not applied:
            ownership.track(call, parts, None, obj, options)
        admission = parts.admission
        attributes = Attributes(
            "CREATE",
            resource,
            name,
            call.namespace,
            obj,
            None,
            dry_run=options.dry_run,
            user=call.request.user,
            options=wire_options("CreateOptions", options),
            warnings=call.warnings,
        )
        if admission.mutating:
            await admission.mutate(attributes)
            assert attributes.obj is not None, "a mutating plugin removed the object"
            obj = attributes.obj
        meta = obj["metadata"]
        name = meta.get("name") or name  # a webhook may give the object another name
        obj["metadata"] = stamping.stamp_new(meta, name, call.namespace, parts.stamp.uid(), parts.stamp.now())
        stamping.drop_status(obj, resource)
        if resource.storage == "namespaces":
            stamping.prepare_namespace(obj)
        strategy.prepare_create(obj)
        errors = metadata.create_errors(obj, resource) + strategy.validate_create(obj)
        if errors:
            raise refusal.invalid(resource.kind, resource.group, name, errors)
        if admission.validating:
            await admission.validate(attributes)
        if call.collection(parts).get(call.namespace, name) is not None:
            return None
        if options.dry_run:
            del obj["metadata"]["resourceVersion"]
            return Outcome(201, None, obj)
        return Outcome(201, await self._put(call, name, obj))

    # Update ------------------------------------------------------------------------------------------------------

    async def update(
        self,
        call: Call,
        door: Door,
        change: Callable[[Obj], Obj],
        options: WriteOptions,
        *,
        own_uid: bool = False,
        applied: bool = False,
    ) -> Outcome:
        """Store what `change` makes of the present object. `change` gets a shared object and returns a private
        one.

        `own_uid`: a uid in the new object is a precondition (PUT) rather than a field that must not change.
        """
        parts, resource = self._parts, call.resource
        collection = call.collection(parts)
        for _ in range(UPDATE_TRIES):
            record = collection.get(call.namespace, call.name)
            if record is None:
                raise refusal.not_found(resource.plural, resource.group, call.name)
            old = served(resource, record)
            new = change(old)
            pinned = self._check_identity(call, new, old, record, own_uid)
            if not applied:
                resource.strategy.default(new)
                if resource.storage == "namespaces":
                    stamping.label_namespace(new["metadata"], call.name)
                ownership.track(call, parts, old, new, options)
            admitted = await self._admit_update(call, door, new, old, options)
            if collection.get(call.namespace, call.name) is record:
                return await self._store(call, record, admitted, old, options)
            if pinned:
                break
        raise refusal.conflict(resource.plural, resource.group, call.name, STALE)

    async def _admit_update(self, call: Call, door: Door, new: Obj, old: Obj, options: WriteOptions) -> Obj:
        resource, admission = call.resource, self._parts.admission
        attributes = Attributes(
            "UPDATE",
            resource,
            call.name,
            call.namespace,
            new,
            old,
            subresource=call.subresource,
            dry_run=options.dry_run,
            user=call.request.user,
            options=wire_options("UpdateOptions", options),
            warnings=call.warnings,
        )
        if admission.mutating:
            await admission.mutate(attributes)
            assert attributes.obj is not None, "a mutating plugin removed the object"
            new = attributes.obj
        new["metadata"] = stamping.restore(new["metadata"], old["metadata"])
        door.prepare(new, old, resource)
        errors = metadata.update_errors(new, old, resource) + door.validate(new, old, resource)
        if errors:
            raise refusal.invalid(resource.kind, resource.group, call.name, errors)
        if admission.validating:
            await admission.validate(attributes)
        return new

    async def _store(self, call: Call, record: Record, new: Obj, old: Obj, options: WriteOptions) -> Outcome:
        if new == old and same(new, old, call.resource.node):
            return Outcome(200, record)  # nothing changed: the revision stays
        if dies_with_update(new, old):
            if not options.dry_run:
                await self.remove(call, call.name)
            return Outcome(200, None, new)
        if options.dry_run:
            return Outcome(200, None, new)
        return Outcome(200, await self._put(call, call.name, new))

    # Checks ------------------------------------------------------------------------------------------------------

    def _check_namespace(self, call: Call, meta: Obj) -> None:
        given = meta.get("namespace")
        if not call.resource.namespaced:
            if given:
                raise _misplaced()
            return
        if given and given != call.namespace:
            raise _misplaced()
        meta["namespace"] = call.namespace

    def _check_identity(self, call: Call, new: Obj, old: Obj, record: Record, own_uid: bool) -> bool:
        """Raise for a write meant for another object or version. Return True when the client named the version it
        read.
        """
        meta, resource = new["metadata"], call.resource
        name = meta.get("name")
        if not name:
            raise bad_request(
                f"the name of the object ({call.name} based on URL) was undeterminable: name must be provided"
            )
        if name != call.name:
            raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({call.name})")
        self._check_namespace(call, meta)
        uid = meta.get("uid")
        if own_uid and uid and uid != old["metadata"]["uid"]:
            raise refusal.conflict(
                resource.plural, resource.group, call.name, wrong_uid(call, uid, old["metadata"]["uid"])
            )
        version = meta.get("resourceVersion") or ""
        if version in ("", "0"):
            if resource.unconditional_update:
                return False
            error = refusal.invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise refusal.invalid(resource.plural, resource.group, call.name, [error])
        if not version.isdecimal():
            raise Refusal(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
        if int(version) != record.revision:
            raise refusal.conflict(resource.plural, resource.group, call.name, STALE)
        return own_uid  # a patch carries the version along: read again, it meets the new one

    # The store ---------------------------------------------------------------------------------------------------

    async def _put(self, call: Call, name: str, obj: Obj) -> Record:
        record = self.put_now(call.resource, call.namespace, name, obj)
        await self._parts.store.settled(record.revision)
        return record

    def put_now(self, resource: ServedResource, namespace: str, name: str, obj: Obj) -> Record:
        """Store at once, without waiting for the disk. `obj` is private and in the served version."""
        parts = self._parts
        if resource.conversion is not None:
            obj = resource.conversion.to_storage(obj)
            resource = parts.catalog.sharing(resource.storage)[0]
        selectable = resource.strategy.fields
        fields = {key: value(obj) for key, value in selectable.items()} if selectable else {}
        record = parts.store.put(resource.storage, namespace, name, obj, obj["metadata"].get("labels") or {}, fields)
        if resource.storage in EXPIRING:
            parts.expiry.note(resource.storage, record)
            parts.expiry.sweep()
        return record

    async def remove(self, call: Call, name: str) -> Record | None:
        record = self._parts.store.delete(call.resource.storage, call.namespace, name)
        if record is not None:
            await self._parts.store.settled(record.revision)
        return record


def _misplaced() -> Refusal:
    return bad_request("the namespace of the provided object does not match the namespace sent on the request")


def wrong_uid(call: Call, asked: str, found: str) -> str:
    place = "/".join(part for part in (call.resource.plural, call.namespace, call.name) if part)
    return (
        f"StorageError: invalid object, Code: 4, Key: /registry/{place}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: UID in precondition: {asked}, UID in object meta: {found}"
    )
