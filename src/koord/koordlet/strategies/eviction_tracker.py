"""Define the request to evict a pod, and track evictions from request to departure: which are pending, which pods are
leaving, which must be left alone.

A request and its answer are two moments, as evictions go over the network. Until a pod is gone, what it will free is
credited; a pod whose eviction was refused is left alone for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.koordlet.inputs.pod_meta import PodMeta
from koord.policy.eviction import EvictionRecord

REQUEST_TIMEOUT_S = 60.0  # then the request is lost, and may be made again
LEAVING_TIMEOUT_S = 120.0  # a victim that is not terminating after so long is not leaving
# A pod whose containers were stopped is never terminating: it ends, or its containers start again. Until the kubelet
# was asked again (every 10 s) it is still listed as running.
STOPPED_TIMEOUT_S = 30.0
BARRED_FOR_S = 30.0


class EvictionRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Evict one pod, or one container of another orchestrator; `record` explains the choice."""

    reason: str
    message: str
    record: EvictionRecord

    @property
    def namespace(self) -> str:
        return self.record.namespace

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def uid(self) -> str:
        return self.record.uid

    @property
    def third_party(self) -> str:
        """Return the orchestrator of a container that is in no pod of Kubernetes; "" for pods."""
        return self.record.third_party


class _PendingEviction(msgspec.Struct):
    strategy: str
    at_s: float


class _LeavingPod(msgspec.Struct, frozen=True):
    at_s: float
    timeout_s: float


class EvictionTracker:
    """The tracker remembers pending, accepted and refused evictions by pod uid. Times are those of the ticks."""

    def __init__(self) -> None:
        self._pending: dict[str, _PendingEviction] = {}
        self._left: dict[str, _LeavingPod] = {}
        self._barred: dict[str, tuple[float, str]] = {}
        self._last_s: dict[str, float] = {}  # last eviction by strategy
        self._started_s: float | None = None

    def begin_tick(self, now_s: float, pods: Iterable[PodMeta]) -> None:
        """Begin a tick: forget pods that are gone, requests that got no answer, and refusals that are over."""
        if self._started_s is None or now_s < self._started_s:
            self._started_s = now_s
        here = {pod.uid: pod for pod in pods}
        self._pending = {
            uid: one for uid, one in self._pending.items() if uid in here and 0 <= now_s - one.at_s < REQUEST_TIMEOUT_S
        }
        self._left = {
            uid: one
            for uid, one in self._left.items()
            if uid in here and (here[uid].terminating or 0 <= now_s - one.at_s < one.timeout_s)
        }
        self._barred = {
            uid: (at_s, why)
            for uid, (at_s, why) in self._barred.items()
            if uid in here and 0 <= now_s - at_s < BARRED_FOR_S
        }

    def request(self, now_s: float, strategy: str, victims: Iterable[EvictionRequest]) -> None:
        for victim in victims:
            self._pending[victim.uid] = _PendingEviction(strategy, now_s)

    def evicted(self, now_s: float, uid: str, *, by_stopping: bool = False) -> None:
        """Record that the pod is leaving. `by_stopping`: its containers were stopped, and the pod was not deleted."""
        asked = self._pending.pop(uid, None)
        self._left[uid] = _LeavingPod(now_s, STOPPED_TIMEOUT_S if by_stopping else LEAVING_TIMEOUT_S)
        if asked is not None:
            self._last_s[asked.strategy] = now_s

    def eviction_failed(self, now_s: float, uid: str, why: str) -> None:
        self._pending.pop(uid, None)
        self._barred[uid] = (now_s, why)

    @property
    def leaving(self) -> frozenset[str]:
        """Return the uids of pods whose eviction was requested or accepted."""
        return frozenset(self._pending) | frozenset(self._left)

    @property
    def barred(self) -> Mapping[str, str]:
        """Return why each recently refused pod must be left alone, by uid."""
        return {uid: why for uid, (_, why) in self._barred.items()}

    def since_s(self, strategy: str, now_s: float) -> float:
        """Return the seconds since the strategy last evicted a pod, or since the start."""
        last = self._last_s.get(strategy, self._started_s)
        return 0.0 if last is None else max(0.0, now_s - last)
