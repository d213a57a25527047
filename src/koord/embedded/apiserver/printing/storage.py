"""This module prints volumes, claims, storage classes and CSI drivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koord.embedded.apiserver.printing.table_columns import (
    UNSET,
    KindTable,
    Obj,
    age_cell,
    is_terminating,
    joined,
    kind_table,
    name,
    spec,
    status,
)

_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
_DEFAULT_CLASS_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)


def _access_modes(stated: Sequence[str] | None) -> str:
    return joined(short for mode, short in _MODES.items() if mode in (stated or ()))


def _storage_class_name(obj: Obj) -> str:
    old = (obj["metadata"].get("annotations") or {}).get("volume.beta.kubernetes.io/storage-class")
    return old or spec(obj).get("storageClassName") or ""


def _volume(obj: Obj, now: float) -> Sequence[Any]:
    stated = spec(obj)
    claim = stated.get("claimRef")
    return (
        name(obj),
        (stated.get("capacity") or {}).get("storage", "0"),
        _access_modes(stated.get("accessModes")),
        stated.get("persistentVolumeReclaimPolicy", ""),
        "Terminating" if is_terminating(obj) else status(obj).get("phase", ""),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        _storage_class_name(obj),
        stated.get("volumeAttributesClassName") or UNSET,
        status(obj).get("reason", ""),
        age_cell(obj, now),
        stated.get("volumeMode") or UNSET,
    )


def _claim(obj: Obj, now: float) -> Sequence[Any]:
    stated, seen = spec(obj), status(obj)
    bound = bool(stated.get("volumeName"))
    return (
        name(obj),
        "Terminating" if is_terminating(obj) else seen.get("phase", ""),
        stated.get("volumeName", ""),
        (seen.get("capacity") or {}).get("storage", "0") if bound else "",
        _access_modes(seen.get("accessModes")) if bound else "",
        _storage_class_name(obj),
        stated.get("volumeAttributesClassName") or UNSET,
        age_cell(obj, now),
        stated.get("volumeMode") or UNSET,
    )


def _storage_class(obj: Obj, now: float) -> Sequence[Any]:
    notes = obj["metadata"].get("annotations") or {}
    mark = " (default)" if any(notes.get(key) == "true" for key in _DEFAULT_CLASS_ANNOTATIONS) else ""
    return (
        name(obj) + mark,
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", UNSET),
        bool(obj.get("allowVolumeExpansion")),
        age_cell(obj, now),
    )


def _csi_node(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), len(spec(obj).get("drivers") or ()), age_cell(obj, now)


def _csi_driver(obj: Obj, now: float) -> Sequence[Any]:
    stated = spec(obj)
    return (
        name(obj),
        stated.get("attachRequired", True),
        stated.get("podInfoOnMount", False),
        stated.get("storageCapacity", False),
        joined((t["audience"] for t in stated.get("tokenRequests") or ()), UNSET),
        stated.get("requiresRepublish", False),
        joined(stated.get("volumeLifecycleModes") or (), UNSET),
        age_cell(obj, now),
    )


def _attachment(obj: Obj, now: float) -> Sequence[Any]:
    stated = spec(obj)
    volume = (stated.get("source") or {}).get("persistentVolumeName") or ""
    return (
        name(obj),
        stated["attacher"],
        volume,
        stated["nodeName"],
        bool(status(obj).get("attached")),
        age_cell(obj, now),
    )


def _attributes_class(obj: Obj, now: float) -> Sequence[Any]:
    return name(obj), obj.get("driverName", ""), age_cell(obj, now)


STORAGE_TABLES: dict[str, KindTable] = {
    "persistentvolumes": kind_table(
        _volume,
        "Name",
        "Capacity",
        "Access Modes",
        "Reclaim Policy",
        "Status",
        "Claim",
        "StorageClass",
        "VolumeAttributesClass",
        "Reason",
        "Age",
        "VolumeMode!",
    ),
    "persistentvolumeclaims": kind_table(
        _claim,
        "Name",
        "Status",
        "Volume",
        "Capacity",
        "Access Modes",
        "StorageClass",
        "VolumeAttributesClass",
        "Age",
        "VolumeMode!",
    ),
    "storageclasses.storage.k8s.io": kind_table(
        _storage_class, "Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age"
    ),
    "csinodes.storage.k8s.io": kind_table(_csi_node, "Name", "Drivers:integer", "Age"),
    "csidrivers.storage.k8s.io": kind_table(
        _csi_driver,
        "Name",
        "AttachRequired:boolean",
        "PodInfoOnMount:boolean",
        "StorageCapacity:boolean",
        "TokenRequests",
        "RequiresRepublish:boolean",
        "Modes",
        "Age",
    ),
    "volumeattachments.storage.k8s.io": kind_table(
        _attachment, "Name", "Attacher:name", "PV", "Node", "Attached:boolean", "Age"
    ),
    "volumeattributesclasses.storage.k8s.io": kind_table(_attributes_class, "Name", "DriverName", "Age"),
}
