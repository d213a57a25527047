"""Rate limits on evictions per workload and per namespace: one token bucket each, refilled by time."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.config.descheduler.migration import NAMESPACE, WORKLOAD, MigrationControllerArgs, ObjectLimiter
from koord.api.part import IntOrString
from koord.descheduler.migration.protection import controller_uid
from koord.descheduler.migration.scaling import at_most
from koord.descheduler.snapshot import Workload
from koord.descheduler.wire import Pod
from koord.values import duration

KEEP = 1.5  # times the period: an idle bucket is full by then


class Bucket:
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


class Limiter:
    """Limits the rate of evictions per workload and namespace. Time arrives with each call.

    A bucket exists from the first eviction on; without a bucket nothing is limited.
    """

    def __init__(self, args: MigrationControllerArgs) -> None:
        self._per_workload = args.max_migrating_per_workload
        self._given: Mapping[str, tuple[ObjectLimiter, float]] = {
            kind: (limiter, period)
            for kind, limiter in args.object_limiters.items()
            if (period := duration.parse_seconds(limiter.duration or "0s")) > 0
        }
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def refuses(self, pod: Pod, now_s: float) -> str | None:
        for kind, key in _keys(pod):
            bucket = self._buckets.get((kind, key))
            if bucket is not None and kind in self._given and bucket.tokens(now_s) < 1:
                return f"another pod of its {kind} was evicted a moment ago"
        return None

    def evicted(self, pod: Pod, workload: Workload | None, now_s: float) -> None:
        self._forget(now_s)
        for kind, key in _keys(pod):
            if kind not in self._given:
                continue
            limiter, period_s = self._given[kind]
            most = self._most(kind, limiter.max_migrating, workload)
            if most <= 0:
                continue
            bucket = self._buckets.get((kind, key))
            if bucket is None:
                bucket = self._buckets[kind, key] = Bucket(most / period_s, limiter.burst or 1, now_s)
            bucket.take(now_s)

    def _most(self, kind: str, given: IntOrString | None, workload: Workload | None) -> int:
        if kind == NAMESPACE:
            return given if isinstance(given, int) else 0  # a share of nothing in particular
        return at_most(workload.replicas, given if given is not None else self._per_workload) if workload else 0

    def _forget(self, now_s: float) -> None:
        gone = [
            key
            for key, bucket in self._buckets.items()
            if key[0] not in self._given or bucket.idle_s(now_s) > KEEP * self._given[key[0]][1]
        ]
        for key in gone:
            del self._buckets[key]


def _keys(pod: Pod) -> list[tuple[str, str]]:
    owner = controller_uid(pod)
    return [*([(WORKLOAD, owner)] if owner else []), (NAMESPACE, pod.metadata.namespace)]
