"""Ask plugins about queued pods: PreEnqueue gates, and queueing hints that decide which pods an event requeues.

Unschedulable and gated pods are indexed by the plugins that rejected them, so that an event that concerns none of them
costs nothing. Pods that a plugin cannot tell apart are kept together, so that it is asked once for all of them. Which
pods to requeue is decided over all pods before any is moved, because moving changes the index.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Literal

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.decision import EXTENDER
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.runtime import run_pre_enqueue
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.queue.queued_pod import QueuedPod

RejectingPlugin = tuple[str, str]  # profile, plugin
EquivalentPods = dict[str, QueuedPod]  # by uid, in the order in which they went to sleep


class UnschedulablePods:
    """Index pods by the plugins that rejected them, and by what those plugins treat as equal."""

    def __init__(self) -> None:
        self._keys_by_uid: dict[
            str, tuple[tuple[RejectingPlugin, Hashable], ...]
        ] = {}  # by uid: where to find it below
        self._classes: dict[RejectingPlugin, dict[Hashable, EquivalentPods]] = {}

    def add(self, queued: QueuedPod, keys: Iterable[tuple[RejectingPlugin, Hashable]]) -> None:
        uid = queued.uid
        self.remove(uid)
        self._keys_by_uid[uid] = held = tuple(keys)
        for rejecting_plugin, equivalence_key in held:
            self._classes.setdefault(rejecting_plugin, {}).setdefault(equivalence_key, {})[uid] = queued

    def remove(self, uid: str) -> bool:
        keys = self._keys_by_uid.pop(uid, None)
        if keys is None:
            return False
        for rejecting_plugin, equivalence_key in keys:
            groups = self._classes[rejecting_plugin]
            group = groups[equivalence_key]
            del group[uid]
            if not group:
                del groups[equivalence_key]
                if not groups:
                    del self._classes[rejecting_plugin]
        return True

    def rejected_by(self, rejecting_plugin: RejectingPlugin) -> Mapping[Hashable, EquivalentPods]:
        return self._classes.get(rejecting_plugin, {})

    def __len__(self) -> int:
        return len(self._keys_by_uid)


class PreEnqueueGates:
    """Run the PreEnqueue plugins of all profiles."""

    def __init__(self, profiles: Sequence[SchedulerProfile]) -> None:
        self._profiles = {profile.scheduler_name: profile for profile in profiles}

    def serves(self, scheduler: str) -> bool:
        return scheduler in self._profiles

    def first_rejection(self, queued: QueuedPod) -> tuple[str, Reject] | None:
        """Return the first plugin that gates the pod; the last one is asked first, as likely it still does."""
        return run_pre_enqueue(self._profiles[queued.pod.scheduler], queued.pod, queued.gate)


_NODE_ADDED = ClusterEvent("Node", ADD)
_TAINT_EVENTS = (ClusterEvent("Node", UPDATE, "taints"), ClusterEvent("Node", UPDATE, "unschedulable"))


class QueueingStrategy(IntEnum):
    """Say what to do with a pod after an event; the greater value wins."""

    SKIP = 0
    AFTER_BACKOFF = 1
    IMMEDIATELY = 2


HintTimer = Callable[[Plugin, PodInfo, ObjectEvent], bool]  # asks the queueing hint of a plugin and times it


class EventListener:
    """Hold a plugin of a profile that listens to an event; `key` names the two."""

    __slots__ = ("_always", "_plugin", "_timer", "key", "name", "scheduler")

    def __init__(self, scheduler: str, plugin: Plugin, *, always: bool, timer: HintTimer | None = None) -> None:
        self._timer = timer
        self.scheduler = scheduler
        self.name = plugin.name
        self.key = (scheduler, plugin.name)
        self._plugin = plugin
        self._always = always

    def may_help(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        """Return whether the event may make the pod fit, as far as this plugin is concerned."""
        if self._always:
            return True
        if self._timer is not None:
            return self._timer(self._plugin, pod, object_event)
        return self._plugin.queueing_hint(pod, object_event)


def _listening_mode(plugin: Plugin, event: ClusterEvent) -> Literal["yes", "blindly", "no"]:
    """Return how a plugin listens to an event.

    As in Kubernetes, a plugin that waits for new nodes also retries after any change of taints, without a hint. Nothing
    is won by that but a fresh message: the pod then says which taint keeps it away now.
    """
    if any(own.covers(event) for own in plugin.wakes_on):
        return "yes"
    if event in _TAINT_EVENTS and _NODE_ADDED in plugin.wakes_on:
        directly = any(own.covers(part) for own in plugin.wakes_on for part in _TAINT_EVENTS)
        return "no" if directly else "blindly"
    return "no"


class _ExtenderRejection(Plugin):
    """Stand for extenders in the queue. They cannot say what they wait for: any event may help."""

    name = EXTENDER


class QueueingHints:
    """Find the plugins that listen to an event, and ask their queueing hints."""

    def __init__(
        self, profiles: Sequence[SchedulerProfile], *, with_extenders: bool = False, timer: HintTimer | None = None
    ) -> None:
        self._timer = timer
        self._extender_listeners = tuple(
            EventListener(p.scheduler_name, _ExtenderRejection(), always=True) for p in profiles if with_extenders
        )
        self._plugins = {p.scheduler_name: {plugin.name: plugin for plugin in p.plugins()} for p in profiles}
        self._listeners: dict[
            ClusterEvent, tuple[EventListener, ...]
        ] = {}  # by event as it happens, filled as they come

    def listeners(self, event: ClusterEvent) -> tuple[EventListener, ...]:
        known = self._listeners.get(event)
        if known is None:
            known = self._listeners[event] = (
                tuple(
                    EventListener(scheduler, plugin, always=mode == "blindly", timer=self._timer)
                    for scheduler, plugins in self._plugins.items()
                    for plugin in plugins.values()
                    if (mode := _listening_mode(plugin, event)) != "no"
                )
                + self._extender_listeners
            )
        return known

    def equivalence_key(self, plugin: str, pod: PodInfo) -> Hashable:
        """Return a key that is equal for pods that get the same answer from this plugin's `queueing_hint`."""
        known = self._plugins[pod.scheduler].get(plugin)
        if known is None or known.scope.kind == "always":
            return pod.uid
        return (pod.shape.number, known.signature(pod))

    def strategy_for(self, queued: QueuedPod, object_event: ObjectEvent) -> QueueingStrategy:
        """Return what the plugins that rejected this pod want done after an event."""
        best = QueueingStrategy.SKIP
        for listener in self.listeners(object_event.event):
            if listener.scheduler != queued.pod.scheduler:
                continue
            waited_for = listener.name in queued.pending
            if not waited_for and listener.name not in queued.rejected:
                continue
            if not listener.may_help(queued.pod, object_event):
                continue
            if waited_for:
                return QueueingStrategy.IMMEDIATELY
            if not queued.pending:
                return QueueingStrategy.AFTER_BACKOFF
            best = QueueingStrategy.AFTER_BACKOFF  # a pending plugin may still say: at once
        return best

    def best_strategy(self, queued: QueuedPod, events: Iterable[ObjectEvent]) -> QueueingStrategy:
        """Return the strongest strategy that any of these events calls for."""
        best = QueueingStrategy.SKIP
        most = QueueingStrategy.IMMEDIATELY if queued.pending else QueueingStrategy.AFTER_BACKOFF
        for object_event in events:
            best = max(best, self.strategy_for(queued, object_event))
            if best is most:
                break
        return best


PodsToRequeue = dict[str, tuple[QueuedPod, QueueingStrategy]]  # by uid


def pods_to_requeue(
    object_event: ObjectEvent,
    hints: QueueingHints,
    unschedulable: UnschedulablePods,
    gated: UnschedulablePods,
    at_most_priority: int | None = None,
) -> PodsToRequeue:
    """Return the pods that an event requeues, with their strategies."""
    to_requeue: PodsToRequeue = {}
    for listener in hints.listeners(object_event.event):
        for equivalents, one in _eligible_classes(unschedulable, listener.key, at_most_priority):
            if listener.may_help(one.pod, object_event):
                _add_with_strategy(equivalents, listener, to_requeue)
        # A gate is looked at again when its own plugin listens and anyone who ever refused the pod sees hope.
        for equivalents, one in _eligible_classes(gated, listener.key, at_most_priority):
            strategy = hints.strategy_for(one, object_event)
            if strategy is not QueueingStrategy.SKIP:
                to_requeue.update((queued.uid, (queued, strategy)) for queued in equivalents.values())
    return to_requeue


def _eligible_classes(
    pods: UnschedulablePods, rejecting_plugin: RejectingPlugin, at_most_priority: int | None
) -> Iterator[tuple[EquivalentPods, QueuedPod]]:
    """Yield each group of equivalent pods with one that represents it; priority is part of the shape."""
    for equivalents in pods.rejected_by(rejecting_plugin).values():
        one = next(iter(equivalents.values()))
        if at_most_priority is None or one.pod.priority <= at_most_priority:
            yield equivalents, one


def _add_with_strategy(equivalents: EquivalentPods, listener: EventListener, to_requeue: PodsToRequeue) -> None:
    for queued in equivalents.values():
        strategy = QueueingStrategy.IMMEDIATELY if listener.name in queued.pending else QueueingStrategy.AFTER_BACKOFF
        known = to_requeue.get(queued.uid)
        if known is None or strategy > known[1]:
            to_requeue[queued.uid] = (queued, strategy)
