"""This module holds the strategies of PersistentVolume, PersistentVolumeClaim and the kinds of storage.k8s.io."""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import (
    ApiFieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from koord.embedded.apiserver.kinds import pvc_spec, strategy, validators
from koord.embedded.apiserver.kinds.internal_types import internal_diff, to_internal
from koord.embedded.apiserver.kinds.pod.defaults import default_volume_source
from koord.embedded.apiserver.kinds.pod.scheduling import node_selector_errors
from koord.embedded.apiserver.kinds.pod.spec import selector_for_message
from koord.embedded.apiserver.kinds.pod.volume import VOLUME_SOURCES, csi_driver_name_errors
from koord.embedded.apiserver.kinds.pvc_spec import VOLUME_MODES, access_mode_errors, positive_quantity_errors
from koord.embedded.apiserver.kinds.strategy import KindStrategy, copy_or_drop, fill_absent, fill_empty
from koord.embedded.apiserver.kinds.validators import IMMUTABLE, NOT_NEGATIVE, fields, immutable_field_errors, one_of
from koord.values import names
from koord.values.quantity import Quantity

# PersistentVolumeClaim ---------------------------------------------------------------------------------------------

_PVC_IMMUTABLE = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)


def _default_pvc(obj: Obj) -> None:
    pvc_spec.default_pvc_spec(obj.setdefault("spec", {}))
    obj.setdefault("status", {}).setdefault("phase", "Pending")


def _prepare_pvc_create(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending"}
    pvc_spec.drop_unsupported_data_source(obj["spec"])
    pvc_spec.sync_data_source_ref(obj["spec"])


def _pvc_errors(obj: Obj) -> list[ApiFieldError]:
    return pvc_spec.pvc_spec_errors(obj["spec"], "spec")


def _pvc_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    spec, before = new["spec"], old["spec"]
    errors = _pvc_errors(new)
    bound = old.get("status", {}).get("phase") == "Bound"
    allowed = dict(spec)
    if bound:  # a bound claim may grow
        copy_or_drop(allowed, before, "volumeAttributesClassName")
        allowed["resources"] = {**spec.get("resources", {})}
        copy_or_drop(allowed["resources"], before.get("resources", {}), "requests")
    if not before.get("volumeName"):
        copy_or_drop(allowed, before, "volumeName")
    if not before.get("storageClassName") and before.get("storageClassName") is None and spec.get("storageClassName"):
        copy_or_drop(allowed, before, "storageClassName")
    if allowed != before:
        errors.append(forbidden_field("spec", f"{_PVC_IMMUTABLE}\n{internal_diff('ClaimSpec', before, allowed)}"))
    errors += _pvc_shrink_errors(spec, before, old)
    if spec.get("volumeMode") != before.get("volumeMode"):
        errors.append(invalid_value("volumeMode", spec.get("volumeMode"), IMMUTABLE))
    return errors


def _pvc_shrink_errors(spec: Obj, before: Obj, old: Obj) -> list[ApiFieldError]:
    now = (spec.get("resources", {}).get("requests") or {}).get("storage", "0")
    was = (before.get("resources", {}).get("requests") or {}).get("storage", "0")
    had = (old.get("status", {}).get("capacity") or {}).get("storage", "0")
    if Quantity.parse(now) >= Quantity.parse(was) or Quantity.parse(now) > Quantity.parse(had):
        return []
    return [forbidden_field("spec.resources.requests.storage", "field can not be less than status.capacity")]


PERSISTENT_VOLUME_CLAIM = KindStrategy(
    default=_default_pvc,
    prepare_create=_prepare_pvc_create,
    prepare_update=lambda new, old: pvc_spec.sync_data_source_ref(new["spec"]),
    validate_create=_pvc_errors,
    validate_update=_pvc_update_errors,
)


# StorageClass ------------------------------------------------------------------------------------------------------


def _default_storage_class(obj: Obj) -> None:
    fill_absent(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def _allowed_topology_errors(terms: list[Obj]) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
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
            errors += validators.qualified_name_errors(key, f"{here}.key")
            if key in keys:
                errors.append(duplicate(f"{here}.key", key))
            keys[key] = sorted(set(values))
        if keys in seen or not keys:
            errors.append(duplicate(at, ""))
        seen.append(keys)
    return errors


def _storage_class_errors(obj: Obj) -> list[ApiFieldError]:
    provisioner = obj.get("provisioner", "")
    errors: list[ApiFieldError] = []
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
    return errors + _allowed_topology_errors(obj.get("allowedTopologies") or [])


def _storage_class_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors = _storage_class_errors(new)
    errors += [
        forbidden_field(key, f"updates to {key} are forbidden.")
        for key in ("parameters", "provisioner", "reclaimPolicy")
        if (new.get(key) or None) != (old.get(key) or None)
    ]
    return errors + immutable_field_errors(new, old, "", ("volumeBindingMode",))


STORAGE_CLASS = KindStrategy(
    default=_default_storage_class, validate_create=_storage_class_errors, validate_update=_storage_class_update_errors
)


# CSINode, CSIDriver, CSIStorageCapacity ----------------------------------------------------------------------------


def _csi_node_driver_errors(found: Obj, path: str, taken: set[str]) -> list[ApiFieldError]:
    name = found.get("name", "")
    errors: list[ApiFieldError] = list(csi_driver_name_errors(name, f"{path}.name"))
    node = found.get("nodeID", "")
    if not node:
        errors.append(required(f"{path}.nodeID"))
    elif len(node) > 256:
        errors.append(invalid_value(f"{path}.nodeID", node, "must be 256 characters or less"))
    errors += fields({"count": NOT_NEGATIVE})(found.get("allocatable") or {}, f"{path}.allocatable")
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
        errors += validators.qualified_name_errors(key, path)
    return errors


def _csi_node_errors(obj: Obj) -> list[ApiFieldError]:
    taken: set[str] = set()
    listed = (obj.get("spec") or {}).get("drivers") or []
    return [
        error for i, found in enumerate(listed) for error in _csi_node_driver_errors(found, f"spec.drivers[{i}]", taken)
    ]


def _csi_node_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors = _csi_node_errors(new) * 2
    before = {found.get("name"): found for found in (old.get("spec") or {}).get("drivers") or ()}
    for found in (new.get("spec") or {}).get("drivers") or ():
        was = before.get(found.get("name"))
        fixed = {**found, "allocatable": None}  # how many volumes fit may be learned anew
        if was is not None and {**was, "allocatable": None} != fixed:
            errors.append(invalid_value("spec.drivers", to_internal("Driver", fixed), IMMUTABLE))
    return errors


CSI_NODE = KindStrategy(validate_create=_csi_node_errors, validate_update=_csi_node_update_errors)


_CSI_DRIVER_DEFAULTS: Obj = {
    "attachRequired": True,
    "podInfoOnMount": False,
    "storageCapacity": False,
    "fsGroupPolicy": "ReadWriteOnceWithFSType",
    "requiresRepublish": False,
    "seLinuxMount": False,
}
_LIFECYCLES = ("Persistent", "Ephemeral")


def _default_csi_driver(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, **_CSI_DRIVER_DEFAULTS)
    fill_empty(spec, volumeLifecycleModes=["Persistent"])


def _token_request_errors(found: list[Obj], path: str) -> Iterator[ApiFieldError]:
    audiences: set[str] = set()
    for i, token in enumerate(found):
        at, audience = f"{path}[{i}]", token.get("audience", "")
        if audience in audiences:
            yield duplicate(f"{at}.audience", audience)
            continue
        audiences.add(audience)
        seconds = token.get("expirationSeconds")
        if seconds is not None and seconds < 600:
            detail = "may not specify a duration less than 10 minutes"
            yield invalid_value(f"{at}.expirationSeconds", seconds, detail)


def _csi_driver_errors(obj: Obj) -> list[ApiFieldError]:
    spec, name = obj["spec"], obj["metadata"]["name"]
    errors: list[ApiFieldError] = []
    if len(name) > 63:
        errors.append(ApiFieldError("name", "FieldValueTooLong", "Too long: may not be more than 63 bytes"))
    errors += one_of("File", "None", "ReadWriteOnceWithFSType")(spec["fsGroupPolicy"], "spec.fsGroupPolicy")
    errors += _token_request_errors(spec.get("tokenRequests") or [], "spec.tokenRequests")
    errors += [
        not_supported("spec.volumeLifecycleModes", mode, _LIFECYCLES)
        for mode in spec["volumeLifecycleModes"]
        if mode not in _LIFECYCLES
    ]
    return errors


def _csi_driver_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    spec, before = new["spec"], old["spec"]
    errors = _csi_driver_errors(new)
    if spec["attachRequired"] != before.get("attachRequired"):
        errors.append(invalid_value("spec.attachedRequired", spec["attachRequired"], IMMUTABLE))
    return errors + immutable_field_errors(spec, before, "spec", ("volumeLifecycleModes",))


CSI_DRIVER = KindStrategy(
    default=_default_csi_driver,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_csi_driver_errors,
    validate_update=_csi_driver_update_errors,
)


def _storage_capacity_errors(obj: Obj) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    name = obj.get("storageClassName", "")
    errors += [invalid_value("storageClassName", name, reason) for reason in names.dns1123_subdomain(name)]
    errors += validators.label_selector_errors(obj.get("nodeTopology"), "nodeTopology")
    if obj.get("capacity") is not None and Quantity.parse(obj["capacity"]).sign() < 0:
        errors.append(invalid_value("capacity", obj["capacity"], "must be greater than or equal to 0"))
    return errors


def _storage_capacity_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors = _storage_capacity_errors(new)
    if new.get("nodeTopology") != old.get("nodeTopology"):
        errors.append(invalid_value("nodeTopology", selector_for_message(new.get("nodeTopology")), IMMUTABLE))
    if new.get("storageClassName") != old.get("storageClassName"):
        errors.append(invalid_value("storageClassName", new.get("storageClassName", ""), IMMUTABLE))
    return errors


CSI_STORAGE_CAPACITY = KindStrategy(
    validate_create=_storage_capacity_errors, validate_update=_storage_capacity_update_errors
)


# VolumeAttachment --------------------------------------------------------------------------------------------------


def _attachment_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj.get("spec") or {}
    errors: list[ApiFieldError] = []
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


def _attachment_create_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj.get("spec") or {}
    errors = _attachment_errors(obj)
    errors += csi_driver_name_errors(spec.get("attacher", ""), "spec.attacher")
    name = (spec.get("source") or {}).get("persistentVolumeName")
    if name is not None:
        at = "spec.source.persistentVolumeName"
        errors += [invalid_value(at, name, reason) for reason in names.dns1123_subdomain(name)]
    return errors


def _attachment_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors = _attachment_errors(new)
    if new.get("spec") != old.get("spec"):
        errors.append(invalid_value("spec", to_internal("AttachmentSpec", new.get("spec") or {}), IMMUTABLE))
    return errors


VOLUME_ATTACHMENT = KindStrategy(validate_create=_attachment_create_errors, validate_update=_attachment_update_errors)


_RECLAIM_POLICIES = ("Delete", "Recycle", "Retain")
_POD_VOLUME_SOURCES = [
    *("hostPath", "gcePersistentDisk", "awsElasticBlockStore", "nfs", "iscsi", "glusterfs", "flocker", "rbd"),
    *("cinder", "cephfs", "quobyte", "fc", "flexVolume", "azureFile", "vsphereVolume", "photonPersistentDisk"),
    *("portworxVolume", "azureDisk", "scaleIO", "storageos"),
]
_SECRET_REF: validators.Validator = validators.fields(
    {
        "name": validators.even_if_absent(
            validators.first_of(validators.non_empty(), validators.valid_name(names.dns1123_subdomain))
        ),
        "namespace": validators.even_if_absent(
            validators.first_of(validators.non_empty(), validators.valid_name(names.dns1123_label))
        ),
    }
)
_SECRET_REF_FIELDS = (
    "controllerPublishSecretRef",
    "controllerExpandSecretRef",
    "nodePublishSecretRef",
    "nodeExpandSecretRef",
)


def _csi_source_errors(found: Obj, path: str) -> validators.FieldErrors:
    errors = list(csi_driver_name_errors(found.get("driver", ""), f"{path}.driver"))
    if not found.get("volumeHandle"):
        errors.append(required(f"{path}.volumeHandle"))
    for key in _SECRET_REF_FIELDS:
        if found.get(key) is not None:
            errors += _SECRET_REF(found[key], f"{path}.{key}")
    return errors


def _local_source_errors(found: Obj, path: str) -> validators.FieldErrors:
    return validators.NO_ERRORS if found.get("path") else [required(f"{path}.path")]


def _default_persistent_volume(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    fill_empty(spec, persistentVolumeReclaimPolicy="Retain")
    fill_absent(spec, volumeMode="Filesystem")
    for key in _POD_VOLUME_SOURCES:
        if spec.get(key) is not None:
            default_volume_source(key, spec[key])


def _prepare_create(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": obj["metadata"]["creationTimestamp"]}


def _capacity_errors(found: Obj | None, path: str) -> Iterator[ApiFieldError]:
    if not found:
        yield required(path)
    if not found or "storage" not in found or len(found) > 1:
        shown = None if found is None else {name: found[name] for name in sorted(found)}
        yield not_supported(path, shown, ("storage",))
    for name, text in (found or {}).items():
        at = f"{path}[{name}]"
        amount = Quantity.parse(text)
        if amount.sign() < 0:
            yield invalid_value(at, amount.value(), "must be a valid resource quantity")
        if name == "storage":
            yield from positive_quantity_errors(text, at)


_OTHER_FIELDS = validators.fields(
    {
        "persistentVolumeReclaimPolicy": validators.one_of(*_RECLAIM_POLICIES),
        "storageClassName": validators.valid_name(names.dns1123_subdomain),
        "volumeMode": validators.one_of(*VOLUME_MODES),
        "volumeAttributesClassName": validators.valid_name(names.dns1123_subdomain),
    }
)


def _source_errors(spec: Obj, path: str) -> Iterator[ApiFieldError]:
    chosen = 0
    rules: dict[str, tuple[str, validators.Validator]] = {key: VOLUME_SOURCES[key] for key in _POD_VOLUME_SOURCES}
    rules["local"] = ("local", _local_source_errors)
    rules["csi"] = ("csi", _csi_source_errors)
    for key, (shown, rule) in rules.items():
        if spec.get(key) is None:
            continue
        chosen += 1
        if chosen > 1:
            yield forbidden_field(f"{path}.{shown}", "may not specify more than 1 volume type")
        else:
            yield from rule(spec[key], f"{path}.{shown}")
            if (
                key == "local"
                and (spec.get("nodeAffinity") or {}).get("required") is None
                and "nodeAffinity" not in spec
            ):
                yield required(f"{path}.nodeAffinity", "Local volume requires node affinity")
    if not chosen:
        yield required(path, "must specify a volume type")


def _node_affinity_errors(found: Obj | None, path: str) -> validators.FieldErrors:
    if found is None:
        return validators.NO_ERRORS
    if found.get("required") is None:
        return [required(f"{path}.required", "must specify required node constraints")]
    return node_selector_errors(found["required"], f"{path}.required")


def _persistent_volume_errors(obj: Obj) -> list[ApiFieldError]:
    spec, path = obj["spec"], "spec"
    errors = access_mode_errors(spec.get("accessModes"), f"{path}.accessModes", "")
    errors += _capacity_errors(spec.get("capacity"), f"{path}.capacity")
    errors += _node_affinity_errors(spec.get("nodeAffinity"), f"{path}.nodeAffinity")
    errors += _source_errors(spec, path)
    host = (spec.get("hostPath") or {}).get("path", "")
    if host.rstrip("/") == "" and host and spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        detail = "may not be 'recycle' for a hostPath mount of '/'"
        errors.append(forbidden_field(f"{path}.persistentVolumeReclaimPolicy", detail))
    return [*errors, *_OTHER_FIELDS(spec, path)]


def _persistent_volume_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    spec, before = new["spec"], old["spec"]
    errors = _persistent_volume_errors(new) * 2
    kinds = (*_POD_VOLUME_SOURCES, "local", "csi")
    if any(spec.get(key) != before.get(key) for key in kinds):
        detail = "spec.persistentvolumesource is immutable after creation"
        shown = f"{detail}\n{internal_diff('VolumeSource', before, spec)}"
        errors.append(forbidden_field("spec.persistentvolumesource", shown))
    if spec.get("volumeMode") != before.get("volumeMode"):
        errors.append(invalid_value("volumeMode", spec.get("volumeMode"), "field is immutable"))
    if before.get("nodeAffinity") is not None and spec.get("nodeAffinity") != before["nodeAffinity"]:
        found = spec.get("nodeAffinity")
        shown_affinity = None if found is None else to_internal("VolumeNodeAffinity", found)
        detail = "field is immutable, except for updating from beta label to GA"
        errors.append(invalid_value("nodeAffinity", shown_affinity, detail))
    return errors


PERSISTENT_VOLUME = KindStrategy(
    default=_default_persistent_volume,
    prepare_create=_prepare_create,
    validate_create=_persistent_volume_errors,
    validate_update=_persistent_volume_update_errors,
    selectable_fields={"name": lambda obj: str(obj["metadata"].get("name", ""))},
)
