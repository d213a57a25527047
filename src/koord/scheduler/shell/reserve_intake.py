"""Feed watch events into the cluster state first and then to the queue: a pod that wakes must see what woke it.

Reservations without a node go through the queue as reserve pods; plugins have put those with a node into the cluster
state before the queue is told (`LiveLister.notify`).
"""

from __future__ import annotations

from collections.abc import Callable

from koord.api.koord_scheduling import AVAILABLE, FAILED, SUCCEEDED, Reservation
from koord.api.protocol import A_RESERVATION_NAME
from koord.kube.cache import Change
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.queue.scheduling import SchedulingQueue
from koord.scheduler.shell.handle import LiveLister
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.reserve import standing_for
from koord.scheduler.state.wire import Pod
from koord.telemetry.clock import Clock

_ACTIONS = {"added": ADD, "updated": UPDATE, "deleted": DELETE}
_POD_ADDED, _POD_DELETED = Event("Pod", ADD), Event("Pod", DELETE)


class ReserveIntake:
    """Handle watch events of Reservations.

    `gone` is called with the UID of every Reservation that ended, so that one waiting at Permit is released.
    """

    def __init__(
        self,
        lister: LiveLister[Reservation],
        state: ClusterState,
        queue: SchedulingQueue,
        clock: Clock,
        *,
        schedulers: frozenset[str],
        gone: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self._lister = lister
        self._state = state
        self._queue = queue
        self._clock = clock
        self._schedulers = schedulers
        self._gone = gone
        self._wake = wake

    def connect(self) -> None:
        self._lister.informer.on(self._heard)

    def latest(self, pod: PodInfo) -> Pod | None:
        """Return the reserve pod of a Reservation as the watch last showed it."""
        found = self._lister.get("", pod.annotations[A_RESERVATION_NAME])
        return standing_for(found) if found is not None and found.metadata.uid == pod.uid else None

    def _heard(self, change: Change[Reservation]) -> None:
        deleted = change.kind == "deleted"
        reservation = change.object
        uid = reservation.metadata.uid
        before = self._state.placed(uid)
        was_assumed = self._state.is_assumed(uid)
        self._lister.changed(*((reservation, None) if deleted else (change.old, reservation)))
        ended = deleted or reservation.status.phase in (SUCCEEDED, FAILED)
        if ended or reservation.status.phase == AVAILABLE:
            self._queue.delete(uid)
        elif not self._state.is_assumed(uid):
            self._waiting(reservation)
        if ended:
            self._gone(uid)
            self._state.drop_pod(uid)
        old, new = (reservation, None) if deleted else (change.old, reservation)
        self._tell(Event("Reservation", _ACTIONS[change.kind]), old, new)
        after = self._state.placed(uid)
        if before is not None and (after is None or after.node_name != before.node_name):
            self._tell(_POD_DELETED, before, None)
        if after is not None and (before is None or was_assumed or after.node_name != before.node_name):
            self._tell(_POD_ADDED, None, after)

    def _waiting(self, reservation: Reservation) -> None:
        pod = standing_for(reservation)
        if pod.spec.scheduler_name in self._schedulers:
            self._queue.update(self._state.info(pod), self._clock.monotonic())
            self._wake()
        else:
            self._queue.delete(pod.metadata.uid)

    def _tell(self, event: Event, old: object, new: object) -> None:
        if self._queue.happened(Happened(event, old, new), self._clock.monotonic()):
            self._wake()
