"""Select pods that must leave for quotas: those of over-used quotas (revocation), and preemption within one quota."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.protocol import SYSTEM_QUOTA
from koord.policy.quota.amount import Amounts, Counts, exceeding, minus, plus
from koord.policy.quota.book import Book
from koord.policy.quota.claimant import Claimant
from koord.policy.quota.statement import over


class Watch(msgspec.Struct, frozen=True):
    """Since when each quota has been over-used, and those that have been so for too long."""

    since: Mapping[str, float]
    due: tuple[str, ...] = ()


def overused(book: Book) -> dict[str, Amounts]:
    """Return by how much each quota uses more than its runtime. The system group is never included."""
    found: dict[str, Amounts] = {}
    forest = book.forest
    for tree in forest.trees.values():
        for name, entitled in tree.all_entitlements().items():
            excess = over(tree.accounts[name].used, entitled)
            if excess:
                found[name] = excess
    for name, account in forest.apart.items():
        excess = over(account.used, account.quota.max)
        if excess and name != SYSTEM_QUOTA:
            found[name] = excess
    return found


def watch(before: Watch, over_now: Iterable[str], now: float, patience_s: float) -> Watch:
    """Update the state. A quota that was within its runtime once, however briefly, starts anew; so does one just
    revoked.
    """
    since: dict[str, float] = {}
    due: list[str] = []
    for name in sorted(over_now):
        start = before.since.get(name, now)
        if now - start > patience_s:
            due.append(name)
            start = now
        since[name] = start
    return Watch(since, tuple(due))


def to_leave(pods: Iterable[Claimant], used: Counts, entitled: Counts) -> list[Claimant]:
    """Select the assigned pods to revoke so that the quota is within its runtime; the most important stay.

    The least important are counted out until the rest fits; then, from the most important of them down, each
    that fits after all stays. When the rest never fits, all that can leave do. Upstream forgets resources
    that the last pod counted out does not request; every resource counts here to the end.
    """
    left: Amounts = dict(used)
    out: list[Claimant] = []
    for pod in sorted(pods, key=lambda pod: (pod.priority, -pod.since, pod.uid)):
        if not exceeding(left, entitled):
            break
        if pod.preemptible:
            out.append(pod)
            left = minus(left, pod.requests)
    if exceeding(left, entitled):
        return out
    leaving: list[Claimant] = []
    for pod in reversed(out):
        back = plus(left, pod.requests)
        if exceeding(back, entitled):
            leaving.append(pod)
        else:
            left = back
    return leaving
