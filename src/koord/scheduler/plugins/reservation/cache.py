"""ReservationCache holds every Reservation as the cluster state shows it: who holds room for whom, and what is left.

    Reservation, Available     -> its reserve pod is placed on its node
    owner assumed or bound     -> the reserve pod holds so much less: free = allocatable - used - unconsumed, for all
    Reservation ended or gone  -> the reserve pod leaves; its owners are pods like any other

It is derived from live objects and placements alone. Rows and names of nodes where something changed are noted, so that
whoever caches something looks at those again and at nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Literal, cast

from koord.api.annotations import reservation_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.reservation_codecs import ignores_reservations
from koord.api.koordinator import protocol
from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.scheduling import AVAILABLE, FAILED, SUCCEEDED, WAITING, Reservation
from koord.api.kubernetes import pod as api_pod
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import HeldResources, PodInfo
from koord.scheduler.cache.pod_model import PODS, Pod, is_terminal, reserve_pod_of
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.reservation import reservation_index, reservation_info
from koord.scheduler.plugins.reservation.matches import ReservationMatches, reservation_request_of
from koord.scheduler.plugins.reservation.owner_matching import OwnerKey, ReservationRequest, owner_keys_of_pod
from koord.values.resources import CPU, MEMORY
from koord.values.resources import PODS as PLACES


class WaitingOwners:
    """Pods that were rejected lately, by the keys under which a reservation for them is found: a new one wakes them."""

    def __init__(self) -> None:
        self.requests: dict[str, ReservationRequest] = {}
        self._index: dict[OwnerKey, dict[str, None]] = {}

    def put(self, pod: PodInfo) -> None:
        request = reservation_request_of(pod)
        if isinstance(request, MalformedAnnotation):
            return
        self.drop(pod.uid)
        self.requests[pod.uid] = request
        for key in owner_keys_of_pod(request):
            self._index.setdefault(key, {})[pod.uid] = None

    def drop(self, uid: str) -> None:
        request = self.requests.pop(uid, None)
        if request is None:
            return
        for key in owner_keys_of_pod(request):
            found = self._index.get(key)
            if found is not None:
                found.pop(uid, None)
                if not found:
                    del self._index[key]

    def matching_owners(self, info: reservation_info.ReservationInfo) -> list[str]:
        """Return the uids of pods that could use the reservation, those that waited longest first."""
        keys = {key for owner in info.owners for key in owner.index_keys()}
        found = {uid: None for key in sorted(keys) for uid in self._index.get(key, ())}
        return [uid for uid in found if info.matches_owner(self.requests[uid])]


MATCHES_KEPT = 512
_LOG_LIMIT = 1 << 15

ReservationChanged = Callable[[str], None]


class ReservationCache:
    """All reservations; get it with `state.derived(ReservationCache)`, then `attach` it.

    `failure_messages` has the messages of Reservations that got no node, by uid, and `pending_events` those
    about reservations for pods that got none; the leader takes them away and publishes them.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.register = reservation_index.ReservationIndex()
        self.waiting_owners = WaitingOwners()
        self.reservations: dict[str, Reservation] = {}  # by uid, those that have not ended
        self.failure_messages: dict[str, str] = {}
        self.pending_events: dict[str, tuple[PodInfo, str]] = {}
        self.omit_node_labels = False
        self._handle: Handle | None = None
        self._matches: OrderedDict[Hashable, ReservationMatches] = OrderedDict()
        self._last_id = 0
        self._log: list[str] = []
        self._log_start = 0
        self._current_owner: dict[str, str] = {}  # by uid of an operating pod
        self._callbacks: list[ReservationChanged] = []
        state.add_placement_listener(self._on_placement, plain_adds=False)

    def attach(self, handle: Handle) -> None:
        if self._handle is None:
            self._handle = handle
            handle.lister(RESERVATIONS).on_change(self._on_reservation)
            handle.lister(PODS).on_change(self._on_pod)

    def on_change(self, changed: ReservationChanged) -> None:
        """Register a callback that gets the uid of every reservation whose owners or state changed."""
        self._callbacks.append(changed)

    # What happens ------------------------------------------------------------------------------------------------

    def assume_owner(self, pod: PodInfo, reservation: str, node_name: str) -> None:
        """Assume that a pod owns a part of a reservation."""
        self._apply(
            reservation_index.OwnerAssigned(
                reservation_info.ReservationOwnerPod(
                    uid=pod.uid, reservation=reservation, node=node_name, requests=pod.requests
                )
            )
        )

    def forget_owner(self, uid: str) -> None:
        if self.register.owner_pod(uid) is not None:
            self._apply(reservation_index.OwnerReleased(uid))

    def _on_reservation(self, old: Reservation | None, new: Reservation | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._drop_reservation(old.metadata.uid)
        if new is None:
            return
        uid, phase = new.metadata.uid, new.status.phase
        if phase in (SUCCEEDED, FAILED):
            self._drop_reservation(uid)
            return
        self.reservations[uid] = new
        if new.status.node_name and phase in (AVAILABLE, WAITING):
            self.state.set_pod(reserve_pod_of(new))
            self._note_node(new.status.node_name)  # also when it holds the same: its annotations may have changed
        elif self.state.placed_pod(uid) is not None and not self.state.is_assumed(uid):
            self.state.drop_pod(uid)
        self._set_reservation(reservation_info.ReservationInfo.from_reservation(new))

    def _drop_reservation(self, uid: str) -> None:
        self.reservations.pop(uid, None)
        self.failure_messages.pop(uid, None)
        self._apply(reservation_index.ReservationGone(uid))
        self.state.drop_pod(uid)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self.waiting_owners.drop(old.metadata.uid)
            self.pending_events.pop(old.metadata.uid, None)
        elif new is not None and new.spec.node_name and self.waiting_owners.requests:
            self.waiting_owners.drop(new.metadata.uid)
        if not any(p is not None and protocol.L_OPERATING_MODE in p.metadata.labels for p in (old, new)):
            return
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._drop_operating_pod(old.metadata.uid)
        if new is not None:
            self._set_operating_pod(new)

    def _set_operating_pod(self, pod: Pod) -> None:
        """Handle a real pod that may act as a reservation (an operating pod)."""
        uid = pod.metadata.uid
        same = cast(api_pod.Pod, pod)  # the slim pod has all that is read here
        info = None if is_terminal(pod) else reservation_info.reservation_info_of_pod(same)
        if info is None:
            self._drop_operating_pod(uid)
            return
        self._set_reservation(info)
        owner = reservation_info.current_owner_of(same)
        current = owner.uid if isinstance(owner, reservation_info.ReservationOwnerPod) else ""
        before = self._current_owner.pop(uid, "")
        if before and before != current:
            self.forget_owner(before)
        if isinstance(owner, reservation_info.ReservationOwnerPod):
            self._current_owner[uid] = current
            if self.register.owner_pod(current) is None:
                self._apply(reservation_index.OwnerAssigned(owner))

    def _drop_operating_pod(self, uid: str) -> None:
        owner = self._current_owner.pop(uid, "")
        self._apply(reservation_index.ReservationGone(uid))
        if owner and self.state.placed_pod(owner) is None:
            self.forget_owner(owner)

    def _on_placement(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        """Handle a placement; of a pod without Koordinator's labels and annotations only its end."""
        if protocol.L_OPERATING_MODE in pod.labels:
            self._note_node(node.name)
        if what == "remove":
            if self.register.owner_pod(pod.uid) is not None:
                self._apply(reservation_index.OwnerReleased(pod.uid))
            return
        if protocol.A_RESERVATION_ALLOCATED not in pod.annotations or pod.is_reserve_pod:
            return
        allocated = reservation_codecs.parse_reservation_allocated(pod.annotations)
        if allocated is not None and not isinstance(allocated, MalformedAnnotation):
            self.assume_owner(pod, allocated.uid, node.name)

    def _set_reservation(self, info: reservation_info.ReservationInfo) -> None:
        before = self.register.get(info.uid)
        self._apply(reservation_index.ReservationSeen(info))
        after = self.register.get(info.uid)
        if after is None or not after.is_matchable or (before is not None and before.info == after.info):
            return
        if self.waiting_owners.requests and self._handle is not None:
            self._handle.actions.activate(self.waiting_owners.matching_owners(info))

    # What follows from it ----------------------------------------------------------------------------------------

    def _apply(self, event: reservation_index.ReservationEvent) -> None:
        register = self.register
        match event:
            case reservation_index.ReservationSeen(info):
                touched = {info.uid}
            case reservation_index.ReservationGone(uid):
                touched = {uid}
            case reservation_index.OwnerAssigned(occupant):
                known = register.owner_pod(occupant.uid)
                touched = {occupant.reservation} | ({known.reservation} if known is not None else set())
            case reservation_index.OwnerReleased(pod):
                known = register.owner_pod(pod)
                touched = {known.reservation} if known is not None else set()
        before = {uid: register.get(uid) for uid in touched}
        keys_version = register.owner_keys_version
        register.handle(event)
        if register.owner_keys_version != keys_version:
            self.state.invalidate_idle()
        for uid in sorted(touched):
            self._update_holder(uid, before[uid])

    def _update_holder(self, uid: str, before: reservation_info.ReservationUsage | None) -> None:
        after = self.register.get(uid)
        self.state.set_held(uid, None if after is None else self._hold_of(after, uid))
        if before is not after:
            for name in {s.info.node for s in (before, after) if s is not None}:
                self._note_node(name)
        for changed in self._callbacks:
            changed(uid)

    def _hold_of(self, usage: reservation_info.ReservationUsage, uid: str) -> HeldResources | None:
        """Return what is left of a reservation, once something is taken."""
        if not usage.owner_count:
            return None
        return unconsumed_hold(usage, self.state.placed_pod(uid))

    def record_failure(self, pod: PodInfo, message: str, remark: str | None) -> None:
        """Record a failed attempt of a Reservation, or of a pod that asked for one."""
        if pod.is_reserve_pod:
            self.failure_messages[pod.uid] = message
        elif remark is not None:
            self.pending_events[pod.uid] = (pod, remark)
        for changed in self._callbacks:
            changed(pod.uid)

    def _note_node(self, name: str) -> None:
        self._log.append(name)
        if len(self._log) > _LOG_LIMIT:
            drop = _LOG_LIMIT // 2
            del self._log[:drop]
            self._log_start += drop
        node = self.state.table.index.get(name)
        if node is not None:
            self.state.table.mark_changed(node.row)

    def _nodes_changed_since(self, position: int) -> Collection[str] | None:
        if position < self._log_start:
            return None
        tail = self._log[position - self._log_start :]
        return tail if len(tail) < 2 else dict.fromkeys(tail)

    # Who may use what --------------------------------------------------------------------------------------------

    def matches_for(self, pod: PodInfo) -> ReservationMatches | None:
        """Return the reservations that a pod may use; None for the plain pod, at the cost of a few look-ups."""
        register, labels, notes = self.register, pod.labels, pod.annotations
        by_name = register.has_owner_identity(pod.uid, pod.name)
        if (
            by_name
            or register.may_match(pod.namespace, labels, pod.owners)
            or (notes and protocol.A_RESERVATION_AFFINITY in notes)
            or (labels and protocol.L_RESERVATION_IGNORED in labels and ignores_reservations(labels))
        ):
            return self._get_matches(pod, by_name)
        return None

    def _get_matches(self, pod: PodInfo, by_name: bool) -> ReservationMatches:
        exact = pod.annotations.get(protocol.A_EXACT_MATCH_RESERVATION)
        key = (
            pod.label_group,
            pod.owners,
            pod.annotations.get(protocol.A_RESERVATION_AFFINITY),
            exact and (exact, pod.shape.number),
            pod.uid if by_name else "",
            tuple(pod.requests),  # a reservation that shares no resource with a pod is not for it
        )
        known = self._matches.get(key)
        if known is None:
            self._last_id += 1
            known = ReservationMatches(
                self._last_id, pod, self.state, self.register, omit_node_labels=self.omit_node_labels
            )
            self._matches[key] = known
            if len(self._matches) > MATCHES_KEPT:
                self._matches.popitem(last=False)
        else:
            self._matches.move_to_end(key)
        known.refresh(self._nodes_changed_since, self._log_start + len(self._log))
        return known


def unconsumed_hold(usage: reservation_info.ReservationUsage, holder: PodInfo | None) -> HeldResources:
    """Return what the reserve pod takes of its node while owners use a part of the reservation."""
    reserved = usage.info.reserved
    left = {name: amount for name, amount in usage.unallocated().items() if name != PLACES}
    if holder is not None:  # what it requests and does not reserve is its own
        left.update({name: amount for name, amount in holder.requests.items() if name not in reserved})
    return HeldResources(left, left.get(CPU, 0), left.get(MEMORY, 0))
