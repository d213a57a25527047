"""These functions fill in the defaults of volumes, by their source."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds.pod.image import pull_policy

Obj = dict[str, Any]
FILE_MODE = 0o644
TOKEN_SECONDS = 3600

# Fields of a source that have a plain default.
_PLAIN: dict[str, dict[str, Any]] = {
    "configMap": {"defaultMode": FILE_MODE},
    "secret": {"defaultMode": FILE_MODE},
    "downwardAPI": {"defaultMode": FILE_MODE},
    "projected": {"defaultMode": FILE_MODE},
    "hostPath": {"type": ""},
    "iscsi": {"iscsiInterface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    "azureDisk": {"cachingMode": "ReadWrite", "fsType": "ext4", "kind": "Shared", "readOnly": False},
    "scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"},
}


def default_volumes(volumes: list[Obj]) -> None:
    for volume in volumes:
        if not any(key != "name" for key in volume):
            volume["emptyDir"] = {}
            continue
        for key, source in volume.items():
            if key in _PLAIN:
                default_source(key, source)
            elif key == "ephemeral" and source.get("volumeClaimTemplate"):
                source["volumeClaimTemplate"].setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
            elif key == "image" and not source.get("pullPolicy"):
                source["pullPolicy"] = pull_policy(source.get("reference", ""))


def default_source(key: str, source: Obj) -> None:
    """Fill in the defaults of one volume source by its field name; persistent volumes share some of them."""
    for field, value in _PLAIN.get(key, {}).items():
        source.setdefault(field, value)
    if key == "downwardAPI":
        _default_refs(source.get("items") or ())
    elif key == "projected":
        for part in source.get("sources") or ():
            part.pop("clusterTrustBundle", None)  # behind a feature that is off by default
            part.pop("podCertificate", None)
            if "downwardAPI" in part:
                _default_refs(part["downwardAPI"].get("items") or ())
            if "serviceAccountToken" in part:
                part["serviceAccountToken"].setdefault("expirationSeconds", TOKEN_SECONDS)


def _default_refs(items: Any) -> None:
    for item in items:
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")
