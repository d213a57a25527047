"""Report quotas of a running scheduler: reports for people, and summaries as Koordinator's service has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koord.api.koordinator.protocol import ROOT_QUOTA
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.plugins.elastic_quota.admission import QuotaRefusal
from koord.scheduler.plugins.elastic_quota.cache import ElasticQuotaCache
from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuotaPlugin
from koord.scheduler.plugins.elastic_quota.quota_events import QuotaPodUpdated
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from koord.scheduler.plugins.elastic_quota.report import QuotaReport, quota_report, quota_reports
from koord.scheduler.plugins.elastic_quota.tree import QuotaNode
from koord.values.amounts import to_resource_list


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


def report_quota_tree(ledger: ElasticQuotaCache) -> QuotaTreeReport:
    unreadable = {f"{namespace}/{name}": why for (namespace, name), why in ledger.invalid_quotas.items()}
    return QuotaTreeReport(tuple(quota_reports(ledger.manager)), unreadable)


def report_quota_verdicts(ledger: ElasticQuotaCache, pods: Iterable[PodInfo]) -> list[QuotaVerdict]:
    """Check pods one after another: what passes counts for the next. The quota cache is changed by it."""
    found = []
    for pod in pods:
        book, claim = ledger.manager, ledger.quota_pod(pod)
        quota = book.quota_of_pod(claim) or ""
        refusal = ledger.check_admission(pod)
        found.append(
            QuotaVerdict(
                pod=pod.key,
                quota=quota or (refusal.quota if refusal is not None else ""),
                found_by=_found_by(book, claim.quota, pod.namespace, quota),
                message="" if refusal is None else refusal.message,
                refusal=refusal,
                statement=quota_report(book, quota) if quota else None,
            )
        )
        book.handle(QuotaPodUpdated(claim))
        if refusal is None:
            book.assume_pod(claim.uid)
    return found


def _found_by(book: GroupQuotaManager, label: str, namespace: str, quota: str) -> str:
    if label:
        return "its label"
    if not quota:
        return ""
    known = book.quota_index.get(quota)
    if quota == namespace:
        return "the name of its namespace"
    listed = known is not None and namespace in known.namespaces
    return "the quota's list of namespaces" if listed else "having no other"


def quota_summary(ledger: ElasticQuotaCache, name: str, *, pods: bool) -> dict[str, Any] | None:
    """Return Koordinator's summary of a quota; None if it does not exist."""
    book = ledger.manager
    account = book.trees.node(name)
    return None if account is None else _summary(ledger, book, account, pods=pods)


def quota_summaries(ledger: ElasticQuotaCache, tree_id: str, *, pods: bool) -> dict[str, Any]:
    """Return Koordinator's summaries by name, without the root. An empty tree id is any."""
    book = ledger.manager
    return {
        account.name: _summary(ledger, book, account, pods=pods)
        for account in book.trees.all_nodes()
        if account.name != ROOT_QUOTA and tree_id in ("", account.definition.tree)
    }


def _summary(ledger: ElasticQuotaCache, book: GroupQuotaManager, account: QuotaNode, *, pods: bool) -> dict[str, Any]:
    quota, told = account.definition, quota_report(book, account.name)
    found: dict[str, Any] = {
        "name": account.name,
        "parentName": quota.parent,
        "isParent": quota.is_parent,
        "runtimeVersion": book.version,
        "allowLentResource": quota.lends,
        "tree": quota.tree,
        "max": to_resource_list(quota.max),
        "min": to_resource_list(quota.min),
        "autoScaleMin": to_resource_list(told.guaranteed_now if told is not None else {}),
        "used": to_resource_list(account.used),
        "nonPreemptibleUsed": to_resource_list(account.non_preemptible_used),
        "request": to_resource_list(account.request),
        "nonPreemptibleRequest": to_resource_list(account.non_preemptible_request),
        "sharedWeight": to_resource_list(quota.weight),
        "runtime": to_resource_list(book.runtime(account.name)),
        "childRequest": to_resource_list(account.child_request),
        "allocated": to_resource_list(account.allocated),
        "guaranteed": to_resource_list(account.guaranteed),
    }
    if pods:
        found["podCache"] = {
            f"{claim.namespace}/{claim.name}": {
                "isAssigned": book.is_assigned(claim.uid),
                "resource": to_resource_list(claim.requests),
            }
            for claim in book.pods.values()
            if book.quota_of_pod(claim) == account.name
        }
    return found
