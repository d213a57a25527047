"""This module holds the strategy of PersistentVolume."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds.claim import VOLUME_MODES, access_modes, positive
from koord.embedded.apiserver.kinds.internal import difference, internal
from koord.embedded.apiserver.kinds.pod.scheduling import node_selector
from koord.embedded.apiserver.kinds.pod.volume import SOURCES, csi_driver
from koord.embedded.apiserver.kinds.pod.volume_defaults import default_source
from koord.embedded.apiserver.kinds.rule import FINE, Errors, Rule, fields, filled, first_of, named, needed, one_of
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.refusal import FieldError, forbidden_field, invalid_value, not_supported, required
from koord.values import names
from koord.values.quantity import Quantity

Obj = dict[str, Any]
_RECLAIM = ("Delete", "Recycle", "Retain")
_SHARED = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "storageos",
]
_SECRET: Rule = fields(
    {
        "name": needed(first_of(filled(), named(names.dns1123_subdomain))),
        "namespace": needed(first_of(filled(), named(names.dns1123_label))),
    }
)
_SECRETS = ("controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef")


def _csi(found: Obj, path: str) -> Errors:
    errors = list(csi_driver(found.get("driver", ""), f"{path}.driver"))
    if not found.get("volumeHandle"):
        errors.append(required(f"{path}.volumeHandle"))
    for key in _SECRETS:
        if found.get(key) is not None:
            errors += _SECRET(found[key], f"{path}.{key}")
    return errors


def _local(found: Obj, path: str) -> Errors:
    return FINE if found.get("path") else [required(f"{path}.path")]


def _default(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    if not spec.get("persistentVolumeReclaimPolicy"):
        spec["persistentVolumeReclaimPolicy"] = "Retain"
    if spec.get("volumeMode") is None:
        spec["volumeMode"] = "Filesystem"
    for key in _SHARED:
        if spec.get(key) is not None:
            default_source(key, spec[key])


def _begin(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": obj["metadata"]["creationTimestamp"]}


def _capacity(found: Obj | None, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if not found:
        errors.append(required(path))
    if not found or "storage" not in found or len(found) > 1:
        shown = None if found is None else {name: found[name] for name in sorted(found)}
        errors.append(not_supported(path, shown, ("storage",)))
    for name, text in (found or {}).items():
        at = f"{path}[{name}]"
        amount = Quantity.parse(text)
        if amount.sign() < 0:
            errors.append(invalid_value(at, amount.value(), "must be a valid resource quantity"))
        if name == "storage":
            errors += positive(text, at)
    return errors


_REST = fields(
    {
        "persistentVolumeReclaimPolicy": one_of(*_RECLAIM),
        "storageClassName": named(names.dns1123_subdomain),
        "volumeMode": one_of(*VOLUME_MODES),
        "volumeAttributesClassName": named(names.dns1123_subdomain),
    }
)


def _source(spec: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    chosen = 0
    rules: dict[str, tuple[str, Rule]] = {key: SOURCES[key] for key in _SHARED}
    rules["local"] = ("local", _local)
    rules["csi"] = ("csi", _csi)
    for key, (shown, rule) in rules.items():
        if spec.get(key) is None:
            continue
        chosen += 1
        if chosen > 1:
            errors.append(forbidden_field(f"{path}.{shown}", "may not specify more than 1 volume type"))
        else:
            errors += rule(spec[key], f"{path}.{shown}")
            if (
                key == "local"
                and (spec.get("nodeAffinity") or {}).get("required") is None
                and "nodeAffinity" not in spec
            ):
                errors.append(required(f"{path}.nodeAffinity", "Local volume requires node affinity"))
    if not chosen:
        errors.append(required(path, "must specify a volume type"))
    return errors


def _node_affinity(found: Obj | None, path: str) -> Errors:
    if found is None:
        return FINE
    if found.get("required") is None:
        return [required(f"{path}.required", "must specify required node constraints")]
    return node_selector(found["required"], f"{path}.required")


def _errors(obj: Obj) -> list[FieldError]:
    spec, path = obj["spec"], "spec"
    errors = access_modes(spec.get("accessModes"), f"{path}.accessModes", "")
    errors += _capacity(spec.get("capacity"), f"{path}.capacity")
    errors += _node_affinity(spec.get("nodeAffinity"), f"{path}.nodeAffinity")
    errors += _source(spec, path)
    host = (spec.get("hostPath") or {}).get("path", "")
    if host.rstrip("/") == "" and host and spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        detail = "may not be 'recycle' for a hostPath mount of '/'"
        errors.append(forbidden_field(f"{path}.persistentVolumeReclaimPolicy", detail))
    return [*errors, *_REST(spec, path)]


def _update_errors(new: Obj, old: Obj) -> list[FieldError]:
    spec, before = new["spec"], old["spec"]
    errors = _errors(new) * 2
    kinds = (*_SHARED, "local", "csi")
    if any(spec.get(key) != before.get(key) for key in kinds):
        detail = "spec.persistentvolumesource is immutable after creation"
        shown = f"{detail}\n{difference('VolumeSource', before, spec)}"
        errors.append(forbidden_field("spec.persistentvolumesource", shown))
    if spec.get("volumeMode") != before.get("volumeMode"):
        errors.append(invalid_value("volumeMode", spec.get("volumeMode"), "field is immutable"))
    if before.get("nodeAffinity") is not None and spec.get("nodeAffinity") != before["nodeAffinity"]:
        found = spec.get("nodeAffinity")
        shown_affinity = None if found is None else internal("VolumeNodeAffinity", found)
        detail = "field is immutable, except for updating from beta label to GA"
        errors.append(invalid_value("nodeAffinity", shown_affinity, detail))
    return errors


PERSISTENT_VOLUME = Strategy(
    default=_default,
    prepare_create=_begin,
    validate_create=_errors,
    validate_update=_update_errors,
    fields={"name": lambda obj: str(obj["metadata"].get("name", ""))},
)
