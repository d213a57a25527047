"""Pods that were refused lately, by what a reservation for them would be found by: one that comes wakes its owners."""

from __future__ import annotations

from koord.api.annotations.codec import Malformed
from koord.policy.reservation.holding import Holding
from koord.policy.reservation.owner import Key, keys_of
from koord.policy.reservation.seeker import Seeker
from koord.scheduler.plugins.reservation.interest import seeker_of
from koord.scheduler.state.pod import PodInfo


class Waiting:
    def __init__(self) -> None:
        self.seekers: dict[str, Seeker] = {}
        self._index: dict[Key, dict[str, None]] = {}

    def put(self, pod: PodInfo) -> None:
        seeker = seeker_of(pod)
        if isinstance(seeker, Malformed):
            return
        self.drop(pod.uid)
        self.seekers[pod.uid] = seeker
        for key in keys_of(seeker):
            self._index.setdefault(key, {})[pod.uid] = None

    def drop(self, uid: str) -> None:
        seeker = self.seekers.pop(uid, None)
        if seeker is None:
            return
        for key in keys_of(seeker):
            found = self._index.get(key)
            if found is not None:
                found.pop(uid, None)
                if not found:
                    del self._index[key]

    def for_whom(self, holding: Holding) -> list[str]:
        """Who could use the reservation, those who waited longest first."""
        keys = {key for owner in holding.owners for key in owner.index_keys()}
        found = {uid: None for key in sorted(keys) for uid in self._index.get(key, ())}
        return [uid for uid in found if holding.is_for(self.seekers[uid])]
