"""This module holds the strategy of ResourceSlice: the devices that a driver offers on a node or for several."""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.model import Obj
from koord.cel.semantic_version import parse_version
from koord.embedded.apiserver.api_errors import ApiFieldError, duplicate, invalid_value, required, too_long
from koord.embedded.apiserver.kinds import strategy
from koord.embedded.apiserver.kinds.device_claim import (
    attribute_name_errors,
    driver_name_errors,
    label_name_errors,
    pool_name_errors,
    size_errors,
)
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.pod.scheduling import node_selector_errors
from koord.embedded.apiserver.kinds.strategy import KindStrategy
from koord.embedded.apiserver.kinds.validators import IMMUTABLE
from koord.values import names

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
