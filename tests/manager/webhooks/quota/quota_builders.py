"""Short ways to write the quotas and requests of these tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from koord.api.koordinator.protocol import (
    A_QUOTA_NAMESPACES,
    L_QUOTA_ALLOW_FORCE_UPDATE,
    L_QUOTA_IS_PARENT,
    L_QUOTA_IS_ROOT,
    L_QUOTA_PARENT,
    L_QUOTA_TREE_ID,
)
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.model import convert
from koord.manager.webhooks.quota.admission import QuotaRuling, validate_quota
from koord.manager.webhooks.quota.topology import QuotaCheckGates, QuotaInfo, QuotaObserved, QuotaTopology

Obj = dict[str, Any]

SMALL = {"cpu": 1, "memory": "1Gi"}
LARGE = {"cpu": 10, "memory": "10Gi"}


class NoPods:
    def pods_with_label(self, quota: str) -> Sequence[str]:
        return ()

    def has_pods_in(self, namespace: str) -> bool:
        return False


class Pods(NoPods):
    def __init__(self, labelled: Mapping[str, Sequence[str]] = {}, namespaces: Sequence[str] = ()) -> None:
        self._labelled, self._namespaces = labelled, namespaces

    def pods_with_label(self, quota: str) -> Sequence[str]:
        return self._labelled.get(quota, ())

    def has_pods_in(self, namespace: str) -> bool:
        return namespace in self._namespaces


def quota(
    name: str,
    *,
    min: Mapping[str, Any] | None = SMALL,
    max: Mapping[str, Any] | None = LARGE,
    parent: str = "",
    is_parent: bool | None = None,
    tree: str = "",
    is_root: bool = False,
    force: bool = False,
    namespaces: Sequence[str] = (),
    annotations: Mapping[str, str] = {},
    used: Mapping[str, Any] | None = None,
    namespace: str = "team",
) -> Obj:
    labels: dict[str, str] = {}
    if parent:
        labels[L_QUOTA_PARENT] = parent
    if is_parent is not None:
        labels[L_QUOTA_IS_PARENT] = "true" if is_parent else "false"
    if tree:
        labels[L_QUOTA_TREE_ID] = tree
    if is_root:
        labels[L_QUOTA_IS_ROOT] = "true"
    if force:
        labels[L_QUOTA_ALLOW_FORCE_UPDATE] = "true"
    notes = dict(annotations)
    if namespaces:
        notes[A_QUOTA_NAMESPACES] = json.dumps(list(namespaces))
    spec = {key: dict(value) for key, value in (("min", min), ("max", max)) if value is not None}
    meta: Obj = {"name": name, "namespace": namespace, "labels": labels, "annotations": notes}
    return {"metadata": meta, "spec": spec, **({"status": {"used": dict(used)}} if used else {})}


def quota_info(obj: Obj) -> QuotaInfo:
    return QuotaInfo.from_quota(convert(obj, ElasticQuota))


def topology_of(*objects: Obj) -> QuotaTopology:
    topology = QuotaTopology()
    for obj in objects:
        topology.handle(QuotaObserved(quota_info(obj)))
    return topology


def request(operation: str, obj: Obj | None = None, old: Obj | None = None, **more: Any) -> AdmissionRequest:
    name = ((obj or old or {}).get("metadata") or {}).get("name", "")
    return AdmissionRequest(operation=operation, object=obj, old_object=old, name=name, namespace="team", **more)


def ruling(asked: AdmissionRequest, tree: QuotaTopology, pods: NoPods | None = None, **gates: bool) -> QuotaRuling:
    return validate_quota(asked, tree, pods or NoPods(), QuotaCheckGates(**gates), 0.0)
