"""This module holds the strategy of PersistentVolume."""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, not_supported, required
from koord.embedded.apiserver.kinds import validators
from koord.embedded.apiserver.kinds.internal_types import internal_diff, to_internal
from koord.embedded.apiserver.kinds.pod.defaults import default_volume_source
from koord.embedded.apiserver.kinds.pod.scheduling import node_selector_errors
from koord.embedded.apiserver.kinds.pod.volume import VOLUME_SOURCES, csi_driver_name_errors
from koord.embedded.apiserver.kinds.pvc_spec import VOLUME_MODES, access_mode_errors, positive_quantity_errors
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_absent, fill_empty
from koord.values import names
from koord.values.quantity import Quantity

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
