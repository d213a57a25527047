"""This module decides which pods a pod may preempt within its quota, and whether the quota admits it without
them.
"""

from __future__ import annotations

from collections.abc import Collection

from koord.api.protocol import DEFAULT_QUOTA
from koord.policy.quota.preemption import may_preempt
from koord.scheduler.framework.verdict import Reject, reject
from koord.scheduler.plugins.elastic_quota.ledger import Ledger
from koord.scheduler.preemption.rules import Rules
from koord.scheduler.state.pod import PodInfo


class WithinQuota(Rules):
    name = "ElasticQuota"

    def __init__(self, ledger: Ledger, *, spare_default: bool) -> None:
        super().__init__()
        self._ledger = ledger
        self._spare_default = spare_default

    def may_take(self, pod: PodInfo, victim: PodInfo) -> bool:
        ledger = self._ledger
        claim, other = ledger.claim(pod), ledger.claim(victim)
        return may_preempt(ledger.book, claim, other, spare_default=self._spare_default)

    def spares(self, quota: str) -> bool:
        """Return whether nobody in that quota may be evicted, whoever preempts."""
        return self._spare_default and quota == DEFAULT_QUOTA

    def objection(self, pod: PodInfo, gone: Collection[PodInfo]) -> Reject | None:
        refusal = self._ledger.check_without(pod, gone)
        return None if refusal is None else reject(refusal.text)
