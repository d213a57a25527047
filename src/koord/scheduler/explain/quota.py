"""Report quotas of a running scheduler: reports for people, and summaries as Koordinator's service has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koord.api.protocol import ROOT_QUOTA
from koord.policy.quota.account import Account
from koord.policy.quota.amount import wire
from koord.policy.quota.book import Book
from koord.policy.quota.event import Requested
from koord.policy.quota.refusal import Refusal
from koord.policy.quota.statement import Statement, statement, statements
from koord.scheduler.framework.profile import Profile
from koord.scheduler.plugins.elastic_quota import ElasticQuota
from koord.scheduler.plugins.elastic_quota.ledger import Ledger
from koord.scheduler.state.pod import PodInfo


class Tree(msgspec.Struct, frozen=True):
    """Report all quotas, and the objects that cannot be read."""
    quotas: tuple[Statement, ...]
    unreadable: Mapping[str, str] = {}  # by namespace/name: objects that count as absent, and why


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Report what a quota would say of a pod; `message` is empty when the pod may start."""

    pod: str
    quota: str = ""  # empty when it belongs to none
    found_by: str = ""
    message: str = ""
    refusal: Refusal | None = None
    statement: Statement | None = None  # as it is before the pod


def ledger_of(profiles: Iterable[Profile]) -> Ledger | None:
    for profile in profiles:
        for plugin in profile.plugins():
            if isinstance(plugin, ElasticQuota):
                return plugin.ledger
    return None


def tree(ledger: Ledger) -> Tree:
    unreadable = {f"{namespace}/{name}": why for (namespace, name), why in ledger.unreadable.items()}
    return Tree(tuple(statements(ledger.book)), unreadable)


def what_if(ledger: Ledger, pods: Iterable[PodInfo]) -> list[Verdict]:
    """Check pods one after another: what passes counts for the next. The quota cache is changed by it."""
    found = []
    for pod in pods:
        book, claim = ledger.book, ledger.claim(pod)
        quota = book.quota_of(claim) or ""
        refusal = ledger.check(pod)
        found.append(
            Verdict(
                pod=pod.key,
                quota=quota or (refusal.quota if refusal is not None else ""),
                found_by=_found_by(book, claim.quota, pod.namespace, quota),
                message="" if refusal is None else refusal.text,
                refusal=refusal,
                statement=statement(book, quota) if quota else None,
            )
        )
        book.handle(Requested(claim))
        if refusal is None:
            book.assign(claim.uid)
    return found


def _found_by(book: Book, label: str, namespace: str, quota: str) -> str:
    if label:
        return "its label"
    if not quota:
        return ""
    known = book.quotas.get(quota)
    if quota == namespace:
        return "the name of its namespace"
    listed = known is not None and namespace in known.namespaces
    return "the quota's list of namespaces" if listed else "having no other"


def summary(ledger: Ledger, name: str, *, pods: bool) -> dict[str, Any] | None:
    """Return Koordinator's summary of a quota; None if it does not exist."""
    book = ledger.book
    account = book.forest.account(name)
    return None if account is None else _summary(ledger, book, account, pods=pods)


def summaries(ledger: Ledger, tree_id: str, *, pods: bool) -> dict[str, Any]:
    """Return Koordinator's summaries by name, without the root. An empty tree id is any."""
    book = ledger.book
    return {
        account.name: _summary(ledger, book, account, pods=pods)
        for account in book.forest.accounts()
        if account.name != ROOT_QUOTA and tree_id in ("", account.quota.tree)
    }


def _summary(ledger: Ledger, book: Book, account: Account, *, pods: bool) -> dict[str, Any]:
    quota, told = account.quota, statement(book, account.name)
    found: dict[str, Any] = {
        "name": account.name,
        "parentName": quota.parent,
        "isParent": quota.is_parent,
        "runtimeVersion": book.version,
        "allowLentResource": quota.lends,
        "tree": quota.tree,
        "max": wire(quota.max),
        "min": wire(quota.min),
        "autoScaleMin": wire(told.guaranteed_now if told is not None else {}),
        "used": wire(account.used),
        "nonPreemptibleUsed": wire(account.np_used),
        "request": wire(account.request),
        "nonPreemptibleRequest": wire(account.np_request),
        "sharedWeight": wire(quota.weight),
        "runtime": wire(book.runtime(account.name)),
        "childRequest": wire(account.asked),
        "allocated": wire(account.allocated),
        "guaranteed": wire(account.guaranteed),
    }
    if pods:
        found["podCache"] = {
            f"{claim.namespace}/{claim.name}": {
                "isAssigned": book.is_assigned(claim.uid),
                "resource": wire(claim.requests),
            }
            for claim in book.pods.values()
            if book.quota_of(claim) == account.name
        }
    return found
