"""The annotation that repeats batch resources by container, for runtimes that see no extended resources."""

from __future__ import annotations

from koord.api.annotations.codec import Malformed
from koord.api.annotations.extended_resource_spec import ExtendedResources, ExtendedResourceSpec, dump, parse
from koord.api.part import ResourceList
from koord.api.protocol import A_EXTENDED_RESOURCE_SPEC
from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY
from koord.manager.webhooks.draft import Obj, owned, part
from koord.manager.webhooks.verdict import Denied
from koord.values import resources as vector
from koord.values.quantity import Quantity

_NAMES = (BATCH_CPU, BATCH_MEMORY)


def with_extended_spec(obj: Obj) -> Obj | Denied:
    """Sync the annotation that repeats batch resources by container, for runtimes that see no extended resources.

    Normal containers only; an outdated annotation is rewritten, to `{}` if need be.
    """
    annotations = part(obj, "metadata", "annotations")
    stated = parse(annotations)
    if isinstance(stated, Malformed):
        return Denied(500, stated.reason)
    actual = _actual(obj)
    if _same(actual, stated or ExtendedResourceSpec()):
        return obj
    owned(obj, "metadata", "annotations")[A_EXTENDED_RESOURCE_SPEC] = dump(actual)
    return obj


def _actual(obj: Obj) -> ExtendedResourceSpec:
    containers = {}
    for container in part(obj, "spec").get("containers") or ():
        resources = part(container, "resources")
        found = ExtendedResources(
            limits=_batch(part(resources, "limits")), requests=_batch(part(resources, "requests"))
        )
        if found.limits or found.requests:
            containers[container.get("name", "")] = found
    return ExtendedResourceSpec(containers=containers)


def _batch(listed: Obj) -> ResourceList:
    return {name: str(Quantity.parse(listed[name])) for name in _NAMES if name in listed}


def _same(a: ExtendedResourceSpec, b: ExtendedResourceSpec) -> bool:
    """Compare by amounts: 1k and 1000 are equal."""
    return a.containers.keys() == b.containers.keys() and all(
        vector.equals(vector.parse(mine.limits), vector.parse(b.containers[name].limits))
        and vector.equals(vector.parse(mine.requests), vector.parse(b.containers[name].requests))
        for name, mine in a.containers.items()
    )
