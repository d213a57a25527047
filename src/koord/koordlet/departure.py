"""Pods that shall go, are going or may not go yet: what evictions were asked for, and what became of them.

Asking and being answered are two moments, as evictions go over the network. In between, and until a pod is gone, what
it will free is credited; a pod that may not go is left alone for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.koordlet.plan import Evict
from koord.koordlet.pod import PodView

UNANSWERED_S = 60.0  # then the question is lost, and may be asked again
LEAVING_S = 120.0  # a victim that shows no sign of leaving for so long is not leaving
BARRED_S = 30.0


class _Asked(msgspec.Struct):
    strategy: str
    at_s: float


class Departures:
    """Times are the ticks' own."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        self._left: dict[str, float] = {}
        self._barred: dict[str, tuple[float, str]] = {}
        self._last_s: dict[str, float] = {}  # last eviction by strategy
        self._started_s: float | None = None

    def look(self, now_s: float, pods: Iterable[PodView]) -> None:
        """The tick begins: forget who is gone, and what was lost or is over."""
        if self._started_s is None or now_s < self._started_s:
            self._started_s = now_s
        here = {pod.uid: pod for pod in pods}
        self._asked = {
            uid: one for uid, one in self._asked.items() if uid in here and 0 <= now_s - one.at_s < UNANSWERED_S
        }
        self._left = {
            uid: at_s
            for uid, at_s in self._left.items()
            if uid in here and (here[uid].terminating or 0 <= now_s - at_s < LEAVING_S)
        }
        self._barred = {
            uid: (at_s, why)
            for uid, (at_s, why) in self._barred.items()
            if uid in here and 0 <= now_s - at_s < BARRED_S
        }

    def ask(self, now_s: float, strategy: str, victims: Iterable[Evict]) -> None:
        for victim in victims:
            self._asked[victim.uid] = _Asked(strategy, now_s)

    def went(self, now_s: float, uid: str) -> None:
        asked = self._asked.pop(uid, None)
        self._left[uid] = now_s
        if asked is not None:
            self._last_s[asked.strategy] = now_s

    def stayed(self, now_s: float, uid: str, why: str) -> None:
        self._asked.pop(uid, None)
        self._barred[uid] = (now_s, why)

    @property
    def leaving(self) -> frozenset[str]:
        return frozenset(self._asked) | frozenset(self._left)

    @property
    def barred(self) -> Mapping[str, str]:
        return {uid: why for uid, (_, why) in self._barred.items()}

    def since_s(self, strategy: str, now_s: float) -> float:
        """Since a strategy last evicted, or since the start."""
        last = self._last_s.get(strategy, self._started_s)
        return 0.0 if last is None else max(0.0, now_s - last)
