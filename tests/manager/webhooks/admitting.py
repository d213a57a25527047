"""Requests, pods and a small cluster for the tests of admission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.api.admission import AdmissionRequest, GroupVersionResource, UserInfo
from koord.api.colocation import ClusterColocationProfile
from koord.api.config.gate_tables import MANAGER
from koord.api.meta import LabelSelector
from koord.api.model import convert
from koord.api.scheduling import PriorityClass
from koord.api.sigs_scheduling import ElasticQuota
from koord.manager.webhooks.pod_validating.required_label import Rule
from koord.manager.webhooks.profile.compiled import Book
from koord.manager.webhooks.quota.info import QuotaInfo
from koord.manager.webhooks.quota.topology import Topology
from koord.manager.webhooks.world import View

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
    return QuotaInfo.of(convert({"metadata": meta}, ElasticQuota))


def view(
    *profiles: ClusterColocationProfile,
    draw: int = 0,
    quotas: tuple[QuotaInfo, ...] = (),
    pools: Mapping[str, LabelSelector] | None = None,
    rules: tuple[Rule, ...] = (),
    **gates: bool,
) -> View:
    return View(
        gates={name: gate.default for name, gate in MANAGER.items()} | gates,
        profiles=Book(profiles).profiles,
        namespace_labels=NAMESPACES.get,
        priority_class=CLASSES.get,
        draw=lambda: draw,
        quotas=Topology.of(quotas),
        pool_of_tree=(pools or {}).get,
        rules=rules,
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
