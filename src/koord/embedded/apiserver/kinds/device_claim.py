"""This module holds the strategies of ResourceClaim, ResourceClaimTemplate and DeviceClass.

A CEL selector that does not compile is refused when it is written: the scheduler would fail every pod over it.

The strategy of ResourceSlice is here too: the devices that a driver offers on a node or for several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from koord.api.model import Obj
from koord.cel.device_selector import MAX_EXPRESSION_BYTES, compile_selector
from koord.cel.kubernetes_functions import parse_version
from koord.cel.syntax import CelError
from koord.embedded.apiserver.api_errors import (
    ApiFieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    too_long,
    too_many,
)
from koord.embedded.apiserver.kinds import strategy
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.pod.scheduling import node_selector_errors, toleration_errors
from koord.embedded.apiserver.kinds.pod.volume import csi_driver_name_errors
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_empty
from koord.embedded.apiserver.kinds.validators import IMMUTABLE, label_errors
from koord.values import names

MAX_REQUESTS = 32
MAX_ALTERNATIVES = 8
MAX_SELECTORS = 32
MAX_CONSTRAINTS = 32
MAX_CONFIGURATIONS = 32
MAX_RESULTS = 32
MAX_CONSUMERS = 256
MAX_POOL_NAME_BYTES = 253
MAX_DOMAIN_BYTES = 63
MAX_IDENTIFIER_BYTES = 32
_UNKNOWN_REQUEST = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)


# Names that claims and slices share ----------------------------------------------------------------------------------


def label_name_errors(name: str, path: str) -> Iterator[ApiFieldError]:
    """Yield the errors of a name of a request or device: a DNS label."""
    yield from (invalid_value(path, name, reason) for reason in names.dns1123_label(name))


def driver_name_errors(name: str, path: str) -> Iterator[ApiFieldError]:
    yield from csi_driver_name_errors(name, path)


def pool_name_errors(name: str, path: str) -> Iterator[ApiFieldError]:
    if not name:
        yield required(path)
        return
    if len(name.encode()) > MAX_POOL_NAME_BYTES:
        yield too_long(path, MAX_POOL_NAME_BYTES)
    for part in name.split("/"):
        yield from (invalid_value(path, part, reason) for reason in names.dns1123_subdomain(part))


def attribute_name_errors(name: str, path: str, *, with_domain: bool) -> Iterator[ApiFieldError]:
    """Yield the errors of a name such as `numaNode` or `example.com/numaNode`."""
    domain, slash, own = name.partition("/")
    if not slash:
        domain, own = "", name
    elif not domain:
        yield required(path, "the domain must not be empty")
    else:
        if len(domain) > MAX_DOMAIN_BYTES:
            yield too_long(path, MAX_DOMAIN_BYTES)
        yield from (invalid_value(path, domain, reason) for reason in names.dns1123_subdomain(domain))
    if slash and not own:
        yield required(path, "the name must not be empty")
        return
    if len(own) > MAX_IDENTIFIER_BYTES:
        yield too_long(path, MAX_IDENTIFIER_BYTES)
    yield from (invalid_value(path, own, reason) for reason in names.c_identifier(own))
    if with_domain and not slash:
        yield invalid_value(path, name, "a fully qualified name must be a domain and a name separated by a slash")


def size_errors(values: list[Any], limit: int, path: str) -> Iterator[ApiFieldError]:
    if len(values) > limit:
        yield too_many(path, len(values), limit)


# Requests, constraints, configurations --------------------------------------------------------------------------------


def default_requests(spec: Obj) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        for exact in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if exact is None:
                continue
            fill_empty(exact, allocationMode="ExactCount")
            if exact["allocationMode"] == "ExactCount":
                fill_empty(exact, count=1)


def _selector_errors(selectors: list[Obj], path: str) -> Iterator[ApiFieldError]:
    yield from size_errors(selectors, MAX_SELECTORS, path)
    for i, selector in enumerate(selectors):
        at, cel = f"{path}[{i}].cel", selector.get("cel")
        if cel is None:
            yield required(at)
            continue
        text = cel.get("expression", "")
        if len(text.encode()) > MAX_EXPRESSION_BYTES:
            yield too_long(f"{at}.expression", MAX_EXPRESSION_BYTES)
        elif isinstance(wrong := compile_selector(text), CelError):
            yield invalid_value(f"{at}.expression", text, f"compilation failed: {wrong.message}")


def _device_request_errors(found: Obj, path: str) -> Iterator[ApiFieldError]:
    """Yield the errors of what an exact request and an alternative of `firstAvailable` have in common."""
    name = found.get("deviceClassName", "")
    if not name:
        yield required(f"{path}.deviceClassName")
    else:
        yield from (invalid_value(f"{path}.deviceClassName", name, why) for why in names.dns1123_subdomain(name))
    yield from _selector_errors(found.get("selectors") or [], f"{path}.selectors")
    mode, count = found.get("allocationMode"), found.get("count", 0)
    if mode == "All":
        if count:
            yield invalid_value(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == "ExactCount":
        if count <= 0:
            yield invalid_value(f"{path}.count", count, "must be greater than zero")
    else:
        yield not_supported(f"{path}.allocationMode", mode, ("All", "ExactCount"))
    yield from toleration_errors(found.get("tolerations") or [], f"{path}.tolerations")


def _request_errors(found: Obj, path: str) -> Iterator[ApiFieldError]:
    yield from label_name_errors(found.get("name", ""), f"{path}.name")
    exact, alternatives = found.get("exactly"), found.get("firstAvailable") or []
    if exact is None and not alternatives:
        yield required(path, "exactly one of `exactly` or `firstAvailable` is required")
    elif exact is not None and alternatives:
        yield invalid_value(
            path, None, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"
        )
    if exact is not None:
        yield from _device_request_errors(exact, f"{path}.exactly")
    at = f"{path}.firstAvailable"
    yield from size_errors(alternatives, MAX_ALTERNATIVES, at)
    seen: set[str] = set()
    for i, alternative in enumerate(alternatives):
        name = alternative.get("name", "")
        yield from label_name_errors(name, f"{at}[{i}].name")
        if name and name in seen:
            yield duplicate(f"{at}[{i}]", name)
        seen.add(name)
        yield from _device_request_errors(alternative, f"{at}[{i}]")


def _request_names(requests: list[Obj]) -> frozenset[str]:
    """Return what may name a request elsewhere in the claim: itself, and its alternatives after a slash."""
    found = {request.get("name", "") for request in requests}
    for request in requests:
        found |= {f"{request.get('name')}/{one.get('name')}" for one in request.get("firstAvailable") or ()}
    return frozenset(found)


def _reference_errors(listed: list[str], known: frozenset[str], path: str) -> Iterator[ApiFieldError]:
    yield from size_errors(listed, MAX_REQUESTS, path)
    for i, name in enumerate(listed):
        if name in listed[:i]:
            yield duplicate(f"{path}[{i}]", name)
        for part in name.split("/"):
            yield from label_name_errors(part, f"{path}[{i}]")
        if name not in known:
            yield invalid_value(f"{path}[{i}]", name, _UNKNOWN_REQUEST)


def _configuration_errors(found: Obj, path: str) -> Iterator[ApiFieldError]:
    opaque = found.get("opaque")
    if opaque is None:
        yield required(f"{path}.opaque")
        return
    yield from driver_name_errors(opaque.get("driver", ""), f"{path}.opaque.driver")
    parameters = opaque.get("parameters")
    if parameters is None:
        yield required(f"{path}.opaque.parameters")
    elif not isinstance(parameters, dict):
        yield invalid_value(f"{path}.opaque.parameters", "<value omitted>", "must be a valid JSON object")


def _device_claim_errors(spec: Obj, path: str) -> Iterator[ApiFieldError]:
    devices = spec.get("devices") or {}
    requests, at = devices.get("requests") or [], f"{path}.devices"
    yield from size_errors(requests, MAX_REQUESTS, f"{at}.requests")
    seen: set[str] = set()
    for i, request in enumerate(requests):
        yield from _request_errors(request, f"{at}.requests[{i}]")
        name = request.get("name", "")
        if name and name in seen:
            yield duplicate(f"{at}.requests[{i}]", name)
        seen.add(name)
    known = _request_names(requests)
    constraints = devices.get("constraints") or []
    yield from size_errors(constraints, MAX_CONSTRAINTS, f"{at}.constraints")
    for i, constraint in enumerate(constraints):
        here = f"{at}.constraints[{i}]"
        yield from _reference_errors(constraint.get("requests") or [], known, f"{here}.requests")
        attribute, distinct = constraint.get("matchAttribute"), constraint.get("distinctAttribute")
        if attribute is None and distinct is None:
            yield required(f"{here}.matchAttribute")
        for field, name in (("matchAttribute", attribute), ("distinctAttribute", distinct)):
            if name is not None:
                yield from attribute_name_errors(name, f"{here}.{field}", with_domain=True)
    configurations = devices.get("config") or []
    yield from size_errors(configurations, MAX_CONFIGURATIONS, f"{at}.config")
    for i, configuration in enumerate(configurations):
        here = f"{at}.config[{i}]"
        yield from _reference_errors(configuration.get("requests") or [], known, f"{here}.requests")
        yield from _configuration_errors(configuration, here)


# ResourceClaim --------------------------------------------------------------------------------------------------------


def _default_claim(obj: Obj) -> None:
    default_requests(obj.setdefault("spec", {}))


def _claim_errors(obj: Obj) -> list[ApiFieldError]:
    return list(_device_claim_errors(obj.get("spec") or {}, "spec"))


def _immutable_spec_errors(type: str) -> Callable[[Obj, Obj], list[ApiFieldError]]:
    def check(new: Obj, old: Obj) -> list[ApiFieldError]:
        now, before = (to_internal(type, obj.get("spec") or {}) for obj in (new, old))
        return [] if now == before else [invalid_value("spec", now, IMMUTABLE)]

    return check


def _allocation_errors(allocation: Obj, known: frozenset[str], path: str) -> Iterator[ApiFieldError]:
    devices = allocation.get("devices") or {}
    results = devices.get("results") or []
    yield from size_errors(results, MAX_RESULTS, f"{path}.devices.results")
    for i, result in enumerate(results):
        at = f"{path}.devices.results[{i}]"
        if result.get("request", "") not in known:
            yield invalid_value(f"{at}.request", result.get("request", ""), _UNKNOWN_REQUEST)
        yield from driver_name_errors(result.get("driver", ""), f"{at}.driver")
        yield from pool_name_errors(result.get("pool", ""), f"{at}.pool")
        yield from label_name_errors(result.get("device", ""), f"{at}.device")
    for i, configuration in enumerate(devices.get("config") or ()):
        at = f"{path}.devices.config[{i}]"
        source = configuration.get("source", "")
        if not source:
            yield required(f"{at}.source")
        elif source not in ("FromClaim", "FromClass"):
            yield not_supported(f"{at}.source", source, ("FromClaim", "FromClass"))
        yield from _configuration_errors(configuration, at)
    if allocation.get("nodeSelector") is not None:
        yield from node_selector_errors(allocation["nodeSelector"], f"{path}.nodeSelector")


def _consumer_errors(found: Obj, path: str) -> Iterator[ApiFieldError]:
    for field in ("resource", "name", "uid"):
        if not found.get(field):
            yield required(f"{path}.{field}")


def _claim_status_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    status, before = new.get("status") or {}, old.get("status") or {}
    allocation, reserved = status.get("allocation"), status.get("reservedFor") or []
    at = "status.reservedFor"
    errors = list(size_errors(reserved, MAX_CONSUMERS, at))
    seen: set[str] = set()
    for i, consumer in enumerate(reserved):
        errors += _consumer_errors(consumer, f"{at}[{i}]")
        uid = consumer.get("uid", "")
        if uid and uid in seen:
            errors.append(duplicate(f"{at}[{i}]", uid))
        seen.add(uid)
    if reserved and allocation is None:
        errors.append(forbidden_field(at, "may not be specified when `allocated` is not set"))
    if "deletionTimestamp" in new["metadata"]:
        had = {consumer.get("uid") for consumer in before.get("reservedFor") or ()}
        if seen - had:
            errors.append(forbidden_field(at, "new entries may not be added while `deletionTimestamp` is set"))
    if allocation is not None:
        if before.get("allocation") is None:
            known = _request_names(((new.get("spec") or {}).get("devices") or {}).get("requests") or [])
            errors += _allocation_errors(allocation, known, "status.allocation")
        elif allocation != before["allocation"]:
            errors.append(invalid_value("status.allocation", to_internal("DeviceAllocation", allocation), IMMUTABLE))
    errors += _device_status_errors(status.get("devices") or [], allocation)
    return errors


def _device_status_errors(devices: list[Obj], allocation: Obj | None) -> Iterator[ApiFieldError]:
    results = ((allocation or {}).get("devices") or {}).get("results") or []
    allocated = {(result.get("driver"), result.get("pool"), result.get("device")) for result in results}
    seen: set[tuple[Any, ...]] = set()
    for i, device in enumerate(devices):
        place = (device.get("driver"), device.get("pool"), device.get("device"))
        shown = dict(zip(("Driver", "Pool", "Device"), place, strict=True)) | {"ShareID": device.get("shareID") or ""}
        if place in seen:
            yield duplicate(f"status.devices[{i}]", shown)
        seen.add(place)
        if place not in allocated:
            yield invalid_value(f"status.devices[{i}]", shown, "must be an allocated device in the claim")


RESOURCE_CLAIM = KindStrategy(
    default=_default_claim,
    validate_create=_claim_errors,
    validate_update=_immutable_spec_errors("DeviceClaimSpec"),
    validate_status=_claim_status_errors,
)


# ResourceClaimTemplate ------------------------------------------------------------------------------------------------


def _default_template(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("metadata", {})
    default_requests(spec.setdefault("spec", {}))


def _template_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj.get("spec") or {}
    labels = (spec.get("metadata") or {}).get("labels") or {}
    return [*label_errors(labels, "spec.metadata.labels"), *_device_claim_errors(spec.get("spec") or {}, "spec.spec")]


_template_spec_errors = _immutable_spec_errors("DeviceClaimTemplate")

RESOURCE_CLAIM_TEMPLATE = KindStrategy(
    default=_default_template,
    validate_create=_template_errors,
    validate_update=lambda new, old: [*_template_errors(new), *_template_spec_errors(new, old)],
)


# DeviceClass ----------------------------------------------------------------------------------------------------------


def _class_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj.get("spec") or {}
    errors = list(_selector_errors(spec.get("selectors") or [], "spec.selectors"))
    configurations = spec.get("config") or []
    errors += size_errors(configurations, MAX_CONFIGURATIONS, "spec.config")
    for i, configuration in enumerate(configurations):
        errors += _configuration_errors(configuration, f"spec.config[{i}]")
    return errors


DEVICE_CLASS = KindStrategy(
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_class_errors,
    validate_update=lambda new, old: _class_errors(new),
)


MAX_DEVICES = 128
MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_ATTRIBUTE_BYTES = 64
_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_ONE_NODE_FIELD = f"exactly one of {', '.join(f'`{field}`' for field in _NODE_FIELDS)} is required"
_VALUE_FIELDS = ("bool", "int", "string", "version")


def _pool_errors(pool: Obj, path: str) -> Iterator[ApiFieldError]:
    yield from pool_name_errors(pool.get("name", ""), f"{path}.name")
    count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
    if count <= 0:
        yield invalid_value(f"{path}.resourceSliceCount", count, "must be greater than zero")
    if generation < 0:
        yield invalid_value(f"{path}.generation", generation, "must be greater than or equal to zero")


def _node_errors(spec: Obj, path: str) -> Iterator[ApiFieldError]:
    if spec.get("nodeName") == "":
        yield invalid_value(f"{path}.nodeName", "", "must be either unset or set to a non-empty string")
    stated = [field for field in _NODE_FIELDS if spec.get(field) not in (None, "", False)]
    if not stated:
        yield required(path, _ONE_NODE_FIELD)
    elif len(stated) > 1:
        listed = f"{{{', '.join(f'`{field}`' for field in stated)}}}"
        yield invalid_value(path, listed, f"{_ONE_NODE_FIELD}, but multiple fields are set")
    name, selector = spec.get("nodeName"), spec.get("nodeSelector")
    if name:
        yield from (invalid_value(f"{path}.nodeName", name, why) for why in names.dns1123_subdomain(name))
    if selector is not None:
        yield from node_selector_errors(selector, f"{path}.nodeSelector")
        if len(selector.get("nodeSelectorTerms") or ()) != 1:
            terms = selector.get("nodeSelectorTerms")
            where = f"{path}.nodeSelector.nodeSelectorTerms"
            yield invalid_value(where, terms, "must have exactly one node selector term")


def _attribute_errors(value: Obj, path: str) -> Iterator[ApiFieldError]:
    stated = [field for field in _VALUE_FIELDS if value.get(field) is not None]
    if len(stated) != 1:
        shown = to_internal("DeviceAttribute", value) if stated else ""
        yield invalid_value(path, shown, "exactly one value must be specified")
        return
    text = value.get("string")
    if text is not None and len(text.encode()) > MAX_ATTRIBUTE_BYTES:
        yield too_long(f"{path}.string", MAX_ATTRIBUTE_BYTES)
    version = value.get("version")
    if version is not None:
        if parse_version(version) is None:
            detail = "must be a string compatible with semver.org spec 2.0.0"
            yield invalid_value(f"{path}.version", version, detail)
        if len(version.encode()) > MAX_ATTRIBUTE_BYTES:
            yield too_long(f"{path}.version", MAX_ATTRIBUTE_BYTES)


def _device_errors(device: Obj, path: str) -> Iterator[ApiFieldError]:
    yield from label_name_errors(device.get("name", ""), f"{path}.name")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    total = len(attributes) + len(capacity)
    if total > MAX_ATTRIBUTES_AND_CAPACITIES:
        detail = f"the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES_AND_CAPACITIES}"
        yield invalid_value(path, total, detail)
    for key in sorted(attributes):
        at = f"{path}.attributes[{key}]"
        yield from attribute_name_errors(key, at, with_domain=False)
        yield from _attribute_errors(attributes[key], at)
    for key in sorted(capacity):
        at = f"{path}.capacity[{key}]"
        yield from attribute_name_errors(key, at, with_domain=False)


def _slice_errors(obj: Obj, old: Obj | None = None) -> list[ApiFieldError]:
    spec = obj.get("spec") or {}
    errors = list(driver_name_errors(spec.get("driver", ""), "spec.driver"))
    errors += _pool_errors(spec.get("pool") or {}, "spec.pool")
    if old is not None:
        errors += _changed_place_errors(spec, old.get("spec") or {})
    errors += _node_errors(spec, "spec")
    devices = spec.get("devices") or []
    errors += size_errors(devices, MAX_DEVICES, "spec.devices")
    seen: set[str] = set()
    for i, device in enumerate(devices):
        errors += _device_errors(device, f"spec.devices[{i}]")
        name = device.get("name", "")
        if name and name in seen:
            errors.append(duplicate(f"spec.devices[{i}]", name))
        seen.add(name)
    return errors


def _changed_place_errors(spec: Obj, before: Obj) -> Iterator[ApiFieldError]:
    """Yield an error for each field that says whose devices these are, and has changed."""
    name, was = ((stated.get("pool") or {}).get("name", "") for stated in (spec, before))
    if name != was:
        yield invalid_value("spec.pool.name", name, IMMUTABLE)
    if spec.get("driver", "") != before.get("driver", ""):
        yield invalid_value("spec.driver", spec.get("driver", ""), IMMUTABLE)
    if spec.get("nodeName") != before.get("nodeName"):
        yield invalid_value("spec.nodeName", spec.get("nodeName"), IMMUTABLE)


RESOURCE_SLICE = KindStrategy(
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_slice_errors,
    validate_update=_slice_errors,
    selectable_fields={
        "spec.nodeName": lambda obj: str((obj.get("spec") or {}).get("nodeName", "")),
        "spec.driver": lambda obj: str((obj.get("spec") or {}).get("driver", "")),
    },
)
