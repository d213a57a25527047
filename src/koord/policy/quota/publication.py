"""The published status of an ElasticQuota, and whether it has to be written again."""

from __future__ import annotations

from typing import Any

from koord.api.annotations import quota_resources
from koord.api.annotations.codec import Malformed
from koord.api.pod_resources import amounts
from koord.api.protocol import (
    A_QUOTA_ALLOCATED,
    A_QUOTA_CHILD_REQUEST,
    A_QUOTA_GUARANTEED,
    A_QUOTA_NON_PREEMPTIBLE_REQUEST,
    A_QUOTA_NON_PREEMPTIBLE_USED,
    A_QUOTA_REQUEST,
    A_QUOTA_RUNTIME,
    ROOT_QUOTA,
)
from koord.api.sigs_scheduling import ElasticQuota
from koord.policy.quota.account import Account
from koord.policy.quota.amount import Amounts, Counts, nonzero, wire
from koord.policy.quota.book import Book


def figures(book: Book, quota: str) -> tuple[dict[str, Amounts], Amounts] | None:
    """Return the amounts by annotation, and what is used; None for a quota that does not exist."""
    forest = book.forest
    root = forest.trees[""].root
    account: Account | None = root if quota == ROOT_QUOTA else forest.account(quota)
    if account is None:
        return None
    if account is root:
        runtime: Counts = forest.trees[""].total
    else:
        runtime = {} if quota in forest.apart else book.runtime(quota)  # built-in groups have a max and no runtime
    annotations = {
        A_QUOTA_RUNTIME: dict(runtime),
        A_QUOTA_REQUEST: dict(account.request),
        A_QUOTA_CHILD_REQUEST: dict(account.asked),
        A_QUOTA_ALLOCATED: dict(account.allocated),
        A_QUOTA_GUARANTEED: dict(account.guaranteed),
        A_QUOTA_NON_PREEMPTIBLE_REQUEST: dict(account.np_request),
        A_QUOTA_NON_PREEMPTIBLE_USED: dict(account.np_used),
    }
    return annotations, dict(account.used)


def decide_patch(live: ElasticQuota, book: Book) -> dict[str, Any] | Malformed | None:
    """Return the merge patch that brings an object up to date; None when it is.

    A zero equals an absent value, so an idle quota is never written. Figures that cannot be parsed belong to
    another writer: the object is left alone.
    """
    found = figures(book, live.metadata.name)
    if found is None:
        return None
    annotations, used = found
    patch: dict[str, Any] = {}
    for key, now in annotations.items():
        shown = quota_resources.parse(live.metadata.annotations, key)
        if isinstance(shown, Malformed):
            return shown
        before = amounts(shown or {})
        if nonzero(before) != nonzero(now):
            patch.setdefault("metadata", {}).setdefault("annotations", {})[key] = quota_resources.dump(
                wire(dict.fromkeys(before, 0) | now)
            )
    before = amounts(live.status.used)
    if nonzero(before) != nonzero(used):
        patch["status"] = {"used": wire(dict.fromkeys(before, 0) | used)}
    return patch or None
