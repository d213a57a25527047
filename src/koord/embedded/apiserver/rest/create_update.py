"""Create and update objects: from a decoded object through defaults, field ownership, admission and validation to the
store.

Nothing is awaited between reading the stored object and replacing it unless an admission plugin really waits; then the
write looks again, and starts over or fails with a conflict when someone else was faster.
"""

from __future__ import annotations

from collections.abc import Callable

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.api_errors import OPTIMISTIC_LOCK_ERROR, StatusError, bad_request
from koord.embedded.apiserver.catalog import ResourceCatalog, ServedResource
from koord.embedded.apiserver.merge import managed_fields
from koord.embedded.apiserver.merge.compare import equal_values
from koord.embedded.apiserver.merge.managed_fields import VersionConverter, manager_name, ownable, track_update
from koord.embedded.apiserver.rest import object_metadata
from koord.embedded.apiserver.rest.object_metadata import deep_copy, update_completes_deletion
from koord.embedded.apiserver.rest.options import WriteOptions, options_object
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes, RequestContext, ServerDeps, WriteResult
from koord.embedded.apiserver.rest.subresource_strategy import SubresourceStrategy
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.embedded.apiserver.store.collection import StoreRecord
from koord.embedded.apiserver.store.object_store import EXPIRING_RESOURCES

NAME_TRIES = 8
UPDATE_TRIES = 8


def to_served_version(resource: ServedResource, record: StoreRecord) -> Obj:
    """Return the stored object in the version of the request. It is shared: never change it."""
    return record.plain() if resource.conversion is None else resource.conversion.from_storage(record.plain())


class ObjectWriter:
    def __init__(self, deps: ServerDeps) -> None:
        self._deps = deps

    # Create ------------------------------------------------------------------------------------------------------

    async def create(
        self, context: RequestContext, obj: Obj, options: WriteOptions, *, applied: bool = False, name: str = ""
    ) -> WriteResult:
        """Create an object. `obj` is private. `applied`: its managedFields are those of a server-side apply already."""
        meta = obj.setdefault("metadata", {})
        self._check_namespace(context, meta)
        if meta.get("resourceVersion") and not applied:
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        if name and meta.get("name", name) != name:
            raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
        if meta.get("name") or not meta.get("generateName"):
            outcome = await self._create(context, obj, options, applied)
        else:
            outcome = await self._create_generated(context, obj, options)
        if outcome is None:
            raise api_errors.already_exists(context.resource.plural, context.resource.group, meta["name"])
        return outcome

    async def _create_generated(self, context: RequestContext, obj: Obj, options: WriteOptions) -> WriteResult | None:
        meta = obj["metadata"]
        prefix = meta["generateName"][: object_metadata.MAX_GENERATE_NAME_CHARS]
        for _ in range(NAME_TRIES):
            meta["name"] = prefix + self._deps.metadata_generator.name_suffix()
            outcome = await self._create(context, deep_copy(obj), options, False)
            if outcome is not None:
                return outcome
        return None

    async def _create(
        self, context: RequestContext, obj: Obj, options: WriteOptions, applied: bool
    ) -> WriteResult | None:
        """Create the object under its name; return None when the name is taken."""
        deps, resource = self._deps, context.resource
        strategy = resource.strategy
        name = obj["metadata"].get("name", "")
        strategy.default(obj)
        if resource.storage == "namespaces":
            object_metadata.label_namespace(obj["metadata"], name)
        if not applied:
            update_managed_fields(context, deps, None, obj, options)
        admission = deps.admission
        attributes = AdmissionAttributes(
            "CREATE",
            resource,
            name,
            context.namespace,
            obj,
            None,
            dry_run=options.dry_run,
            user=context.request.user,
            options=options_object("CreateOptions", options),
            warnings=context.warnings,
        )
        if admission.mutating:
            await admission.mutate(attributes)
            assert attributes.obj is not None, "a mutating plugin removed the object"
            obj = attributes.obj
        meta = obj["metadata"]
        name = meta.get("name") or name  # a webhook may give the object another name
        obj["metadata"] = object_metadata.new_object_metadata(
            meta, name, context.namespace, deps.metadata_generator.uid(), deps.metadata_generator.now()
        )
        object_metadata.reset_status(obj, resource)
        if resource.storage == "namespaces":
            object_metadata.prepare_namespace(obj)
        strategy.prepare_create(obj)
        errors = object_metadata.validate_metadata_on_create(obj, resource) + strategy.validate_create(obj)
        if errors:
            raise api_errors.invalid(resource.kind, resource.group, name, errors)
        if admission.validating:
            await admission.validate(attributes)
        if context.collection(deps).get(context.namespace, name) is not None:
            return None
        if options.dry_run:
            del obj["metadata"]["resourceVersion"]
            return WriteResult(201, None, obj)
        return WriteResult(201, await self._put(context, name, obj))

    # Update ------------------------------------------------------------------------------------------------------

    async def update(
        self,
        context: RequestContext,
        update_strategy: SubresourceStrategy,
        change: Callable[[Obj], Obj],
        options: WriteOptions,
        *,
        own_uid: bool = False,
        applied: bool = False,
    ) -> WriteResult:
        """Store what `change` makes of the present object. `change` gets a shared object and returns a private one.

        `own_uid`: a uid in the new object is a precondition (PUT) rather than a field that must not change.
        """
        deps, resource = self._deps, context.resource
        collection = context.collection(deps)
        for _ in range(UPDATE_TRIES):
            record = collection.get(context.namespace, context.name)
            if record is None:
                raise api_errors.not_found(resource.plural, resource.group, context.name)
            old = to_served_version(resource, record)
            new = change(old)
            pinned = self._check_identity(context, new, old, record, own_uid)
            if not applied:
                resource.strategy.default(new)
                if resource.storage == "namespaces":
                    object_metadata.label_namespace(new["metadata"], context.name)
                update_managed_fields(context, deps, old, new, options)
            admitted = await self._admit_update(context, update_strategy, new, old, options)
            if collection.get(context.namespace, context.name) is record:
                return await self._store_update(context, record, admitted, old, options)
            if pinned:
                break
        raise api_errors.conflict(resource.plural, resource.group, context.name, OPTIMISTIC_LOCK_ERROR)

    async def _admit_update(
        self, context: RequestContext, update_strategy: SubresourceStrategy, new: Obj, old: Obj, options: WriteOptions
    ) -> Obj:
        resource, admission = context.resource, self._deps.admission
        attributes = AdmissionAttributes(
            "UPDATE",
            resource,
            context.name,
            context.namespace,
            new,
            old,
            subresource=context.subresource,
            dry_run=options.dry_run,
            user=context.request.user,
            options=options_object("UpdateOptions", options),
            warnings=context.warnings,
        )
        if admission.mutating:
            await admission.mutate(attributes)
            assert attributes.obj is not None, "a mutating plugin removed the object"
            new = attributes.obj
        new["metadata"] = object_metadata.restore_system_fields(new["metadata"], old["metadata"])
        update_strategy.prepare(new, old, resource)
        errors = object_metadata.validate_metadata_on_update(new, old, resource) + update_strategy.validate(
            new, old, resource
        )
        if errors:
            raise api_errors.invalid(resource.kind, resource.group, context.name, errors)
        if admission.validating:
            await admission.validate(attributes)
        return new

    async def _store_update(
        self, context: RequestContext, record: StoreRecord, new: Obj, old: Obj, options: WriteOptions
    ) -> WriteResult:
        if new == old and equal_values(new, old, context.resource.schema_node):
            return WriteResult(200, record)  # nothing changed: the revision stays
        if update_completes_deletion(new, old):
            if not options.dry_run:
                await self.remove(context, context.name)
            return WriteResult(200, None, new)
        if options.dry_run:
            return WriteResult(200, None, new)
        return WriteResult(200, await self._put(context, context.name, new))

    # Checks ------------------------------------------------------------------------------------------------------

    def _check_namespace(self, context: RequestContext, meta: Obj) -> None:
        given = meta.get("namespace")
        if not context.resource.namespaced:
            if given:
                raise _namespace_mismatch()
            return
        if given and given != context.namespace:
            raise _namespace_mismatch()
        meta["namespace"] = context.namespace

    def _check_identity(self, context: RequestContext, new: Obj, old: Obj, record: StoreRecord, own_uid: bool) -> bool:
        """Raise for a write meant for another object or version. Return True when the client named its version."""
        meta, resource = new["metadata"], context.resource
        name = meta.get("name")
        if not name:
            raise bad_request(
                f"the name of the object ({context.name} based on URL) was undeterminable: name must be provided"
            )
        if name != context.name:
            raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({context.name})")
        self._check_namespace(context, meta)
        uid = meta.get("uid")
        if own_uid and uid and uid != old["metadata"]["uid"]:
            raise api_errors.conflict(
                resource.plural,
                resource.group,
                context.name,
                uid_mismatch_message(context, uid, old["metadata"]["uid"]),
            )
        version = meta.get("resourceVersion") or ""
        if version in ("", "0"):
            if resource.allows_unconditional_update:
                return False
            error = api_errors.invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise api_errors.invalid(resource.plural, resource.group, context.name, [error])
        if not version.isdecimal():
            raise StatusError(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
        if int(version) != record.revision:
            raise api_errors.conflict(resource.plural, resource.group, context.name, OPTIMISTIC_LOCK_ERROR)
        return own_uid  # a patch carries the version along: read again, it meets the new one

    # The store ---------------------------------------------------------------------------------------------------

    async def _put(self, context: RequestContext, name: str, obj: Obj) -> StoreRecord:
        record = self.put_without_waiting(context.resource, context.namespace, name, obj)
        await self._deps.store.wait_durable(record.revision)
        return record

    def put_without_waiting(self, resource: ServedResource, namespace: str, name: str, obj: Obj) -> StoreRecord:
        """Store at once, without waiting for the disk. `obj` is private and in the served version."""
        deps = self._deps
        if resource.conversion is not None:
            obj = resource.conversion.to_storage(obj)
            resource = deps.catalog.served_versions(resource.storage)[0]
        selectable = resource.strategy.selectable_fields
        fields = {key: value(obj) for key, value in selectable.items()} if selectable else {}
        record = deps.store.put(resource.storage, namespace, name, obj, obj["metadata"].get("labels") or {}, fields)
        if resource.storage in EXPIRING_RESOURCES:
            deps.expiry.record_write(resource.storage, record)
            deps.expiry.delete_expired()
        return record

    async def remove(self, context: RequestContext, name: str) -> StoreRecord | None:
        record = self._deps.store.delete(context.resource.storage, context.namespace, name)
        if record is not None:
            await self._deps.store.wait_durable(record.revision)
        return record


def _namespace_mismatch() -> StatusError:
    return bad_request("the namespace of the provided object does not match the namespace sent on the request")


def uid_mismatch_message(context: RequestContext, asked: str, found: str) -> str:
    place = "/".join(part for part in (context.resource.plural, context.namespace, context.name) if part)
    return (
        f"StorageError: invalid object, Code: 4, Key: /registry/{place}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: UID in precondition: {asked}, UID in object meta: {found}"
    )


# Field ownership. Objects that only in-process programs write carry no managedFields: tracking would double their bytes
# for nobody. Once an object has them, every write keeps them true, and the first apply to an object without them finds
# its owner all the same (`before-first-apply`), so that server-side apply gives the same answers either way.

UNKNOWN_MANAGER = "unknown"


def field_manager_of(context: RequestContext, options: WriteOptions) -> str:
    return manager_name(options.field_manager, context.request.user_agent) or UNKNOWN_MANAGER


def version_converter(catalog: ResourceCatalog, resource: ServedResource) -> VersionConverter | None:
    """Return how managers at other versions of the kind see an object; None when there is one version only."""
    siblings = catalog.served_versions(resource.storage)
    if len(siblings) < 2:
        return None
    by_version = {sibling.api_version: sibling for sibling in siblings}

    def convert(obj: Obj, api_version: str) -> tuple[Obj, SchemaNode] | None:
        target = by_version.get(api_version)
        source = by_version.get(obj.get("apiVersion", ""))
        if target is None or source is None:
            return None
        stored = source.conversion.to_storage(obj) if source.conversion else obj
        return (target.conversion.from_storage(stored) if target.conversion else stored), target.schema_node

    return convert


def update_managed_fields(
    context: RequestContext, deps: ServerDeps, old: Obj | None, new: Obj, options: WriteOptions
) -> None:
    """Set the managedFields of `new` as this write leaves them. `new` is private, `old` is shared."""
    held = managed_fields.managed_fields_of(old)
    if not context.track_managed_fields and not held:
        new["metadata"].pop("managedFields", None)
        return
    resource = context.resource
    try:
        managed = track_update(
            old,
            new,
            manager=field_manager_of(context, options),
            node=resource.schema_node,
            api_version=resource.api_version,
            now=None if context.subresource == "scale" else deps.metadata_generator.now(),
            subresource=context.subresource,
            ownable=ownable(resource.group, resource.kind, context.subresource, has_status=resource.has_status),
            convert=version_converter(deps.catalog, resource),
        )
    except ValueError:
        # A keyed list without its keys cannot be owned by element. Validation is about to refuse it, with the place.
        managed = list(held or ())
    managed_fields.set_managed_fields(new, managed)
