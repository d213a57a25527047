"""Ask plugins about queued pods: PreEnqueue gates, and queueing hints that decide which pods an event requeues.

Unschedulable and gated pods are indexed by the plugins that rejected them, so that an event that concerns none of
them costs nothing. Pods that a plugin cannot tell apart are kept together, so that it is asked once for all of them.
Which pods to requeue is decided over all pods before any is moved, because moving changes the index.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from koord.scheduler.queue.entry import QueuedPod

Refuser = tuple[str, str]  # profile, plugin
Kin = dict[str, QueuedPod]  # by uid, in the order in which they went to sleep


class Sleepers:
    """Index pods by the plugins that rejected them, and by what those plugins treat as equal."""
    def __init__(self) -> None:
        self._beds: dict[str, tuple[tuple[Refuser, Hashable], ...]] = {}  # by uid: where to find it below
        self._kin: dict[Refuser, dict[Hashable, Kin]] = {}

    def add(self, queued: QueuedPod, beds: Iterable[tuple[Refuser, Hashable]]) -> None:
        uid = queued.uid
        self.remove(uid)
        self._beds[uid] = held = tuple(beds)
        for refuser, kin in held:
            self._kin.setdefault(refuser, {}).setdefault(kin, {})[uid] = queued

    def remove(self, uid: str) -> bool:
        beds = self._beds.pop(uid, None)
        if beds is None:
            return False
        for refuser, kin in beds:
            groups = self._kin[refuser]
            group = groups[kin]
            del group[uid]
            if not group:
                del groups[kin]
                if not groups:
                    del self._kin[refuser]
        return True

    def refused_by(self, refuser: Refuser) -> Mapping[Hashable, Kin]:
        return self._kin.get(refuser, {})

    def __len__(self) -> int:
        return len(self._beds)
