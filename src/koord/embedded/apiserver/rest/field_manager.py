"""Field ownership: the bridge from the verbs to `merge`, and the rule of when managedFields are kept at
all.

Objects that only in-process programs write carry no managedFields: tracking would double their bytes
for nobody. Once an object has them, every write keeps them true, and the first apply to an object
without them finds its owner all the same (`before-first-apply`), so that server-side apply gives the
same answers either way.
"""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.catalog import ResourceCatalog, ServedResource
from koord.embedded.apiserver.merge import managed_entries
from koord.embedded.apiserver.merge.managed_entries import ownable
from koord.embedded.apiserver.merge.managed_fields import VersionConverter, manager_name, track_update
from koord.embedded.apiserver.rest.options import WriteOptions
from koord.embedded.apiserver.rest.request_context import RequestContext, ServerDeps
from koord.embedded.apiserver.schema.schema_node import SchemaNode

Obj = dict[str, Any]
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
    held = managed_entries.managed_fields_of(old)
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
    managed_entries.set_managed_fields(new, managed)
