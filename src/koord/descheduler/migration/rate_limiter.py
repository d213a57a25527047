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

IDLE_PERIODS_KEPT = 1.5  # times the period: an idle bucket is full by then


class EvictionTokenBucket:
    __slots__ = ("_burst", "_per_s", "_seen_s", "_tokens")

    def __init__(self, per_s: float, burst: int, now_s: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = float(burst)
        self._seen_s = now_s

    def tokens(self, now_s: float) -> float:
        self._seen_s = min(self._seen_s, now_s)  # a clock that was set back counts from where it is now
        return min(self._tokens + (now_s - self._seen_s) * self._per_s, self._burst)

    def take(self, now_s: float) -> None:
        self._tokens, self._seen_s = self.tokens(now_s) - 1, now_s

    def idle_s(self, now_s: float) -> float:
        return now_s - self._seen_s


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
        self._buckets: dict[tuple[str, str], EvictionTokenBucket] = {}

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
                bucket = self._buckets[kind, key] = EvictionTokenBucket(
                    max_migrating / period_s, limiter.burst or 1, now_s
                )
            bucket.take(now_s)

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
