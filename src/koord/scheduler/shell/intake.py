"""Feed watch events into the cluster state first and then to the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.api.builtin import NODES
from koord.api.custom import RESERVATIONS
from koord.api.node import Node
from koord.kube.cache import Change
from koord.kube.informer import Informer
from koord.kube.informers import Informers
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.queue.change import node_changes, pod_changes
from koord.scheduler.queue.scheduling import SchedulingQueue
from koord.scheduler.shell.handle import LiveHandle, LiveLister
from koord.scheduler.shell.reserve_intake import ReserveIntake
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import PODS, Pod, is_terminal
from koord.telemetry.clock import Clock

_ACTIONS = {"added": ADD, "updated": UPDATE, "deleted": DELETE}
_POD_ADDED, _POD_DELETED = Event("Pod", ADD), Event("Pod", DELETE)
_NODE_ADDED, _NODE_DELETED = Event("Node", ADD), Event("Node", DELETE)


class Intake:
    """Handle watch events of nodes, pods and every kind that plugins asked a lister for.

    `gone` is called with the UID of every pod that ended or was deleted, so that one waiting at Permit is released.
    """

    def __init__(
        self,
        informers: Informers,
        handle: LiveHandle,
        queue: SchedulingQueue,
        clock: Clock,
        *,
        schedulers: frozenset[str],
        gone: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self._state: ClusterState = handle.state
        self._handle = handle
        self._queue = queue
        self._clock = clock
        self._schedulers = schedulers
        self._gone = gone
        self._wake = wake
        self.nodes: Informer[Node] = informers.of(NODES)
        self.pods: Informer[Pod] = informers.of(PODS, transform=self._state.shapes.interned)
        self._reserves: ReserveIntake | None = None
        self._listed: LiveLister[Pod] | None = None  # plugins that look at all pods

    def connect(self) -> None:
        """Register the handlers: nodes before pods, so that a first list of pods finds its nodes.

        The order of arrival is not guaranteed.
        """
        self.nodes.on(self._on_node)
        self.pods.on(self._on_pod)
        for lister in self._handle.listers():
            if lister.informer.resource.kind == RESERVATIONS.kind:
                self._reserves = self._reserve_intake(lister)
                self._reserves.connect()
            elif lister.informer is self.pods:
                self._listed = lister  # notified first by `_on_pod`, which knows what to tell the queue
            else:
                lister.informer.on(self._teller(lister))

    @property
    def synced(self) -> bool:
        """Return whether every handler has received its first list completely."""
        others = all(lister.informer.synced for lister in self._handle.listers())
        return self.nodes.synced and self.pods.synced and others

    async def wait_synced(self) -> None:
        await self.nodes.wait_synced()
        await self.pods.wait_synced()
        for lister in self._handle.listers():
            await lister.informer.wait_synced()

    def _tell(self, happened: Happened, *, at_most_priority: int | None = None) -> None:
        if self._queue.happened(happened, self._clock.monotonic(), at_most_priority=at_most_priority):
            self._wake()

    # Nodes -------------------------------------------------------------------------------------------------------

    def _on_node(self, change: Change[Node]) -> None:
        node, old = change.object, change.old
        if change.kind == "deleted":
            self._state.drop_node(node.metadata.name)
            self._tell(Happened(_NODE_DELETED, old=node))
        elif old is None:
            self._state.set_node(node)
            self._tell(Happened(_NODE_ADDED, new=node))
        else:
            events = node_changes(old, node)
            if not events and _places_alike(old, node):
                return  # a heartbeat
            self._state.set_node(node)
            for event in events:
                self._tell(Happened(event, old, node))

    # Pods --------------------------------------------------------------------------------------------------------

    def _on_pod(self, change: Change[Pod]) -> None:
        pod = change.object
        if self._listed is not None:
            self._listed.changed(*((pod, None) if change.kind == "deleted" else (change.old, pod)))
        if change.kind == "deleted" or is_terminal(pod):
            self._ended(pod)
        elif pod.spec.node_name:
            self._bound(pod)
        elif self._state.is_assumed(pod.metadata.uid):
            return  # being bound: the outcome of that decides
        elif pod.spec.scheduler_name in self._schedulers:
            self._state.set_pod(pod)  # it is on no node, whatever was assumed
            self._queue.update(self._state.info(pod), self._clock.monotonic())
            self._wake()
        else:
            self._queue.delete(pod.metadata.uid)

    def _bound(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        before = self._state.placed(uid)
        seen = before is not None and not self._state.is_assumed(uid)
        after = self._state.set_pod(pod)
        assert after is not None
        if uid in self._queue:
            self._queue.delete(uid)
        if before is not None and seen and before.node_name == after.node_name:
            if before.revision != after.revision:
                for event in pod_changes(before, after):
                    self._tell(Happened(event, before, after))
        else:
            self._tell(Happened(_POD_ADDED, new=after))

    def _ended(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        before = self._state.placed(uid)
        promised = self._queue.nominations.node_of(uid)
        queued = self._queue.delete(uid)
        self._gone(uid)
        self._state.drop_pod(uid)
        if before is not None:
            self._tell(Happened(_POD_DELETED, old=before))
        elif promised and queued is not None:  # only nominated: its resources are free for pods that respected that
            left = queued.pod.placed_on(promised)
            self._tell(Happened(_POD_DELETED, old=left), at_most_priority=left.priority)

    # Reservations ------------------------------------------------------------------------------------------------

    def _reserve_intake(self, lister: LiveLister[Any]) -> ReserveIntake:
        return ReserveIntake(
            lister,
            self._state,
            self._queue,
            self._clock,
            schedulers=self._schedulers,
            gone=self._gone,
            wake=self._wake,
        )

    def latest(self, pod: PodInfo) -> Pod | None:
        """Return a pod that the queue knows, reserve pods included, as the watch last showed it."""
        if not pod.reserve:
            return self.pods.get(pod.namespace, pod.name)
        return self._reserves.latest(pod) if self._reserves is not None else None

    # Everything else ---------------------------------------------------------------------------------------------

    def _teller(self, lister: LiveLister[Any]) -> Callable[[Change[Any]], None]:
        kind = lister.informer.resource.kind
        events = {name: Event(kind, action) for name, action in _ACTIONS.items()}

        def tell(change: Change[Any]) -> None:
            gone = change.kind == "deleted"
            old, new = (change.object, None) if gone else (change.old, change.object)
            lister.changed(old, new)
            self._tell(Happened(events[change.kind], old, new))

        return tell


def _places_alike(old: Node, new: Node) -> bool:
    """Return whether no plugin can judge the two nodes differently; what `node_update_events` compares is not
    repeated.
    """
    return old.spec == new.spec and old.status.images == new.status.images and old.metadata.uid == new.metadata.uid
