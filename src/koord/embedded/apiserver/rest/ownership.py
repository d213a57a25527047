"""Field ownership: the bridge from the verbs to `merge`, and the rule of when managedFields are kept at
all.

Objects that only in-process programs write carry no managedFields: tracking would double their bytes
for nobody. Once an object has them, every write keeps them true, and the first apply to an object
without them finds its owner all the same (`before-first-apply`), so that server-side apply gives the
same answers either way.
"""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.catalog import Catalog, ServedResource
from koord.embedded.apiserver.merge import entries
from koord.embedded.apiserver.merge.managed import manager_name, track_update
from koord.embedded.apiserver.merge.reset import ownable
from koord.embedded.apiserver.merge.versions import Convert
from koord.embedded.apiserver.rest.call import Call, Parts
from koord.embedded.apiserver.rest.options import WriteOptions
from koord.embedded.apiserver.schema.node import Node

Obj = dict[str, Any]
UNKNOWN = "unknown"


def manager_of(call: Call, options: WriteOptions) -> str:
    return manager_name(options.field_manager, call.request.user_agent) or UNKNOWN


def converter(catalog: Catalog, resource: ServedResource) -> Convert | None:
    """Return how managers at other versions of the kind see an object; None when there is one version only."""
    siblings = catalog.sharing(resource.storage)
    if len(siblings) < 2:
        return None
    by_version = {sibling.api_version: sibling for sibling in siblings}

    def convert(obj: Obj, api_version: str) -> tuple[Obj, Node] | None:
        target = by_version.get(api_version)
        source = by_version.get(obj.get("apiVersion", ""))
        if target is None or source is None:
            return None
        stored = source.conversion.to_storage(obj) if source.conversion else obj
        return (target.conversion.from_storage(stored) if target.conversion else stored), target.node

    return convert


def track(call: Call, parts: Parts, old: Obj | None, new: Obj, options: WriteOptions) -> None:
    """Set the managedFields of `new` as this write leaves them. `new` is private, `old` is shared."""
    held = entries.managed_of(old)
    if not call.tracked and not held:
        new["metadata"].pop("managedFields", None)
        return
    resource = call.resource
    try:
        managed = track_update(
            old,
            new,
            manager=manager_of(call, options),
            node=resource.node,
            api_version=resource.api_version,
            now=None if call.subresource == "scale" else parts.stamp.now(),
            subresource=call.subresource,
            ownable=ownable(resource.group, resource.kind, call.subresource, has_status=resource.has_status),
            convert=converter(parts.catalog, resource),
        )
    except ValueError:
        # A keyed list without its keys cannot be owned by element. Validation is about to refuse it, with the place.
        managed = list(held or ())
    entries.put(new, managed)
