"""ReservationCache holds every Reservation as the cluster state shows it: who holds room for whom, and what is
left.

    Reservation, Available     -> its reserve pod is placed on its node
    owner assumed or bound     -> the reserve pod holds so much less: free = allocatable - used - unconsumed, for all
    Reservation ended or gone  -> the reserve pod leaves; its owners are pods like any other
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Literal, cast

from koord.api import pod as api_pod
from koord.api.annotations import reservation_allocated
from koord.api.annotations.codec import Malformed
from koord.api.annotations.reservation_options import ignores_reservations
from koord.api.custom import RESERVATIONS
from koord.api.koord_scheduling import AVAILABLE, FAILED, SUCCEEDED, WAITING, Reservation
from koord.api.protocol import (
    A_EXACT_MATCH_RESERVATION,
    A_RESERVATION_AFFINITY,
    A_RESERVATION_ALLOCATED,
    L_OPERATING_MODE,
    L_RESERVATION_IGNORED,
)
from koord.policy.reservation.holding import Holding
from koord.policy.reservation.operating import holding_of, occupant_of
from koord.policy.reservation.register import Event, Gone, Occupant, Occupied, Register, Seen, Vacated
from koord.policy.reservation.standing import Standing
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.reservation.interest import Interest
from koord.scheduler.plugins.reservation.waiting import Waiting
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import Held, PodInfo
from koord.scheduler.state.reserve import standing_for
from koord.scheduler.state.wire import PODS, Pod, is_terminal
from koord.values.resources import CPU, MEMORY
from koord.values.resources import PODS as PLACES

INTERESTS_KEPT = 512
_LOG_LIMIT = 1 << 15

Changed = Callable[[str], None]


class Book:
    """All reservations; get it with `state.derived(ReservationCache)`, then `attach` it.

    `failure_messages` has the messages of Reservations that got no node, by uid, and `pending_events` those
    about reservations for pods that got none; the leader takes them away and publishes them.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.register = Register()
        self.waiting = Waiting()
        self.reservations: dict[str, Reservation] = {}  # by uid, those that have not ended
        self.failures: dict[str, str] = {}
        self.remarks: dict[str, tuple[PodInfo, str]] = {}
        self.omit_node_labels = False
        self._handle: Handle | None = None
        self._interests: OrderedDict[Hashable, Interest] = OrderedDict()
        self._made = 0
        self._log: list[str] = []
        self._log_start = 0
        self._current_owner: dict[str, str] = {}  # by uid of an operating pod
        self._watchers: list[Changed] = []
        state.listen(self._placed)

    def attach(self, handle: Handle) -> None:
        if self._handle is None:
            self._handle = handle
            handle.lister(RESERVATIONS).on_change(self._reservation)
            handle.lister(PODS).on_change(self._pod)

    def watch(self, changed: Changed) -> None:
        """Register a callback that gets the uid of every reservation whose owners or state changed."""
        self._watchers.append(changed)

    # What happens ------------------------------------------------------------------------------------------------

    def take(self, pod: PodInfo, reservation: str, node_name: str) -> None:
        """Assume that a pod owns a part of a reservation."""
        self._apply(Occupied(Occupant(uid=pod.uid, reservation=reservation, node=node_name, requests=pod.requests)))

    def give_back(self, uid: str) -> None:
        if self.register.occupant(uid) is not None:
            self._apply(Vacated(uid))

    def _reservation(self, old: Reservation | None, new: Reservation | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._end(old.metadata.uid)
        if new is None:
            return
        uid, phase = new.metadata.uid, new.status.phase
        if phase in (SUCCEEDED, FAILED):
            self._end(uid)
            return
        self.reservations[uid] = new
        if new.status.node_name and phase in (AVAILABLE, WAITING):
            self.state.set_pod(standing_for(new))
            self._note(new.status.node_name)  # also when it holds the same: its annotations may have changed
        elif self.state.placed(uid) is not None and not self.state.is_assumed(uid):
            self.state.drop_pod(uid)
        self._seen(Holding.of(new))

    def _end(self, uid: str) -> None:
        self.reservations.pop(uid, None)
        self.failures.pop(uid, None)
        self._apply(Gone(uid))
        self.state.drop_pod(uid)

    def _pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self.waiting.drop(old.metadata.uid)
            self.remarks.pop(old.metadata.uid, None)
        if not any(p is not None and L_OPERATING_MODE in p.metadata.labels for p in (old, new)):
            return
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._stands_no_more(old.metadata.uid)
        if new is not None:
            self._stands(new)

    def _stands(self, pod: Pod) -> None:
        """Handle a real pod that may act as a reservation (an operating pod)."""
        uid = pod.metadata.uid
        same = cast(api_pod.Pod, pod)  # the slim pod has all that is read here
        holding = None if is_terminal(pod) else holding_of(same)
        if holding is None:
            self._stands_no_more(uid)
            return
        self._seen(holding)
        owner = occupant_of(same)
        current = owner.uid if isinstance(owner, Occupant) else ""
        before = self._current_owner.pop(uid, "")
        if before and before != current:
            self.give_back(before)
        if isinstance(owner, Occupant):
            self._current_owner[uid] = current
            if self.register.occupant(current) is None:
                self._apply(Occupied(owner))

    def _stands_no_more(self, uid: str) -> None:
        owner = self._current_owner.pop(uid, "")
        self._apply(Gone(uid))
        if owner and self.state.placed(owner) is None:
            self.give_back(owner)

    def _placed(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        """Handle a placement. Every placement runs this, so calls are few."""
        if L_OPERATING_MODE in pod.labels:
            self._note(node.name)
        if what == "remove":
            if self.register.occupant(pod.uid) is not None:
                self._apply(Vacated(pod.uid))
            return
        if self.waiting.seekers:
            self.waiting.drop(pod.uid)
        if A_RESERVATION_ALLOCATED not in pod.annotations or pod.reserve:
            return
        allocated = reservation_allocated.parse(pod.annotations)
        if allocated is not None and not isinstance(allocated, Malformed):
            self.take(pod, allocated.uid, node.name)

    def _seen(self, holding: Holding) -> None:
        before = self.register.get(holding.uid)
        self._apply(Seen(holding))
        after = self.register.get(holding.uid)
        if after is None or not after.is_matchable or (before is not None and before.holding == after.holding):
            return
        if self.waiting.seekers and self._handle is not None:
            self._handle.desk.activate(self.waiting.for_whom(holding))

    # What follows from it ----------------------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        register = self.register
        match event:
            case Seen(holding):
                touched = {holding.uid}
            case Gone(uid):
                touched = {uid}
            case Occupied(occupant):
                known = register.occupant(occupant.uid)
                touched = {occupant.reservation} | ({known.reservation} if known is not None else set())
            case Vacated(pod):
                known = register.occupant(pod)
                touched = {known.reservation} if known is not None else set()
        before = {uid: register.get(uid) for uid in touched}
        register.handle(event)
        for uid in sorted(touched):
            self._settle(uid, before[uid])

    def _settle(self, uid: str, before: Standing | None) -> None:
        after = self.register.get(uid)
        self.state.hold(uid, None if after is None else self._held(after, uid))
        if before is not after:
            for name in {s.holding.node for s in (before, after) if s is not None}:
                self._note(name)
        for changed in self._watchers:
            changed(uid)

    def _held(self, standing: Standing, uid: str) -> Held | None:
        """Return what is left of a reservation, once something is taken."""
        if not standing.assigned:
            return None
        return held(standing, self.state.placed(uid))

    def said(self, pod: PodInfo, message: str, remark: str | None) -> None:
        """Record a failed attempt of a Reservation, or of a pod that asked for one."""
        if pod.reserve:
            self.failures[pod.uid] = message
        elif remark is not None:
            self.remarks[pod.uid] = (pod, remark)
        for changed in self._watchers:
            changed(pod.uid)

    def _note(self, name: str) -> None:
        self._log.append(name)
        if len(self._log) > _LOG_LIMIT:
            drop = _LOG_LIMIT // 2
            del self._log[:drop]
            self._log_start += drop
        node = self.state.table.index.get(name)
        if node is not None:
            self.state.table.note(node.row)

    def _since(self, position: int) -> Collection[str] | None:
        if position < self._log_start:
            return None
        tail = self._log[position - self._log_start :]
        return tail if len(tail) < 2 else dict.fromkeys(tail)

    # Who may use what --------------------------------------------------------------------------------------------

    def interest(self, pod: PodInfo) -> Interest | None:
        """Return the reservations that a pod may use; None for the plain pod, at the cost of a few look-ups."""
        register, labels, notes = self.register, pod.labels, pod.annotations
        person = register.reached_in_person(pod.uid, pod.name)
        if (
            person
            or register.reached_by(pod.namespace, labels, pod.owners)
            or (notes and A_RESERVATION_AFFINITY in notes)
            or (labels and L_RESERVATION_IGNORED in labels and ignores_reservations(labels))
        ):
            return self._interest(pod, person)
        return None

    def _interest(self, pod: PodInfo, person: bool) -> Interest:
        exact = pod.annotations.get(A_EXACT_MATCH_RESERVATION)
        key = (
            pod.peers,
            pod.owners,
            pod.annotations.get(A_RESERVATION_AFFINITY),
            exact and (exact, pod.shape.number),
            pod.uid if person else "",
        )
        known = self._interests.get(key)
        if known is None:
            self._made += 1
            known = Interest(self._made, pod, self.state, self.register, omit_node_labels=self.omit_node_labels)
            self._interests[key] = known
            if len(self._interests) > INTERESTS_KEPT:
                self._interests.popitem(last=False)
        else:
            self._interests.move_to_end(key)
        known.refresh(self._since, self._log_start + len(self._log))
        return known


def held(standing: Standing, holder: PodInfo | None) -> Held:
    """Return what the reserve pod takes of its node while owners use a part of the reservation."""
    reserved = standing.holding.reserved
    left = {name: amount for name, amount in standing.unconsumed().items() if name != PLACES}
    if holder is not None:  # what it requests and does not reserve is its own
        left.update({name: amount for name, amount in holder.requests.items() if name not in reserved})
    return Held(left, left.get(CPU, 0), left.get(MEMORY, 0))
