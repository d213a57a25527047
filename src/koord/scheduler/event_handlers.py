"""Feed watch events into the cluster state first and then to the queue: a pod that wakes must see what woke it.

Reservations without a node go through the queue as reserve pods; plugins have put those with a node into the cluster
state before the queue is told (`LiveLister.notify`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.protocol import A_RESERVATION_NAME
from koord.api.koordinator.scheduling import AVAILABLE, FAILED, SUCCEEDED, Reservation
from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import Informer
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod, is_terminal, reserve_pod_of
from koord.scheduler.framework.cluster_event import (
    ADD,
    DELETE,
    UPDATE,
    ClusterEvent,
    ObjectEvent,
    node_update_events,
    pod_update_events,
)
from koord.scheduler.live_handle import LiveHandle, LiveLister
from koord.scheduler.metrics import MetricsRecorder
from koord.scheduler.queue.nominations import is_nominated_by_others
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from koord.telemetry.clock import Clock

_RESERVATION_ACTIONS = {"added": ADD, "updated": UPDATE, "deleted": DELETE}
_ACTION_LABELS = {"added": "Add", "updated": "Update", "deleted": "Delete"}
_RESERVE_POD_ADDED, _RESERVE_POD_DELETED = ClusterEvent("Pod", ADD), ClusterEvent("Pod", DELETE)


class ReservationEventHandler:
    """Handle watch events of Reservations.

    `gone` is called with the UID of every Reservation that ended, so that one waiting at Permit is released;
    `assumed_changed` with the reserve pod of one that changed after its node was assumed.
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
        assumed_changed: Callable[[Pod], None],
        wake: Callable[[], None],
        metrics: MetricsRecorder,
    ) -> None:
        self._metrics = metrics
        self._lister = lister
        self._state = state
        self._queue = queue
        self._clock = clock
        self._scheduler_names = schedulers
        self._on_pod_gone = gone
        self._on_assumed_changed = assumed_changed
        self._wake = wake

    def connect(self) -> None:
        self._lister.informer.add_event_handler(self._on_reservation)

    def latest_pod(self, pod: PodInfo) -> Pod | None:
        """Return the reserve pod of a Reservation as the watch last showed it."""
        found = self._lister.get("", pod.annotations[A_RESERVATION_NAME])
        return reserve_pod_of(found) if found is not None and found.metadata.uid == pod.uid else None

    def _on_reservation(self, change: ObjectChange[Reservation]) -> None:
        began = self._clock.monotonic()
        event = ClusterEvent("Reservation", _RESERVATION_ACTIONS[change.kind])
        self._handle_reservation(change, event)
        self._metrics.event_handled(ObjectEvent(event).metric_label, self._clock.monotonic() - began)

    def _handle_reservation(self, change: ObjectChange[Reservation], event: ClusterEvent) -> None:
        deleted = change.kind == "deleted"
        reservation = change.object
        uid = reservation.metadata.uid
        before = self._state.placed_pod(uid)
        was_assumed = self._state.is_assumed(uid)
        self._lister.notify(*((reservation, None) if deleted else (change.old, reservation)))
        ended = deleted or reservation.status.phase in (SUCCEEDED, FAILED)
        if ended or reservation.status.phase == AVAILABLE:
            self._queue.delete(uid)
        elif self._state.is_assumed(uid):
            self._on_assumed_changed(reserve_pod_of(reservation))
        else:
            self._enqueue(reservation)
        if ended:
            self._on_pod_gone(uid)
            self._state.drop_pod(uid)
        old, new = (reservation, None) if deleted else (change.old, reservation)
        self._notify_queue(event, old, new)
        after = self._state.placed_pod(uid)
        if before is not None and (after is None or after.node_name != before.node_name):
            self._notify_queue(_RESERVE_POD_DELETED, before, None)
        if after is not None and (before is None or was_assumed or after.node_name != before.node_name):
            self._notify_queue(_RESERVE_POD_ADDED, None, after)

    def _enqueue(self, reservation: Reservation) -> None:
        pod = reserve_pod_of(reservation)
        if pod.spec.scheduler_name in self._scheduler_names:
            self._queue.update(self._state.pod_info(pod), self._clock.monotonic())
            self._wake()
        else:
            self._queue.delete(pod.metadata.uid)

    def _notify_queue(self, event: ClusterEvent, old: object, new: object) -> None:
        if self._queue.on_event(ObjectEvent(event, old, new), self._clock.monotonic()):
            self._wake()


_ACTIONS = {"added": ADD, "updated": UPDATE, "deleted": DELETE}
_ACTION_LABELS = {"added": "Add", "updated": "Update", "deleted": "Delete"}
_POD_ADDED, _POD_DELETED = ClusterEvent("Pod", ADD), ClusterEvent("Pod", DELETE)
_NODE_ADDED, _NODE_DELETED = ClusterEvent("Node", ADD), ClusterEvent("Node", DELETE)


class EventHandlers:
    """Handle watch events of nodes, pods and every kind that plugins asked a lister for.

    `gone` is called with the UID of every pod that ended or was deleted, so that one waiting at Permit is released;
    `assumed_changed` with every pod that changed after its node was assumed and before it was bound.
    `reservation_schedulers` are those whose profile has the Reservation plugin: no other one can bind a reserve pod.
    `follows_other_schedulers` counts the pods that other schedulers nominated to nodes.
    """

    rights: ClassVar[tuple[RbacRule, ...]] = (RbacRule("", ("nodes", "pods"), READ_VERBS),)

    def __init__(
        self,
        informers: InformerFactory,
        handle: LiveHandle,
        queue: SchedulingQueue,
        clock: Clock,
        *,
        schedulers: frozenset[str],
        reservation_schedulers: frozenset[str],
        gone: Callable[[str], None],
        assumed_changed: Callable[[Pod], None],
        wake: Callable[[], None],
        metrics: MetricsRecorder,
        follows_other_schedulers: bool = False,
    ) -> None:
        self._metrics = metrics
        self._state: ClusterState = handle.state
        self._handle = handle
        self._queue = queue
        self._clock = clock
        self._scheduler_names = schedulers
        self._reservation_schedulers = reservation_schedulers
        self._on_pod_gone = gone
        self._on_assumed_changed = assumed_changed
        self._wake = wake
        self._follows_other_schedulers = follows_other_schedulers
        self.nodes: Informer[Node] = informers.for_resource(NODES)
        self.pods = handle.pods
        self._reservations: ReservationEventHandler | None = None
        self._pod_lister: LiveLister[Pod] | None = None  # plugins that look at all pods

    def connect(self) -> None:
        """Register the handlers: nodes before pods, so that a first list of pods finds its nodes.

        The order of arrival is not guaranteed.
        """
        self.nodes.add_event_handler(self._on_node)
        self.pods.add_event_handler(self._on_pod)
        for lister in self._handle.listers():
            if lister.informer.resource.kind == RESERVATIONS.kind:
                self._reservations = self._make_reservation_handler(lister)
                self._reservations.connect()
            elif lister.informer is self.pods:
                self._pod_lister = lister  # notified first by `_on_pod`, which knows what to tell the queue
            else:
                lister.informer.add_event_handler(self._lister_handler(lister))

    @property
    def synced(self) -> bool:
        """Return whether every handler has received its first list completely."""
        others = all(lister.informer.has_synced for lister in self._handle.listers())
        return self.nodes.has_synced and self.pods.has_synced and others

    async def wait_synced(self) -> None:
        await self.nodes.wait_for_sync()
        await self.pods.wait_for_sync()
        for lister in self._handle.listers():
            await lister.informer.wait_for_sync()

    def _notify_queue(self, object_event: ObjectEvent, *, at_most_priority: int | None = None) -> None:
        if self._queue.on_event(object_event, self._clock.monotonic(), at_most_priority=at_most_priority):
            self._wake()

    # Nodes -------------------------------------------------------------------------------------------------------

    def _on_node(self, change: ObjectChange[Node]) -> None:
        node, old = change.object, change.old
        began = self._clock.monotonic()
        if change.kind == "deleted":
            self._state.drop_node(node.metadata.name)
            self._handle_node_event(ObjectEvent(_NODE_DELETED, old=node), began)
        elif old is None:
            self._state.set_node(node)
            self._handle_node_event(ObjectEvent(_NODE_ADDED, new=node), began)
        else:
            events = node_update_events(old, node)
            if not events and _is_equal_for_placement(old, node):
                return  # a heartbeat
            self._state.set_node(node)
            for event in events:
                self._handle_node_event(ObjectEvent(event, old, node), began)

    def _handle_node_event(self, object_event: ObjectEvent, began: float) -> None:
        self._notify_queue(object_event)
        self._metrics.event_handled(object_event.metric_label, self._clock.monotonic() - began)

    # Pods --------------------------------------------------------------------------------------------------------

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        began = self._clock.monotonic()
        self._handle_pod(change)
        of = "AssignedPod" if change.object.spec.node_name else "UnschedulablePod"
        self._metrics.event_handled(of + _ACTION_LABELS[change.kind], self._clock.monotonic() - began)

    def _handle_pod(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        if self._pod_lister is not None:
            self._pod_lister.notify(*((pod, None) if change.kind == "deleted" else (change.old, pod)))
        if change.kind == "deleted" or is_terminal(pod):
            self._on_ended_pod(pod)
        elif pod.spec.node_name:
            self._on_bound_pod(pod)
        elif self._state.is_assumed(pod.metadata.uid):
            self._on_assumed_changed(pod)  # being bound: the outcome of that decides
        elif pod.spec.scheduler_name in self._scheduler_names:
            self._state.set_pod(pod)  # it is on no node, whatever was assumed
            self._queue.update(self._state.pod_info(pod), self._clock.monotonic())
            self._wake()
        else:
            self._queue.delete(pod.metadata.uid)
        if self._follows_other_schedulers:
            self._follow_nomination_by_others(pod, deleted=change.kind == "deleted")

    def _follow_nomination_by_others(self, pod: Pod, *, deleted: bool) -> None:
        """Count the pod where another scheduler nominated it; tell the queue of room that it no longer waits for."""
        uid, nominations = pod.metadata.uid, self._queue.nominations
        before, after = nominations.by_others(uid), None
        if not deleted and is_nominated_by_others(pod, self._scheduler_names):
            after = self._state.pod_info(pod)
            nominations.set_by_others(after)
        else:
            nominations.remove_by_others(uid)
        if before is None or before.nominated_node in (pod.spec.node_name, after.nominated_node if after else ""):
            return
        left = before.placed_on(before.nominated_node)
        self._notify_queue(ObjectEvent(_POD_DELETED, old=left), at_most_priority=left.priority - 1)

    def _on_bound_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        before = self._state.placed_pod(uid)
        seen = before is not None and not self._state.is_assumed(uid)
        after = self._state.set_pod(pod)
        assert after is not None
        if uid in self._queue:
            self._queue.delete(uid)
        if before is not None and seen and before.node_name == after.node_name:
            if before.resource_version != after.resource_version:
                for event in pod_update_events(before, after):
                    self._notify_queue(ObjectEvent(event, before, after))
        else:
            self._notify_queue(ObjectEvent(_POD_ADDED, new=after))

    def _on_ended_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        before = self._state.placed_pod(uid)
        promised = self._queue.nominations.node_of(uid)
        queued = self._queue.delete(uid)
        self._on_pod_gone(uid)
        self._state.drop_pod(uid)
        if before is not None:
            self._notify_queue(ObjectEvent(_POD_DELETED, old=before))
        elif promised and queued is not None:  # only nominated: its resources are free for pods that respected that
            left = queued.pod.placed_on(promised)
            self._notify_queue(ObjectEvent(_POD_DELETED, old=left), at_most_priority=left.priority)

    # Reservations ------------------------------------------------------------------------------------------------

    def _make_reservation_handler(self, lister: LiveLister[Any]) -> ReservationEventHandler:
        return ReservationEventHandler(
            lister,
            self._state,
            self._queue,
            self._clock,
            schedulers=self._reservation_schedulers,
            gone=self._on_pod_gone,
            assumed_changed=self._on_assumed_changed,
            wake=self._wake,
            metrics=self._metrics,
        )

    def latest_pod(self, pod: PodInfo) -> Pod | None:
        """Return a pod that the queue knows, reserve pods included, as the watch last showed it."""
        if not pod.is_reserve_pod:
            return self.pods.get(pod.namespace, pod.name)
        return self._reservations.latest_pod(pod) if self._reservations is not None else None

    # Everything else ---------------------------------------------------------------------------------------------

    def _lister_handler(self, lister: LiveLister[Any]) -> Callable[[ObjectChange[Any]], None]:
        kind = lister.informer.resource.kind
        events = {name: ClusterEvent(kind, action) for name, action in _ACTIONS.items()}

        def tell(change: ObjectChange[Any]) -> None:
            began = self._clock.monotonic()
            gone = change.kind == "deleted"
            old, new = (change.object, None) if gone else (change.old, change.object)
            lister.notify(old, new)
            object_event = ObjectEvent(events[change.kind], old, new)
            self._notify_queue(object_event)
            self._metrics.event_handled(object_event.metric_label, self._clock.monotonic() - began)

        return tell


def _is_equal_for_placement(old: Node, new: Node) -> bool:
    """Return whether no plugin can judge the two nodes differently; what `node_update_events` compares is left out."""
    return old.spec == new.spec and old.status.images == new.status.images and old.metadata.uid == new.metadata.uid
