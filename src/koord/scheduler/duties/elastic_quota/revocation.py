"""Evict the least important pods of quotas that used more than their runtime for too long."""

from __future__ import annotations

from typing import ClassVar

from koord.policy.quota.amount import minus, text
from koord.policy.quota.overuse import Watch, overused, to_leave, watch
from koord.scheduler.duties.duty import Post
from koord.scheduler.plugins.elastic_quota import ElasticQuota
from koord.values import duration

RULE = "QuotaOverused"


class Revocation:
    """Evict the least important pods of quotas that used more than their runtime for too long."""
    name: ClassVar[str] = "the revocation of overused quotas"

    def __init__(self, post: Post, plugin: ElasticQuota) -> None:
        args = plugin.args
        self._clock = post.clock
        self._evictor = post.evictor
        self._ledger = plugin.ledger
        self._actor = plugin.name
        self._enabled = args.monitor_all_quotas is True and plugin.ledger.rules.runtime
        self._patience_s = duration.parse_seconds(args.delay_evict_time or "120s")
        self._interval_s = duration.parse_seconds(args.revoke_pod_interval or "1s")
        self._watch = Watch({})

    async def run(self) -> None:
        """Check all quotas periodically; a new leader starts timing anew, because it did not see what was before."""
        self._watch = Watch({})
        while self._enabled:
            await self.round()
            await self._clock.sleep(self._interval_s)

    async def round(self) -> None:
        over = overused(self._ledger.book)
        self._watch = watch(self._watch, over, self._clock.monotonic(), self._patience_s)
        for quota in self._watch.due:
            await self._relieve(quota)

    async def _relieve(self, quota: str) -> None:
        book = self._ledger.book
        account = book.forest.account(quota)
        if account is None:
            return
        entitled = book.runtime(quota)
        used = dict(account.used)
        staying = {}
        for pod in self._ledger.members(quota):
            claim = self._ledger.claim(pod)
            if pod.deleting:  # it gives back what it has without being asked again
                used = minus(used, {name: n for name, n in claim.requests.items() if name in used})
            elif self._evictor.serves(pod.scheduler):
                staying[pod.uid] = (pod, claim)
        for claim in to_leave((claim for _, claim in staying.values()), used, entitled):
            pod = staying[claim.uid][0]
            await self._evictor.revoke(
                pod,
                actor=self._actor,
                rule=RULE,
                measured=f"quota {quota} uses {text(used)}",
                threshold=f"it has been entitled to no more than {text(entitled)} for {self._patience_s:g}s or longer",
                why=f"among its pods this one of priority {pod.priority} is the least important that helps",
            )
