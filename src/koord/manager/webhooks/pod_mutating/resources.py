"""Resources of pods at admission: tier names for native resources, the extended-resource-spec annotation, GPU
requests.
"""

from __future__ import annotations

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.pod_codecs import (
    ExtendedResources,
    ExtendedResourceSpec,
    dump_extended_resource_spec,
    parse_extended_resource_spec,
)
from koord.api.koordinator.protocol import A_EXTENDED_RESOURCE_SPEC
from koord.api.koordinator.resource_name import (
    BATCH_CPU,
    BATCH_MEMORY,
    CPU,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    TIER_RESOURCE_NAMES,
)
from koord.api.model import ResourceList
from koord.manager.webhooks.admission import AdmissionDenied
from koord.manager.webhooks.copy_on_write import PlainObject, readable, writable
from koord.values import resources as vector
from koord.values.quantity import Quantity


def translate_resources(obj: PlainObject, priority_class: str) -> PlainObject:
    """Rename native cpu and memory of batch and mid pods to their tier's names. `obj` must be writable at its top
    level.

    Classes without a tier keep what they have.
    """
    names = TIER_RESOURCE_NAMES.get(priority_class)
    if names is None:
        return obj
    spec = writable(obj, "spec")
    for field in ("initContainers", "containers"):
        if spec.get(field):
            spec[field] = [_translate_container(container, names) for container in spec[field]]
    if spec.get("overhead"):
        spec["overhead"] = _rename_resources(spec["overhead"], names)
    return obj


def _translate_container(container: PlainObject, names: dict[str, str]) -> PlainObject:
    resources = readable(container, "resources")
    if not resources:
        return container
    requests = _rename_resources(readable(resources, "requests"), names)
    limits = _rename_resources(readable(resources, "limits"), names)
    for name in names.values():
        if name in limits and name not in requests:
            requests = {**requests, name: limits[name]}
    made = {**resources, "requests": requests, "limits": limits}
    return {**container, "resources": {key: value for key, value in made.items() if value or key in resources}}


def _rename_resources(listed: PlainObject, names: dict[str, str]) -> PlainObject:
    """Rename the resources; a native amount replaces one under the tier's name."""
    made = dict(listed)
    for native, extended in names.items():
        if native in made:
            amount = Quantity.parse(made.pop(native))
            made[extended] = str(Quantity.from_value(amount.milli_value()) if native == CPU else amount)
    return made


_BATCH_RESOURCES = (BATCH_CPU, BATCH_MEMORY)


def sync_extended_resource_spec(obj: PlainObject) -> PlainObject | AdmissionDenied:
    """Sync the annotation that repeats batch resources by container, for runtimes that see no extended resources.

    Normal containers only; an outdated annotation is rewritten, to `{}` if need be.
    """
    annotations = readable(obj, "metadata", "annotations")
    stated = parse_extended_resource_spec(annotations)
    if isinstance(stated, MalformedAnnotation):
        return AdmissionDenied(500, stated.reason)
    actual = _actual_spec(obj)
    if _is_same_spec(actual, stated or ExtendedResourceSpec()):
        return obj
    writable(obj, "metadata", "annotations")[A_EXTENDED_RESOURCE_SPEC] = dump_extended_resource_spec(actual)
    return obj


def _actual_spec(obj: PlainObject) -> ExtendedResourceSpec:
    containers = {}
    for container in readable(obj, "spec").get("containers") or ():
        resources = readable(container, "resources")
        found = ExtendedResources(
            limits=_batch_amounts(readable(resources, "limits")),
            requests=_batch_amounts(readable(resources, "requests")),
        )
        if found.limits or found.requests:
            containers[container.get("name", "")] = found
    return ExtendedResourceSpec(containers=containers)


def _batch_amounts(listed: PlainObject) -> ResourceList:
    return {name: str(Quantity.parse(listed[name])) for name in _BATCH_RESOURCES if name in listed}


def _is_same_spec(a: ExtendedResourceSpec, b: ExtendedResourceSpec) -> bool:
    """Compare by amounts: 1k and 1000 are equal."""
    return a.containers.keys() == b.containers.keys() and all(
        vector.equals(vector.parse(mine.limits), vector.parse(b.containers[name].limits))
        and vector.equals(vector.parse(mine.requests), vector.parse(b.containers[name].requests))
        for name, mine in a.containers.items()
    )


_CARD_PERCENT = 100  # percent
_GPU_RESOURCES = frozenset({GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED})


def normalize_gpu_requests(obj: PlainObject) -> PlainObject:
    """Normalize GPU requests to percent of core and memory, and the number of cards.

    Normal containers only, as upstream; an init container's GPU request stays as it is.
    """
    containers = readable(obj, "spec").get("containers") or []
    shaped = [_normalize_container(container) for container in containers]
    if any(new is not old for new, old in zip(shaped, containers, strict=True)):
        writable(obj, "spec")["containers"] = shaped
    return obj


def _normalize_container(container: PlainObject) -> PlainObject:
    resources = readable(container, "resources")
    requests, limits = readable(resources, "requests"), readable(resources, "limits")
    if _GPU_RESOURCES.isdisjoint(requests) and _GPU_RESOURCES.isdisjoint(limits):
        return container
    if GPU not in requests and GPU_SHARED in requests:
        return container
    requests, limits = dict(requests), dict(limits)
    if GPU in requests:
        percent = str(Quantity.parse(requests[GPU]))
        for side in (requests, limits):
            side.pop(GPU, None)
            side[GPU_CORE] = side[GPU_MEMORY_RATIO] = percent
    if GPU_SHARED not in requests:
        requests[GPU_SHARED] = limits[GPU_SHARED] = str(_card_count(requests))
    return {**container, "resources": {**resources, "requests": requests, "limits": limits}}


def _card_count(requests: PlainObject) -> int:
    """Return whole cards when the share is a multiple of one; the memory share is read before the core share."""
    name = GPU_MEMORY_RATIO if GPU_MEMORY_RATIO in requests else GPU_CORE
    percent = Quantity.parse(requests.get(name, 0)).value()
    return percent // _CARD_PERCENT if percent > _CARD_PERCENT and percent % _CARD_PERCENT == 0 else 1
