"""Report quotas of a running scheduler: reports for people, and summaries as Koordinator's service has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koord.api.koordinator.protocol import ROOT_QUOTA
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.plugins.elastic_quota.admission import QuotaPodUpdated, QuotaRefusal
from koord.scheduler.plugins.elastic_quota.cache import ElasticQuotaCache
from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuotaPlugin
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from koord.scheduler.plugins.elastic_quota.report import QuotaReport, quota_report, quota_reports
from koord.scheduler.plugins.elastic_quota.tree import QuotaNode
from koord.values.resources import to_resource_list


class QuotaTreeReport(msgspec.Struct, frozen=True):
    """Report all quotas, and the objects that cannot be read."""

    quotas: tuple[QuotaReport, ...]
    unreadable: Mapping[str, str] = {}  # by namespace/name: objects that count as absent, and why


class QuotaVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Report what a quota would say of a pod; `message` is empty when the pod may start."""

    pod: str
    quota: str = ""  # empty when it belongs to none
    found_by: str = ""
    message: str = ""
    refusal: QuotaRefusal | None = None
    statement: QuotaReport | None = None  # as it is before the pod


def quota_cache_of(profiles: Iterable[SchedulerProfile]) -> ElasticQuotaCache | None:
    for profile in profiles:
        for plugin in profile.plugins():
            if isinstance(plugin, ElasticQuotaPlugin):
                return plugin.quota_cache
    return None


def report_quota_tree(quota_cache: ElasticQuotaCache) -> QuotaTreeReport:
    unreadable = {f"{namespace}/{name}": why for (namespace, name), why in quota_cache.invalid_quotas.items()}
    return QuotaTreeReport(tuple(quota_reports(quota_cache.manager)), unreadable)


def report_quota_verdicts(quota_cache: ElasticQuotaCache, pods: Iterable[PodInfo]) -> list[QuotaVerdict]:
    """Check pods one after another: what passes counts for the next. The quota cache is changed by it."""
    found = []
    for pod in pods:
        manager, quota_pod = quota_cache.manager, quota_cache.quota_pod(pod)
        quota = manager.quota_of_pod(quota_pod) or ""
        refusal = quota_cache.check_admission(pod)
        found.append(
            QuotaVerdict(
                pod=pod.key,
                quota=quota or (refusal.quota if refusal is not None else ""),
                found_by=_found_by(manager, quota_pod.quota, pod.namespace, quota),
                message="" if refusal is None else refusal.message,
                refusal=refusal,
                statement=quota_report(manager, quota) if quota else None,
            )
        )
        manager.handle(QuotaPodUpdated(quota_pod))
        if refusal is None:
            manager.assume_pod(quota_pod.uid)
    return found


def _found_by(manager: GroupQuotaManager, label: str, namespace: str, quota: str) -> str:
    if label:
        return "its label"
    if not quota:
        return ""
    known = manager.quota_index.get(quota)
    if quota == namespace:
        return "the name of its namespace"
    listed = known is not None and namespace in known.namespaces
    return "the quota's list of namespaces" if listed else "having no other"


def quota_summary(quota_cache: ElasticQuotaCache, name: str, *, pods: bool) -> dict[str, Any] | None:
    """Return Koordinator's summary of a quota; None if it does not exist."""
    manager = quota_cache.manager
    quota_node = manager.trees.node(name)
    return None if quota_node is None else _summary(manager, quota_node, pods=pods)


def quota_summaries(quota_cache: ElasticQuotaCache, tree_id: str, *, pods: bool) -> dict[str, Any]:
    """Return Koordinator's summaries by name, without the root. An empty tree id is any."""
    manager = quota_cache.manager
    return {
        quota_node.name: _summary(manager, quota_node, pods=pods)
        for quota_node in manager.trees.all_nodes()
        if quota_node.name != ROOT_QUOTA and tree_id in ("", quota_node.definition.tree)
    }


def _summary(manager: GroupQuotaManager, quota_node: QuotaNode, *, pods: bool) -> dict[str, Any]:
    quota, report = quota_node.definition, quota_report(manager, quota_node.name)
    found: dict[str, Any] = {
        "name": quota_node.name,
        "parentName": quota.parent,
        "isParent": quota.is_parent,
        "runtimeVersion": manager.version,
        "allowLentResource": quota.lends,
        "tree": quota.tree,
        "max": to_resource_list(quota.max),
        "min": to_resource_list(quota.min),
        "autoScaleMin": to_resource_list(report.guaranteed_now if report is not None else {}),
        "used": to_resource_list(quota_node.used),
        "nonPreemptibleUsed": to_resource_list(quota_node.non_preemptible_used),
        "request": to_resource_list(quota_node.request),
        "nonPreemptibleRequest": to_resource_list(quota_node.non_preemptible_request),
        "sharedWeight": to_resource_list(quota.weight),
        "runtime": to_resource_list(manager.runtime(quota_node.name)),
        "childRequest": to_resource_list(quota_node.child_request),
        "allocated": to_resource_list(quota_node.allocated),
        "guaranteed": to_resource_list(quota_node.guaranteed),
    }
    if pods:
        found["podCache"] = {
            f"{quota_pod.namespace}/{quota_pod.name}": {
                "isAssigned": manager.is_assigned(quota_pod.uid),
                "resource": to_resource_list(quota_pod.requests),
            }
            for quota_pod in manager.pods.values()
            if manager.quota_of_pod(quota_pod) == quota_node.name
        }
    return found
