"""Decide which pods a pod of the same quota may preempt. Finding a node for it is left to others."""

from __future__ import annotations

from koord.api.protocol import DEFAULT_QUOTA
from koord.policy.quota.book import Book
from koord.policy.quota.claimant import Claimant


def may_preempt(book: Book, preemptor: Claimant, victim: Claimant, *, spare_default: bool = True) -> bool:
    """Return whether the pod may preempt the victim: only members of one existing quota preempt each other.

    `spare_default` is the argument disableDefaultQuotaPreemption.
    """
    if not victim.preemptible or victim.priority >= preemptor.priority:
        return False
    quota = book.quota_of(victim)
    if quota is None or quota != book.quota_of(preemptor):
        return False
    return not (spare_default and quota == DEFAULT_QUOTA)
