"""This module holds the strategies of PersistentVolumeClaim and of the kinds of storage.k8s.io.

The strategy of PersistentVolume is in `persistent_volume`.
"""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import generation, label
from koord.embedded.apiserver.kinds.claim import adopt_source, claim_spec, default_claim, drop_foreign_source
from koord.embedded.apiserver.kinds.internal import difference, internal
from koord.embedded.apiserver.kinds.pod.volume import csi_driver
from koord.embedded.apiserver.kinds.rule import IMMUTABLE, at_least, fields, one_of, unchanged
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.kinds.template import shown_selector
from koord.embedded.apiserver.refusal import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from koord.values import names
from koord.values.quantity import Quantity

Obj = dict[str, Any]

# PersistentVolumeClaim ---------------------------------------------------------------------------------------------

_CLAIM_FIXED = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)


def _default_pvc(obj: Obj) -> None:
    default_claim(obj.setdefault("spec", {}))
    obj.setdefault("status", {}).setdefault("phase", "Pending")


def _begin_pvc(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending"}
    drop_foreign_source(obj["spec"])
    adopt_source(obj["spec"])


def _pvc_errors(obj: Obj) -> list[FieldError]:
    return claim_spec(obj["spec"], "spec")


def _pvc_update(new: Obj, old: Obj) -> list[FieldError]:
    spec, before = new["spec"], old["spec"]
    errors = _pvc_errors(new)
    bound = old.get("status", {}).get("phase") == "Bound"
    allowed = dict(spec)
    if bound:  # a bound claim may grow
        _take(allowed, before, "volumeAttributesClassName")
        allowed["resources"] = {**spec.get("resources", {})}
        _take(allowed["resources"], before.get("resources", {}), "requests")
    if not before.get("volumeName"):
        _take(allowed, before, "volumeName")
    if not before.get("storageClassName") and before.get("storageClassName") is None and spec.get("storageClassName"):
        _take(allowed, before, "storageClassName")
    if allowed != before:
        errors.append(forbidden_field("spec", f"{_CLAIM_FIXED}\n{difference('ClaimSpec', before, allowed)}"))
    errors += _shrunk(spec, before, old)
    if spec.get("volumeMode") != before.get("volumeMode"):
        errors.append(invalid_value("volumeMode", spec.get("volumeMode"), IMMUTABLE))
    return errors


def _take(into: Obj, source: Obj, key: str) -> None:
    if key in source:
        into[key] = source[key]
    else:
        into.pop(key, None)


def _shrunk(spec: Obj, before: Obj, old: Obj) -> list[FieldError]:
    now = (spec.get("resources", {}).get("requests") or {}).get("storage", "0")
    was = (before.get("resources", {}).get("requests") or {}).get("storage", "0")
    had = (old.get("status", {}).get("capacity") or {}).get("storage", "0")
    if Quantity.parse(now) >= Quantity.parse(was) or Quantity.parse(now) > Quantity.parse(had):
        return []
    return [forbidden_field("spec.resources.requests.storage", "field can not be less than status.capacity")]


PERSISTENT_VOLUME_CLAIM = Strategy(
    default=_default_pvc,
    prepare_create=_begin_pvc,
    prepare_update=lambda new, old: adopt_source(new["spec"]),
    validate_create=_pvc_errors,
    validate_update=_pvc_update,
)


# StorageClass ------------------------------------------------------------------------------------------------------


def _default_class(obj: Obj) -> None:
    if obj.get("reclaimPolicy") is None:
        obj["reclaimPolicy"] = "Delete"
    if obj.get("volumeBindingMode") is None:
        obj["volumeBindingMode"] = "Immediate"


def _topologies(terms: list[Obj]) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: list[Obj] = []
    for i, term in enumerate(terms):
        at = f"allowedTopologies[{i}].matchLabelExpressions"
        keys: dict[str, list[str]] = {}
        for j, expression in enumerate(term.get("matchLabelExpressions") or ()):
            key, values, here = expression.get("key", ""), expression.get("values") or [], f"{at}[{j}]"
            if not values:
                errors.append(required(f"{here}.values"))
            for k, value in enumerate(values):
                if value in values[:k]:
                    errors.append(duplicate(f"{here}.values[{k}]", value))
            errors += label.label_name(key, f"{here}.key")
            if key in keys:
                errors.append(duplicate(f"{here}.key", key))
            keys[key] = sorted(set(values))
        if keys in seen or not keys:
            errors.append(duplicate(at, ""))
        seen.append(keys)
    return errors


def _class_errors(obj: Obj) -> list[FieldError]:
    provisioner = obj.get("provisioner", "")
    errors: list[FieldError] = []
    if not provisioner:
        errors.append(required("provisioner"))
    else:
        lower = provisioner.lower()
        errors += [invalid_value("provisioner", lower, reason) for reason in names.qualified_name(lower)]
    for key in sorted(obj.get("parameters") or {}):
        if not key:
            errors.append(invalid_value("parameters", "", "field can not be empty."))
    if obj["reclaimPolicy"]:
        errors += one_of("Delete", "Retain")(obj["reclaimPolicy"], "reclaimPolicy")
    errors += one_of("Immediate", "WaitForFirstConsumer")(obj["volumeBindingMode"], "volumeBindingMode")
    return errors + _topologies(obj.get("allowedTopologies") or [])


def _class_update(new: Obj, old: Obj) -> list[FieldError]:
    errors = _class_errors(new)
    errors += [
        forbidden_field(key, f"updates to {key} are forbidden.")
        for key in ("parameters", "provisioner", "reclaimPolicy")
        if (new.get(key) or None) != (old.get(key) or None)
    ]
    return errors + unchanged(new, old, "", ("volumeBindingMode",))


STORAGE_CLASS = Strategy(default=_default_class, validate_create=_class_errors, validate_update=_class_update)


# CSINode, CSIDriver, CSIStorageCapacity ----------------------------------------------------------------------------


def _driver(found: Obj, path: str, taken: set[str]) -> list[FieldError]:
    name = found.get("name", "")
    errors: list[FieldError] = list(csi_driver(name, f"{path}.name"))
    node = found.get("nodeID", "")
    if not node:
        errors.append(required(f"{path}.nodeID"))
    elif len(node) > 256:
        errors.append(invalid_value(f"{path}.nodeID", node, "must be 256 characters or less"))
    errors += fields({"count": at_least(0)})(found.get("allocatable") or {}, f"{path}.allocatable")
    if name in taken:
        errors.append(duplicate(f"{path}.name", name))
    taken.add(name)
    keys: set[str] = set()
    for key in found.get("topologyKeys") or ():
        if not key:
            errors.append(required(path))
        if key in keys:
            errors.append(duplicate(path, key))
        keys.add(key)
        errors += label.label_name(key, path)
    return errors


def _csi_node_errors(obj: Obj) -> list[FieldError]:
    taken: set[str] = set()
    listed = (obj.get("spec") or {}).get("drivers") or []
    return [error for i, found in enumerate(listed) for error in _driver(found, f"spec.drivers[{i}]", taken)]


def _csi_node_update(new: Obj, old: Obj) -> list[FieldError]:
    errors = _csi_node_errors(new) * 2
    before = {found.get("name"): found for found in (old.get("spec") or {}).get("drivers") or ()}
    for found in (new.get("spec") or {}).get("drivers") or ():
        was = before.get(found.get("name"))
        fixed = {**found, "allocatable": None}  # how many volumes fit may be learned anew
        if was is not None and {**was, "allocatable": None} != fixed:
            errors.append(invalid_value("spec.drivers", internal("Driver", fixed), IMMUTABLE))
    return errors


CSI_NODE = Strategy(validate_create=_csi_node_errors, validate_update=_csi_node_update)


_DRIVER_DEFAULTS: Obj = {
    "attachRequired": True,
    "podInfoOnMount": False,
    "storageCapacity": False,
    "fsGroupPolicy": "ReadWriteOnceWithFSType",
    "requiresRepublish": False,
    "seLinuxMount": False,
}
_LIFECYCLES = ("Persistent", "Ephemeral")


def _default_driver(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    for key, value in _DRIVER_DEFAULTS.items():
        if spec.get(key) is None:
            spec[key] = value
    if not spec.get("volumeLifecycleModes"):
        spec["volumeLifecycleModes"] = ["Persistent"]


def _tokens(found: list[Obj], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    audiences: set[str] = set()
    for i, token in enumerate(found):
        at, audience = f"{path}[{i}]", token.get("audience", "")
        if audience in audiences:
            errors.append(duplicate(f"{at}.audience", audience))
            continue
        audiences.add(audience)
        seconds = token.get("expirationSeconds")
        if seconds is not None and seconds < 600:
            detail = "may not specify a duration less than 10 minutes"
            errors.append(invalid_value(f"{at}.expirationSeconds", seconds, detail))
    return errors


def _driver_errors(obj: Obj) -> list[FieldError]:
    spec, name = obj["spec"], obj["metadata"]["name"]
    errors: list[FieldError] = []
    if len(name) > 63:
        errors.append(FieldError("name", "FieldValueTooLong", "Too long: may not be more than 63 bytes"))
    errors += one_of("File", "None", "ReadWriteOnceWithFSType")(spec["fsGroupPolicy"], "spec.fsGroupPolicy")
    errors += _tokens(spec.get("tokenRequests") or [], "spec.tokenRequests")
    errors += [
        not_supported("spec.volumeLifecycleModes", mode, _LIFECYCLES)
        for mode in spec["volumeLifecycleModes"]
        if mode not in _LIFECYCLES
    ]
    return errors


def _driver_update(new: Obj, old: Obj) -> list[FieldError]:
    spec, before = new["spec"], old["spec"]
    errors = _driver_errors(new)
    if spec["attachRequired"] != before.get("attachRequired"):
        errors.append(invalid_value("spec.attachedRequired", spec["attachRequired"], IMMUTABLE))
    return errors + unchanged(spec, before, "spec", ("volumeLifecycleModes",))


CSI_DRIVER = Strategy(
    default=_default_driver,
    prepare_update=generation.bump_on("spec"),
    validate_create=_driver_errors,
    validate_update=_driver_update,
)


def _capacity_errors(obj: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    name = obj.get("storageClassName", "")
    errors += [invalid_value("storageClassName", name, reason) for reason in names.dns1123_subdomain(name)]
    errors += label.selector(obj.get("nodeTopology"), "nodeTopology")
    if obj.get("capacity") is not None and Quantity.parse(obj["capacity"]).sign() < 0:
        errors.append(invalid_value("capacity", obj["capacity"], "must be greater than or equal to 0"))
    return errors


def _capacity_update(new: Obj, old: Obj) -> list[FieldError]:
    errors = _capacity_errors(new)
    if new.get("nodeTopology") != old.get("nodeTopology"):
        errors.append(invalid_value("nodeTopology", shown_selector(new.get("nodeTopology")), IMMUTABLE))
    if new.get("storageClassName") != old.get("storageClassName"):
        errors.append(invalid_value("storageClassName", new.get("storageClassName", ""), IMMUTABLE))
    return errors


CSI_STORAGE_CAPACITY = Strategy(validate_create=_capacity_errors, validate_update=_capacity_update)


# VolumeAttachment --------------------------------------------------------------------------------------------------


def _attachment_errors(obj: Obj) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors: list[FieldError] = []
    attacher, node = spec.get("attacher", ""), spec.get("nodeName", "")
    if not attacher:
        errors.append(required("spec.attacher"))
    source = spec.get("source") or {}
    inline, name = source.get("inlineVolumeSpec"), source.get("persistentVolumeName")
    at = "spec.source"
    if inline is None and name is None:
        errors.append(required(at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
    elif inline is not None and name is not None:
        errors.append(forbidden_field(at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
    elif name == "":
        detail = "must specify non empty persistentVolumeName"
        errors.append(required(f"{at}.persistentVolumeName", detail))
    errors += [invalid_value("spec.nodeName", node, reason) for reason in names.dns1123_subdomain(node)]
    return errors


def _attachment_create(obj: Obj) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors = _attachment_errors(obj)
    errors += csi_driver(spec.get("attacher", ""), "spec.attacher")
    name = (spec.get("source") or {}).get("persistentVolumeName")
    if name is not None:
        at = "spec.source.persistentVolumeName"
        errors += [invalid_value(at, name, reason) for reason in names.dns1123_subdomain(name)]
    return errors


def _attachment_update(new: Obj, old: Obj) -> list[FieldError]:
    errors = _attachment_errors(new)
    if new.get("spec") != old.get("spec"):
        errors.append(invalid_value("spec", internal("AttachmentSpec", new.get("spec") or {}), IMMUTABLE))
    return errors


VOLUME_ATTACHMENT = Strategy(validate_create=_attachment_create, validate_update=_attachment_update)
