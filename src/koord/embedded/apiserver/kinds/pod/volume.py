"""This module validates the volumes of a pod: their names, and each volume source by its own rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from koord.embedded.apiserver.kinds import label
from koord.embedded.apiserver.kinds.claim import claim_spec
from koord.embedded.apiserver.kinds.pod.container import label_reasons
from koord.embedded.apiserver.kinds.pod.environment import VOLUME_FIELDS, field_ref, resource_ref
from koord.embedded.apiserver.kinds.pod.security import local_path
from koord.embedded.apiserver.kinds.rule import (
    FINE,
    Errors,
    Rule,
    all_of,
    between,
    each,
    fields,
    filled,
    first_of,
    named,
    needed,
    one_of,
)
from koord.embedded.apiserver.refusal import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    too_long,
)
from koord.values import names
from koord.values.quantity import Quantity

Obj = dict[str, Any]
_MUST = needed(filled())
_MODE = between(0, 0o777, "must be a number between 0 and 0777 (octal), both inclusive")
HOST_PATHS = ("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket")
_AZURE_BLOB = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
_AZURE_DISK = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"


def _relative(value: str, path: str) -> Errors:
    errors: list[FieldError] = list(local_path(value, path))
    if not errors and value.startswith(".."):
        errors.append(invalid_value(path, value, "must not start with '..'"))
    return errors


def _no_steps_back(value: str, path: str) -> Errors:
    return [invalid_value(path, value, "must not contain '..'")] if ".." in value.split("/") else FINE


_ITEM = fields({"key": _MUST, "path": needed(first_of(filled(), _relative)), "mode": _MODE})
_ITEMS = each(_ITEM)


def _downward(found: Obj, path: str) -> Errors:
    errors: list[FieldError] = []
    for item in found.get("items") or ():
        if not item.get("path"):
            errors.append(required(f"{path}.path"))
        else:
            errors += _relative(item["path"], f"{path}.path")
        if item.get("fieldRef") is not None:
            errors += field_ref(item["fieldRef"], f"{path}.fieldRef", VOLUME_FIELDS)
            if item.get("resourceFieldRef") is not None:
                errors.append(
                    invalid_value(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
                )
        elif item.get("resourceFieldRef") is not None:
            errors += resource_ref(item["resourceFieldRef"], f"{path}.resourceFieldRef", volume=True)
        else:
            errors.append(required(path, "one of fieldRef and resourceFieldRef is required"))
        if item.get("mode") is not None:
            errors += _MODE(item["mode"], f"{path}.mode")
    return errors


def _projected(found: Obj, path: str) -> Errors:
    errors: list[FieldError] = []
    if found.get("defaultMode") is not None:
        errors += _MODE(found["defaultMode"], f"{path}.defaultMode")
    paths: set[str] = set()

    def claim(text: str) -> None:
        if text in paths:
            errors.append(invalid_value(path, text, "conflicting duplicate paths"))
        paths.add(text)

    for i, source in enumerate(found.get("sources") or ()):
        at = f"{path}.sources[{i}]"
        chosen = 0
        for key in ("secret", "configMap"):
            if source.get(key) is not None:
                chosen += 1
                if chosen > 1:
                    errors.append(forbidden_field(at, "may not specify more than 1 volume type per source"))
                    continue
                if not source[key].get("name"):
                    errors.append(required(f"{at}.{key}.name"))
                for j, item in enumerate(source[key].get("items") or ()):
                    errors += _ITEM(item, f"{at}.{key}.items[{j}]")
                    if item.get("path"):
                        claim(item["path"])
        if source.get("downwardAPI") is not None:
            errors += _downward(source["downwardAPI"], f"{at}.downwardAPI")
            for item in source["downwardAPI"].get("items") or ():
                if item.get("path"):
                    claim(item["path"])
        if source.get("serviceAccountToken") is not None:
            errors += _token(source["serviceAccountToken"], f"{at}.serviceAccountToken", path)
            if source["serviceAccountToken"].get("path"):
                claim(source["serviceAccountToken"]["path"])
    return errors


def _token(found: Obj, path: str, volume: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seconds = found.get("expirationSeconds", 0)
    if seconds < 600:
        detail = "may not specify a duration less than 10 minutes"
        errors.append(invalid_value(f"{path}.expirationSeconds", seconds, detail))
    elif seconds > 1 << 32:
        detail = "may not specify a duration larger than 2^32 seconds"
        errors.append(invalid_value(f"{path}.expirationSeconds", seconds, detail))
    if not found.get("path"):
        errors.append(required(f"{volume}.path"))
    else:
        errors += _relative(found["path"], f"{volume}.path")
    return errors


def _empty_dir(found: Obj, path: str) -> Errors:
    limit = found.get("sizeLimit")
    if limit is not None and Quantity.parse(limit).sign() < 0:
        return [forbidden_field(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")]
    return FINE


def _nfs_path(value: str, path: str) -> Errors:
    errors = [] if value else [required(path)]
    return errors if value.startswith("/") else [*errors, invalid_value(path, value, "must be an absolute path")]


def _iqn(value: str, path: str) -> Errors:
    if not value:
        return [required(path)]
    if not value.startswith(("iqn", "eui", "naa")):
        return [invalid_value(path, value, "must be valid format starting with iqn, eui, or naa")]
    patterns = {
        "iqn": r"iqn\.\d{4}-\d{2}\.([a-z\d_.-]+)?(:([^,;*&$|\s]+)?)?",
        "eui": r"eui.[a-fA-F\d]{16}",
        "naa": r"naa.[a-fA-F\d]{16,32}",
    }
    good = re.fullmatch(patterns[value[:3]], value)
    return FINE if good else [invalid_value(path, value, "must be valid format")]


def _fc(found: Obj, path: str) -> Errors:
    targets, wwids = found.get("targetWWNs"), found.get("wwids")
    if not targets and not wwids:
        return [required(f"{path}.targetWWNs", "must specify either targetWWNs or wwids, but not both")]
    errors: list[FieldError] = []
    if targets and wwids:
        detail = "targetWWNs and wwids can not be specified simultaneously"
        errors.append(invalid_value(f"{path}.targetWWNs", targets, detail))
    if targets:
        lun = found.get("lun")
        if lun is None:
            errors.append(required(f"{path}.lun", "lun is required if targetWWNs is specified"))
        else:
            errors += between(0, 255)(lun, f"{path}.lun")
    return errors


def _azure_uri(found: Obj, path: str) -> Errors:
    uri, kind = found.get("diskURI", ""), found.get("kind", "")
    managed = kind == "Managed"
    if managed and not uri.startswith("/subscriptions/"):
        return [not_supported(f"{path}.diskURI", uri, (_AZURE_DISK,))]
    if not managed and not uri.startswith("https://"):
        return [not_supported(f"{path}.diskURI", uri, (_AZURE_BLOB,))]
    return FINE


_AZURE = fields(
    {
        "diskName": _MUST,
        "diskURI": _MUST,
        "cachingMode": one_of("None", "ReadOnly", "ReadWrite"),
        "kind": one_of("Dedicated", "Managed", "Shared"),
    }
)
_REGISTRY = "must be a host:port pair or multiple pairs separated by commas"


def _registry(value: str, path: str) -> Errors:
    if not value:
        return [required(path, _REGISTRY)]
    good = all(re.fullmatch(r"[^:]+:\d+", pair) for pair in value.split(","))
    return FINE if good else [invalid_value(path, value, _REGISTRY)]


def _flocker(found: Obj, path: str) -> Errors:
    name, uuid = found.get("datasetName", ""), found.get("datasetUUID", "")
    if not name and not uuid:
        return [required(path, "one of datasetName and datasetUUID is required")]
    errors: list[FieldError] = []
    if name and uuid:
        detail = "datasetName and datasetUUID can not be specified simultaneously"
        errors.append(invalid_value(path, "resource", detail))
    if "/" in name:
        errors.append(invalid_value(f"{path}.datasetName", name, "must not contain '/'"))
    return errors


def _driver(value: str, path: str) -> Errors:
    if not value:
        return [required(path)]
    errors = [too_long(path, 63)] if len(value) > 63 else []
    return errors + [invalid_value(path, value, reason) for reason in names.dns1123_subdomain(value.lower())]


csi_driver: Rule = _driver


def _csi(found: Obj, path: str) -> Errors:
    errors = list(_driver(found.get("driver", ""), f"{path}.driver"))
    ref = found.get("nodePublishSecretRef")
    if ref is not None:
        name = ref.get("name", "")
        if not name:
            errors.append(required(f"{path}.nodePublishSecretRef.name"))
        else:
            errors += [invalid_value(f"{path}.name", name, reason) for reason in names.dns1123_subdomain(name)]
    return errors


def _secret_ref(found: Obj, path: str) -> Errors:
    return FINE if found.get("name") else [required(f"{path}.name")]


# Source -> (its name in messages, its rule), in the order in which kube-apiserver looks.
SOURCES: Mapping[str, tuple[str, Rule]] = {
    "emptyDir": ("emptyDir", _empty_dir),
    "hostPath": (
        "hostPath",
        fields({"path": needed(first_of(filled(), _no_steps_back)), "type": one_of(*HOST_PATHS)}),
    ),
    "gitRepo": ("gitRepo", fields({"repository": _MUST, "directory": _relative})),
    "gcePersistentDisk": ("persistentDisk", fields({"pdName": _MUST, "partition": between(1, 255)})),
    "awsElasticBlockStore": ("awsElasticBlockStore", fields({"volumeID": _MUST, "partition": between(1, 255)})),
    "secret": ("secret", fields({"secretName": _MUST, "defaultMode": _MODE, "items": _ITEMS})),
    "nfs": ("nfs", fields({"server": _MUST, "path": needed(_nfs_path)})),
    "iscsi": (
        "iscsi",
        fields({"targetPortal": _MUST, "iqn": needed(_iqn), "lun": between(0, 255), "secretRef": _secret_ref}),
    ),
    "glusterfs": ("glusterfs", fields({"endpoints": _MUST, "path": _MUST})),
    "flocker": ("flocker", _flocker),
    "rbd": ("rbd", fields({"monitors": _MUST, "image": _MUST})),
    "cinder": ("cinder", fields({"volumeID": _MUST, "secretRef": _secret_ref})),
    "cephfs": ("cephfs", fields({"monitors": _MUST})),
    "quobyte": ("quobyte", fields({"registry": needed(_registry), "volume": _MUST})),
    "downwardAPI": ("downwardAPI", all_of(fields({"defaultMode": _MODE}), _downward)),
    "fc": ("fc", _fc),
    "flexVolume": ("flexVolume", fields({"driver": _MUST})),
    "configMap": ("configMap", fields({"name": _MUST, "defaultMode": _MODE, "items": _ITEMS})),
    "azureFile": ("azureFile", fields({"secretName": _MUST, "shareName": _MUST})),
    "vsphereVolume": ("vsphereVolume", fields({"volumePath": _MUST})),
    "photonPersistentDisk": ("photonPersistentDisk", fields({"pdID": _MUST})),
    "portworxVolume": ("portworxVolume", fields({"volumeID": _MUST})),
    "azureDisk": ("azureDisk", all_of(_AZURE, _azure_uri)),
    "storageos": (
        "storageos",
        fields(
            {
                "volumeName": needed(first_of(filled(), named(names.dns1123_label))),
                "volumeNamespace": named(names.dns1123_label),
                "secretRef": _secret_ref,
            }
        ),
    ),
    "projected": ("projected", _projected),
    "scaleIO": ("scaleIO", fields({"gateway": _MUST, "system": _MUST, "volumeName": _MUST})),
    "csi": ("csi", _csi),
    "persistentVolumeClaim": ("persistentVolumeClaim", fields({"claimName": _MUST})),
    "image": (
        "image",
        fields({"reference": _MUST, "pullPolicy": one_of("Always", "IfNotPresent", "Never")}),
    ),
}


def _ephemeral(found: Obj, path: str) -> list[FieldError]:
    template, at = found.get("volumeClaimTemplate"), f"{path}.volumeClaimTemplate"
    if template is None:
        return [required(at)]
    meta = template.get("metadata") or {}
    errors: list[FieldError] = []
    errors += label.annotation_map(meta.get("annotations") or {}, f"{at}.metadata.annotations")
    errors += label.labels(meta.get("labels") or {}, f"{at}.metadata.labels")
    errors += [
        forbidden_field(f"{at}.metadata.{key}", "cannot be set")
        for key in ("name", "generateName", "namespace", "ownerReferences", "finalizers")
        if meta.get(key)
    ]
    return errors + claim_spec(template.get("spec", {}), f"{at}.spec")


def volume_source(volume: Obj, path: str, pod_name: str) -> list[FieldError]:
    errors: list[FieldError] = []
    chosen = 0
    for key, (shown, rule) in SOURCES.items():
        if volume.get(key) is not None:
            chosen += 1
            at = f"{path}.{shown}"
            if chosen > 1:
                errors.append(forbidden_field(at, "may not specify more than 1 volume type"))
            else:
                errors += rule(volume[key], at)
    if volume.get("ephemeral") is not None:
        chosen += 1
        if chosen > 1:
            errors.append(forbidden_field(f"{path}.ephemeral", "may not specify more than 1 volume type"))
        else:
            errors += _ephemeral(volume["ephemeral"], f"{path}.ephemeral")
            name = volume.get("name", "")
            if name and pod_name:  # the claim will be named after both
                whole = f"{pod_name}-{name}"
                errors += [
                    invalid_value(f"{path}.name", name, f'PVC name "{whole}": {reason}')
                    for reason in names.dns1123_subdomain(whole)
                ]
    if not chosen:
        errors.append(required(path, "must specify a volume type"))
    return errors


def volumes(found: list[Obj], path: str, pod_name: str) -> tuple[dict[str, Obj], list[FieldError]]:
    """Return the valid volumes by name, and the errors of the others."""
    good: dict[str, Obj] = {}
    errors: list[FieldError] = []
    for i, volume in enumerate(found):
        at = f"{path}[{i}]"
        own = volume_source(volume, at, pod_name)
        name = volume.get("name", "")
        if not name:
            own.append(required(f"{at}.name"))
        else:
            own += [invalid_value(f"{at}.name", name, reason) for reason in label_reasons(name)]
            if name in good:
                own.append(duplicate(f"{at}.name", name))
        if own:
            errors += own
        else:
            good[name] = volume
    return good, errors
