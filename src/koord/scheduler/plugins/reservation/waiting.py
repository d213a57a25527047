"""ReservationCache holds every Reservation as the cluster state shows it: who holds room for whom, and what is
left.

    Reservation, Available     -> its reserve pod is placed on its node
    owner assumed or bound     -> the reserve pod holds so much less: free = allocatable - used - unconsumed, for all
    Reservation ended or gone  -> the reserve pod leaves; its owners are pods like any other

It is derived from live objects and placements alone. Rows and names of nodes where something changed are
noted, so that whoever caches something looks at those again and at nothing else.
"""

from __future__ import annotations

from koord.api.annotations.codec import Malformed
from koord.policy.reservation.holding import Holding
from koord.policy.reservation.owner import Key, keys_of
from koord.policy.reservation.seeker import Seeker
from koord.scheduler.plugins.reservation.interest import seeker_of
from koord.scheduler.state.pod import PodInfo


class Waiting:
    """Pods that were rejected lately, by the keys under which a reservation for them is found: a new one activates
    them.
    """
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
        """Return the uids of pods that could use the reservation, those that waited longest first."""
        keys = {key for owner in holding.owners for key in owner.index_keys()}
        found = {uid: None for key in sorted(keys) for uid in self._index.get(key, ())}
        return [uid for uid in found if holding.is_for(self.seekers[uid])]
