"""Requests, pods and a small cluster for the tests of admission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.api.koordinator.profiles import ClusterColocationProfile
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.admission import AdmissionRequest, GroupVersionResource, UserInfo
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod_policy import PriorityClass
from koord.api.model import convert
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.webhooks.colocation_profile import ProfileCache
from koord.manager.webhooks.pod_mutating import AdmissionContext
from koord.manager.webhooks.quota.topology import QuotaInfo, QuotaTopology

Obj = dict[str, Any]

_CLASSES = {"koord-prod": 9000, "koord-mid": 7000, "koord-batch": 5000, "koord-free": 3000}
CLASSES = {
    name: convert(
        {"metadata": {"name": name}, "value": value, "preemptionPolicy": "PreemptLowerPriority"}, PriorityClass
    )
    for name, value in _CLASSES.items()
}
CLASSES["never"] = convert({"metadata": {"name": "never"}, "value": 5400, "preemptionPolicy": "Never"}, PriorityClass)
CLASSES["silent"] = convert({"metadata": {"name": "silent"}, "value": 5300}, PriorityClass)

NAMESPACES = {"shop": {"team": "web"}, "night": {"team": "batch"}}


def profile(name: str = "a", notes: Mapping[str, str] | None = None, **spec: Any) -> ClusterColocationProfile:
    meta = {"name": name, "annotations": dict(notes or {})}
    return convert({"metadata": meta, "spec": spec}, ClusterColocationProfile)


def quota(name: str, namespaces: str = "", **labels: str) -> QuotaInfo:
    prefix = "quota.scheduling.koordinator.sh/"
    marks = {prefix + key.replace("_", "-"): value for key, value in labels.items()}
    notes = {prefix + "namespaces": namespaces} if namespaces else {}
    meta = {"name": name, "namespace": "quotas", "labels": marks, "annotations": notes}
    return QuotaInfo.from_quota(convert({"metadata": meta}, ElasticQuota))


def admission_context(
    *profiles: ClusterColocationProfile,
    draw: int = 0,
    quotas: tuple[QuotaInfo, ...] = (),
    pools: Mapping[str, LabelSelector] | None = None,
    **gates: bool,
) -> AdmissionContext:
    return AdmissionContext(
        gates={name: gate.default for name, gate in MANAGER_GATES.items()} | gates,
        profiles=ProfileCache(profiles).profiles,
        namespace_labels=NAMESPACES.get,
        priority_class=CLASSES.get,
        draw=lambda: draw,
        quotas=QuotaTopology.build(quotas),
        node_selector_of_tree=(pools or {}).get,
    )


def pod(*containers: Obj, labels: Obj | None = None, annotations: Obj | None = None, **spec: Any) -> Obj:
    meta: Obj = {"name": "pod", "namespace": "shop"}
    if labels:
        meta["labels"] = labels
    if annotations:
        meta["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": list(containers), **spec}}


def container(
    name: str = "main", requests: Mapping[str, str] | None = None, limits: Mapping[str, str] | None = None, **more: Any
) -> Obj:
    resources = {key: dict(value) for key, value in (("requests", requests), ("limits", limits)) if value}
    return {"name": name, "image": "i", **({"resources": resources} if resources else {}), **more}


def request(
    obj: Obj | None,
    old: Obj | None = None,
    *,
    resource: str = "pods",
    sub: str = "",
    operation: str = "",
    user: str = "",
) -> AdmissionRequest:
    meta = (obj or old or {}).get("metadata") or {}
    return AdmissionRequest(
        uid="u",
        resource=GroupVersionResource(group="", version="v1", resource=resource),
        sub_resource=sub,
        operation=operation or ("CREATE" if old is None else "UPDATE"),
        namespace=meta.get("namespace", "shop"),
        name=meta.get("name", ""),
        object=obj,
        old_object=old,
        user_info=UserInfo(username=user),
    )
