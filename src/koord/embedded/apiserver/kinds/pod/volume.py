"""This module validates the volumes of a pod: their names, and each volume source by its own rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import (
    ApiFieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    too_long,
)
from koord.embedded.apiserver.kinds import validators
from koord.embedded.apiserver.kinds.pod.container import dns_label_reasons
from koord.embedded.apiserver.kinds.pod.environment import (
    VOLUME_FIELD_PATHS,
    field_ref_errors,
    resource_field_ref_errors,
)
from koord.embedded.apiserver.kinds.pod.security import relative_path_errors
from koord.embedded.apiserver.kinds.pvc_spec import pvc_spec_errors
from koord.embedded.apiserver.kinds.validators import (
    NO_ERRORS,
    FieldErrors,
    Validator,
    all_of,
    between,
    each,
    even_if_absent,
    fields,
    first_of,
    non_empty,
    one_of,
    valid_name,
)
from koord.values import names
from koord.values.quantity import Quantity

_REQUIRED = even_if_absent(non_empty())
_FILE_MODE = between(0, 0o777, "must be a number between 0 and 0777 (octal), both inclusive")
HOST_PATH_TYPES = ("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket")
_AZURE_BLOB = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
_AZURE_DISK = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"


def _relative_path_errors(value: str, path: str) -> FieldErrors:
    errors: list[ApiFieldError] = list(relative_path_errors(value, path))
    if not errors and value.startswith(".."):
        errors.append(invalid_value(path, value, "must not start with '..'"))
    return errors


def _no_backstep_errors(value: str, path: str) -> FieldErrors:
    return [invalid_value(path, value, "must not contain '..'")] if ".." in value.split("/") else NO_ERRORS


_KEY_TO_PATH = fields(
    {"key": _REQUIRED, "path": even_if_absent(first_of(non_empty(), _relative_path_errors)), "mode": _FILE_MODE}
)
_KEYS_TO_PATHS = each(_KEY_TO_PATH)


def _downward_api_errors(found: Obj, path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
    for item in found.get("items") or ():
        if not item.get("path"):
            errors.append(required(f"{path}.path"))
        else:
            errors += _relative_path_errors(item["path"], f"{path}.path")
        if item.get("fieldRef") is not None:
            errors += field_ref_errors(item["fieldRef"], f"{path}.fieldRef", VOLUME_FIELD_PATHS)
            if item.get("resourceFieldRef") is not None:
                errors.append(
                    invalid_value(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
                )
        elif item.get("resourceFieldRef") is not None:
            errors += resource_field_ref_errors(item["resourceFieldRef"], f"{path}.resourceFieldRef", volume=True)
        else:
            errors.append(required(path, "one of fieldRef and resourceFieldRef is required"))
        if item.get("mode") is not None:
            errors += _FILE_MODE(item["mode"], f"{path}.mode")
    return errors


def _projected_errors(found: Obj, path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
    if found.get("defaultMode") is not None:
        errors += _FILE_MODE(found["defaultMode"], f"{path}.defaultMode")
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
                    errors += _KEY_TO_PATH(item, f"{at}.{key}.items[{j}]")
                    if item.get("path"):
                        claim(item["path"])
        if source.get("downwardAPI") is not None:
            errors += _downward_api_errors(source["downwardAPI"], f"{at}.downwardAPI")
            for item in source["downwardAPI"].get("items") or ():
                if item.get("path"):
                    claim(item["path"])
        if source.get("serviceAccountToken") is not None:
            errors += _service_account_token_errors(source["serviceAccountToken"], f"{at}.serviceAccountToken", path)
            if source["serviceAccountToken"].get("path"):
                claim(source["serviceAccountToken"]["path"])
    return errors


def _service_account_token_errors(found: Obj, path: str, volume: str) -> Iterator[ApiFieldError]:
    seconds = found.get("expirationSeconds", 0)
    if seconds < 600:
        detail = "may not specify a duration less than 10 minutes"
        yield invalid_value(f"{path}.expirationSeconds", seconds, detail)
    elif seconds > 1 << 32:
        detail = "may not specify a duration larger than 2^32 seconds"
        yield invalid_value(f"{path}.expirationSeconds", seconds, detail)
    if not found.get("path"):
        yield required(f"{volume}.path")
    else:
        yield from _relative_path_errors(found["path"], f"{volume}.path")


def _empty_dir_errors(found: Obj, path: str) -> FieldErrors:
    limit = found.get("sizeLimit")
    if limit is not None and Quantity.parse(limit).sign() < 0:
        return [forbidden_field(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")]
    return NO_ERRORS


def _nfs_path_errors(value: str, path: str) -> FieldErrors:
    errors = [] if value else [required(path)]
    return errors if value.startswith("/") else [*errors, invalid_value(path, value, "must be an absolute path")]


def _iqn_errors(value: str, path: str) -> FieldErrors:
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
    return NO_ERRORS if good else [invalid_value(path, value, "must be valid format")]


def _fc_errors(found: Obj, path: str) -> FieldErrors:
    targets, wwids = found.get("targetWWNs"), found.get("wwids")
    if not targets and not wwids:
        return [required(f"{path}.targetWWNs", "must specify either targetWWNs or wwids, but not both")]
    errors: list[ApiFieldError] = []
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


def _azure_uri_errors(found: Obj, path: str) -> FieldErrors:
    uri, kind = found.get("diskURI", ""), found.get("kind", "")
    managed = kind == "Managed"
    if managed and not uri.startswith("/subscriptions/"):
        return [not_supported(f"{path}.diskURI", uri, (_AZURE_DISK,))]
    if not managed and not uri.startswith("https://"):
        return [not_supported(f"{path}.diskURI", uri, (_AZURE_BLOB,))]
    return NO_ERRORS


_AZURE_DISK_RULES = fields(
    {
        "diskName": _REQUIRED,
        "diskURI": _REQUIRED,
        "cachingMode": one_of("None", "ReadOnly", "ReadWrite"),
        "kind": one_of("Dedicated", "Managed", "Shared"),
    }
)
_REGISTRY = "must be a host:port pair or multiple pairs separated by commas"


def _registry_errors(value: str, path: str) -> FieldErrors:
    if not value:
        return [required(path, _REGISTRY)]
    good = all(re.fullmatch(r"[^:]+:\d+", pair) for pair in value.split(","))
    return NO_ERRORS if good else [invalid_value(path, value, _REGISTRY)]


def _flocker_errors(found: Obj, path: str) -> FieldErrors:
    name, uuid = found.get("datasetName", ""), found.get("datasetUUID", "")
    if not name and not uuid:
        return [required(path, "one of datasetName and datasetUUID is required")]
    errors: list[ApiFieldError] = []
    if name and uuid:
        detail = "datasetName and datasetUUID can not be specified simultaneously"
        errors.append(invalid_value(path, "resource", detail))
    if "/" in name:
        errors.append(invalid_value(f"{path}.datasetName", name, "must not contain '/'"))
    return errors


def _driver_name_errors(value: str, path: str) -> FieldErrors:
    if not value:
        return [required(path)]
    errors = [too_long(path, 63)] if len(value) > 63 else []
    return errors + [invalid_value(path, value, reason) for reason in names.dns1123_subdomain(value.lower())]


csi_driver_name_errors: Validator = _driver_name_errors


def _csi_errors(found: Obj, path: str) -> FieldErrors:
    errors = list(_driver_name_errors(found.get("driver", ""), f"{path}.driver"))
    ref = found.get("nodePublishSecretRef")
    if ref is not None:
        name = ref.get("name", "")
        if not name:
            errors.append(required(f"{path}.nodePublishSecretRef.name"))
        else:
            errors += [invalid_value(f"{path}.name", name, reason) for reason in names.dns1123_subdomain(name)]
    return errors


def _secret_ref_errors(found: Obj, path: str) -> FieldErrors:
    return NO_ERRORS if found.get("name") else [required(f"{path}.name")]


# Source -> (its name in messages, its rule), in the order in which kube-apiserver looks.
VOLUME_SOURCES: Mapping[str, tuple[str, Validator]] = {
    "emptyDir": ("emptyDir", _empty_dir_errors),
    "hostPath": (
        "hostPath",
        fields({"path": even_if_absent(first_of(non_empty(), _no_backstep_errors)), "type": one_of(*HOST_PATH_TYPES)}),
    ),
    "gitRepo": ("gitRepo", fields({"repository": _REQUIRED, "directory": _relative_path_errors})),
    "gcePersistentDisk": ("persistentDisk", fields({"pdName": _REQUIRED, "partition": between(1, 255)})),
    "awsElasticBlockStore": ("awsElasticBlockStore", fields({"volumeID": _REQUIRED, "partition": between(1, 255)})),
    "secret": ("secret", fields({"secretName": _REQUIRED, "defaultMode": _FILE_MODE, "items": _KEYS_TO_PATHS})),
    "nfs": ("nfs", fields({"server": _REQUIRED, "path": even_if_absent(_nfs_path_errors)})),
    "iscsi": (
        "iscsi",
        fields(
            {
                "targetPortal": _REQUIRED,
                "iqn": even_if_absent(_iqn_errors),
                "lun": between(0, 255),
                "secretRef": _secret_ref_errors,
            }
        ),
    ),
    "glusterfs": ("glusterfs", fields({"endpoints": _REQUIRED, "path": _REQUIRED})),
    "flocker": ("flocker", _flocker_errors),
    "rbd": ("rbd", fields({"monitors": _REQUIRED, "image": _REQUIRED})),
    "cinder": ("cinder", fields({"volumeID": _REQUIRED, "secretRef": _secret_ref_errors})),
    "cephfs": ("cephfs", fields({"monitors": _REQUIRED})),
    "quobyte": ("quobyte", fields({"registry": even_if_absent(_registry_errors), "volume": _REQUIRED})),
    "downwardAPI": ("downwardAPI", all_of(fields({"defaultMode": _FILE_MODE}), _downward_api_errors)),
    "fc": ("fc", _fc_errors),
    "flexVolume": ("flexVolume", fields({"driver": _REQUIRED})),
    "configMap": ("configMap", fields({"name": _REQUIRED, "defaultMode": _FILE_MODE, "items": _KEYS_TO_PATHS})),
    "azureFile": ("azureFile", fields({"secretName": _REQUIRED, "shareName": _REQUIRED})),
    "vsphereVolume": ("vsphereVolume", fields({"volumePath": _REQUIRED})),
    "photonPersistentDisk": ("photonPersistentDisk", fields({"pdID": _REQUIRED})),
    "portworxVolume": ("portworxVolume", fields({"volumeID": _REQUIRED})),
    "azureDisk": ("azureDisk", all_of(_AZURE_DISK_RULES, _azure_uri_errors)),
    "storageos": (
        "storageos",
        fields(
            {
                "volumeName": even_if_absent(first_of(non_empty(), valid_name(names.dns1123_label))),
                "volumeNamespace": valid_name(names.dns1123_label),
                "secretRef": _secret_ref_errors,
            }
        ),
    ),
    "projected": ("projected", _projected_errors),
    "scaleIO": ("scaleIO", fields({"gateway": _REQUIRED, "system": _REQUIRED, "volumeName": _REQUIRED})),
    "csi": ("csi", _csi_errors),
    "persistentVolumeClaim": ("persistentVolumeClaim", fields({"claimName": _REQUIRED})),
    "image": ("image", fields({"reference": _REQUIRED, "pullPolicy": one_of("Always", "IfNotPresent", "Never")})),
}


def _ephemeral_errors(found: Obj, path: str) -> list[ApiFieldError]:
    template, at = found.get("volumeClaimTemplate"), f"{path}.volumeClaimTemplate"
    if template is None:
        return [required(at)]
    meta = template.get("metadata") or {}
    errors: list[ApiFieldError] = []
    errors += validators.annotation_errors(meta.get("annotations") or {}, f"{at}.metadata.annotations")
    errors += validators.label_errors(meta.get("labels") or {}, f"{at}.metadata.labels")
    errors += [
        forbidden_field(f"{at}.metadata.{key}", "cannot be set")
        for key in ("name", "generateName", "namespace", "ownerReferences", "finalizers")
        if meta.get(key)
    ]
    return errors + pvc_spec_errors(template.get("spec", {}), f"{at}.spec")


def volume_source_errors(volume: Obj, path: str, pod_name: str) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    chosen = 0
    for key, (shown, rule) in VOLUME_SOURCES.items():
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
            errors += _ephemeral_errors(volume["ephemeral"], f"{path}.ephemeral")
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


def validate_volumes(found: list[Obj], path: str, pod_name: str) -> tuple[dict[str, Obj], list[ApiFieldError]]:
    """Return the valid volumes by name, and the errors of the others."""
    good: dict[str, Obj] = {}
    errors: list[ApiFieldError] = []
    for i, volume in enumerate(found):
        at = f"{path}[{i}]"
        own = volume_source_errors(volume, at, pod_name)
        name = volume.get("name", "")
        if not name:
            own.append(required(f"{at}.name"))
        else:
            own += [invalid_value(f"{at}.name", name, reason) for reason in dns_label_reasons(name)]
            if name in good:
                own.append(duplicate(f"{at}.name", name))
        if own:
            errors += own
        else:
            good[name] = volume
    return good, errors
