"""Rate limits on evictions per workload and per namespace: one token bucket each, refilled by time."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.config.descheduler.migration_args import (
    LIMITER_NAMESPACE,
    LIMITER_WORKLOAD,
    MigrationControllerArgs,
    ObjectLimiter,
)
from koord.api.kubernetes.pod import Pod
from koord.api.model import IntOrString
from koord.descheduler.framework.snapshot import Workload
from koord.descheduler.migration.protection import controller_uid, max_disrupted_replicas
from koord.values import duration
from koord.values.token_bucket import TokenBucket

IDLE_PERIODS_KEPT = 1.5  # times the period: an idle bucket is full by then


class EvictionRateLimiter:
    """Limits the rate of evictions per workload and namespace. Time arrives with each call.

    A bucket exists from the first eviction on; without a bucket nothing is limited.
    """

    def __init__(self, args: MigrationControllerArgs) -> None:
        self._per_workload = args.max_migrating_per_workload
        self._limits: Mapping[str, tuple[ObjectLimiter, float]] = {
            kind: (limiter, period)
            for kind, limiter in args.object_limiters.items()
            if (period := duration.parse_seconds(limiter.duration or "0s")) > 0
        }
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def rejection_reason(self, pod: Pod, now_s: float) -> str | None:
        for kind, key in _bucket_keys(pod):
            bucket = self._buckets.get((kind, key))
            if bucket is not None and kind in self._limits and bucket.tokens(now_s) < 1:
                return f"another pod of its {kind} was evicted a moment ago"
        return None

    def record_eviction(self, pod: Pod, workload: Workload | None, now_s: float) -> None:
        self._drop_idle_buckets(now_s)
        for kind, key in _bucket_keys(pod):
            if kind not in self._limits:
                continue
            limiter, period_s = self._limits[kind]
            max_migrating = self._max_migrating(kind, limiter.max_migrating, workload)
            if max_migrating <= 0:
                continue
            bucket = self._buckets.get((kind, key))
            if bucket is None:
                bucket = self._buckets[kind, key] = TokenBucket(max_migrating / period_s, limiter.burst or 1, now_s)
            bucket.reserve(now_s)

    def _max_migrating(self, kind: str, given: IntOrString | None, workload: Workload | None) -> int:
        if kind == LIMITER_NAMESPACE:
            return given if isinstance(given, int) else 0  # a share of nothing in particular
        return (
            max_disrupted_replicas(workload.replicas, given if given is not None else self._per_workload)
            if workload
            else 0
        )

    def _drop_idle_buckets(self, now_s: float) -> None:
        gone = [
            key
            for key, bucket in self._buckets.items()
            if key[0] not in self._limits or bucket.idle_s(now_s) > IDLE_PERIODS_KEPT * self._limits[key[0]][1]
        ]
        for key in gone:
            del self._buckets[key]


def _bucket_keys(pod: Pod) -> list[tuple[str, str]]:
    owner = controller_uid(pod)
    return [*([(LIMITER_WORKLOAD, owner)] if owner else []), (LIMITER_NAMESPACE, pod.metadata.namespace)]
