"""LimitRange admission: containers get the default amounts of their namespace, and what is out of bounds is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from koord.api.kubernetes.core_v1 import LimitRange, LimitRangeItem
from koord.api.kubernetes.pod import PodSpec
from koord.api.kubernetes.pod_resources import pod_limits, pod_requests
from koord.api.model import Obj, ResourceList, convert
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.values.quantity import Quantity
from koord.values.resources import CPU, parse

Amounts = Mapping[str, Quantity]

LIMIT_RANGES = "limitranges"
DEFAULTS_ANNOTATION = "kubernetes.io/limit-ranger"
_CLAIMS = "persistentvolumeclaims"


class LimitRanges:
    """The limit ranges of a namespace, as stored."""

    def __init__(self, store: ObjectStore) -> None:
        self._collection = store.collection(LIMIT_RANGES)

    def items(self, namespace: str) -> list[LimitRangeItem]:
        if not len(self._collection):
            return []
        return [item for one in self._collection.scan(namespace) for item in one.typed(LimitRange).spec.limits]


class LimitRangeDefaults:
    """Gives the containers of a new pod the amounts that they leave out and their namespace has defaults for."""

    def __init__(self, limits: LimitRanges) -> None:
        self._limits = limits

    async def admit(self, attributes: AdmissionAttributes) -> None:
        if attributes.resource.storage != "pods" or attributes.operation != "CREATE" or attributes.subresource:
            return
        pod = attributes.obj
        items = [item for item in self._limits.items(attributes.namespace) if item.type == "Container"]
        if pod is None or not items:
            return
        told = [text for item in items for text in _set_defaults(pod.get("spec") or {}, item)]
        if told:
            notes = pod["metadata"].get("annotations") or {}
            pod["metadata"]["annotations"] = {
                **notes,
                DEFAULTS_ANNOTATION: f"LimitRanger plugin set: {'; '.join(told)}",
            }


def _set_defaults(spec: Obj, item: LimitRangeItem) -> Iterator[str]:
    """Set the amounts that are left out, and tell which."""
    for field, who in (("containers", "container"), ("initContainers", "init container")):
        for container in spec.get(field) or ():
            resources = container.setdefault("resources", {})
            for part, defaults in (("requests", item.default_request), ("limits", item.default)):
                stated = resources.get(part) or {}
                added = {name: str(text) for name, text in defaults.items() if name not in stated}
                if added:
                    resources[part] = {**stated, **added}
                    yield f"{', '.join(sorted(added))} {part[:-1]} for {who} {container.get('name', '')}"


class LimitRangeValidation:
    """Refuses pods and claims that are smaller or larger than the limit ranges of their namespace allow."""

    def __init__(self, limits: LimitRanges) -> None:
        self._limits = limits

    async def admit(self, attributes: AdmissionAttributes) -> None:
        resource, obj = attributes.resource, attributes.obj
        if obj is None or not _is_limited(attributes):
            return
        items = self._limits.items(attributes.namespace)
        if not items:
            return
        faults = _claim_faults(obj, items) if resource.storage == _CLAIMS else _pod_faults(obj.get("spec") or {}, items)
        if faults:
            why = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
            raise api_errors.forbidden(resource.plural, resource.group, attributes.name, why)


def _is_limited(attributes: AdmissionAttributes) -> bool:
    """Return whether a write can change what is limited: a new pod, its resize, a claim."""
    write = (attributes.resource.storage, attributes.operation, attributes.subresource)
    return write in (
        ("pods", "CREATE", ""),
        ("pods", "UPDATE", "resize"),
        (_CLAIMS, "CREATE", ""),
        (_CLAIMS, "UPDATE", ""),
    )


def _pod_faults(spec: Obj, items: list[LimitRangeItem]) -> list[str]:
    faults: list[str] = []
    for item in items:
        if item.type == "Container":
            for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
                resources = container.get("resources") or {}
                stated = parse(resources.get("requests") or {}), parse(resources.get("limits") or {})
                faults += _faults(item, *stated)
        elif item.type == "Pod":
            typed = convert(spec, PodSpec)
            faults += _faults(item, _amounts(pod_requests(typed)), _amounts(pod_limits(typed)))
    return faults


def _claim_faults(claim: Obj, items: list[LimitRangeItem]) -> list[str]:
    stated = parse(((claim.get("spec") or {}).get("resources") or {}).get("requests") or {})
    faults: list[str] = []
    for item in items:
        if item.type == "PersistentVolumeClaim":
            requested = {"storage": stated.get("storage", Quantity.from_value(0))}
            faults += [*_below_minimum(item, requested, {}), *_requests_above_maximum(item, requested)]
    return faults


def _amounts(units: Mapping[str, int]) -> dict[str, Quantity]:
    return {
        name: Quantity.from_milli(amount) if name == CPU else Quantity.from_value(amount)
        for name, amount in units.items()
    }


def _faults(item: LimitRangeItem, requests: Amounts, limits: Amounts) -> Iterator[str]:
    yield from _below_minimum(item, requests, limits)
    yield from _above_maximum(item, requests, limits)
    yield from _beyond_ratio(item, requests, limits)


def _sorted_amounts(listed: ResourceList) -> list[tuple[str, Quantity]]:
    return sorted(parse(listed).items())


def _below_minimum(item: LimitRangeItem, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, least in _sorted_amounts(item.min):
        rule = f"minimum {name} usage per {item.type} is {least}"
        request, limit = requests.get(name), limits.get(name)
        if request is None:
            yield f"{rule}.  No request is specified"
        elif request < least:
            yield f"{rule}, but request is {request}"
        if limit is not None and limit < least:
            yield f"{rule}, but limit is {limit}"


def _above_maximum(item: LimitRangeItem, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, most in _sorted_amounts(item.max):
        rule = f"maximum {name} usage per {item.type} is {most}"
        limit = limits.get(name)
        if limit is None:
            yield f"{rule}.  No limit is specified"
        elif limit > most:
            yield f"{rule}, but limit is {limit}"
    yield from _requests_above_maximum(item, requests)


def _requests_above_maximum(item: LimitRangeItem, requests: Amounts) -> Iterator[str]:
    for name, most in _sorted_amounts(item.max):
        request = requests.get(name)
        if request is not None and request > most:
            yield f"maximum {name} usage per {item.type} is {most}, but request is {request}"


def _beyond_ratio(item: LimitRangeItem, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, most in _sorted_amounts(item.max_limit_request_ratio):
        rule = f"{name} max limit to request ratio per {item.type} is {most}"
        request, limit = requests.get(name), limits.get(name)
        if request is None or request.is_zero():
            yield f"{rule}, but no request is specified or request is 0"
        elif limit is None or limit.is_zero():
            yield f"{rule}, but no limit is specified or limit is 0"
        elif float(limit) / float(request) > float(most):
            yield f"{rule}, but provided ratio is {float(limit) / float(request):f}"
