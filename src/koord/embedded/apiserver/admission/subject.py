"""Match requests to hooks by rules and selectors, and convert objects to the version that a hook wants and
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from koord.embedded.apiserver.admission.rule import Rule, Target
from koord.embedded.apiserver.catalog import Catalog, ServedResource
from koord.embedded.apiserver.rest.admission_chain import Attributes
from koord.embedded.apiserver.rest.scaling import rescaled, scale_of

Obj = dict[str, Any]


class Kind(msgspec.Struct, frozen=True):
    group: str
    version: str
    kind: str


def kind_of(resource: ServedResource, subresource: str) -> Kind:
    part = resource.subresources.get(subresource)
    if part is None:
        return Kind(resource.group, resource.version, resource.kind)
    own = bool(part.group or part.version)
    return Kind(part.group if own else resource.group, part.version if own else resource.version, part.kind)


def target_of(attributes: Attributes, resource: ServedResource) -> Target:
    return Target(
        attributes.operation,
        resource.group,
        resource.version,
        resource.plural,
        attributes.subresource,
        resource.namespaced,
    )


def matched(rules: Sequence[Rule], attributes: Attributes, catalog: Catalog, *, exact: bool) -> ServedResource | None:
    """Return the version of the resource that the rules ask for: the request's own, else another of the same
    objects.
    """
    asked = attributes.resource
    target = target_of(attributes, asked)
    if any(rule.matches(target) for rule in rules):
        return asked
    if exact:
        return None
    for other in catalog.sharing(asked.storage):
        if other is not asked:
            target = target_of(attributes, other)
            if any(rule.matches(target) for rule in rules):
                return other
    return None


def shown(attributes: Attributes, resource: ServedResource, obj: Obj | None) -> Obj | None:
    """Return `obj` (new or old) as the hook sees it. It is shared: never change it."""
    if obj is None:
        return None
    if attributes.subresource == "scale":
        return scale_of(obj, attributes.resource.scale)
    if attributes.subresource in ("binding", "eviction") and attributes.namespace:
        return {**obj, "metadata": {**(obj.get("metadata") or {}), "namespace": attributes.namespace}}
    return converted(obj, attributes.resource, resource)


def taken_back(attributes: Attributes, resource: ServedResource, obj: Obj) -> Obj:
    """Return the object of a hook in the version of the request."""
    if attributes.subresource == "scale":
        assert attributes.obj is not None, "a scale is never deleted"
        new = rescaled(attributes.obj, obj, attributes.resource.scale)
        new["metadata"] = attributes.obj["metadata"]
        return new
    return converted(obj, resource, attributes.resource)


def converted(obj: Obj, source: ServedResource, target: ServedResource) -> Obj:
    if source is target:
        return obj
    stored = source.conversion.to_storage(obj) if source.conversion else obj
    return target.conversion.from_storage(stored) if target.conversion else stored
