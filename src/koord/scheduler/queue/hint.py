"""Decide whether an event is worth requeueing a pod for."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from enum import IntEnum
from typing import Literal

from koord.scheduler.framework.event import ADD, UPDATE, Event, Happened
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import Profile
from koord.scheduler.queue.entry import QueuedPod
from koord.scheduler.state.pod import PodInfo

_NODE_ADDED = Event("Node", ADD)
_TAINTED = (Event("Node", UPDATE, "taints"), Event("Node", UPDATE, "unschedulable"))


class Worth(IntEnum):
    """Say what to do with a pod after an event; the greater value wins."""

    NOTHING = 0
    AFTER_BACKOFF = 1
    AT_ONCE = 2


class Listener:
    """Hold a plugin of a profile that listens to an event; `key` names the two."""

    __slots__ = ("_blindly", "_plugin", "key", "name", "scheduler")

    def __init__(self, scheduler: str, plugin: Plugin, *, blindly: bool) -> None:
        self.scheduler = scheduler
        self.name = plugin.name
        self.key = (scheduler, plugin.name)
        self._plugin = plugin
        self._blindly = blindly

    def sees_hope(self, pod: PodInfo, happened: Happened) -> bool:
        """Return whether the event may make the pod fit, as far as this plugin is concerned."""
        return self._blindly or self._plugin.might_help(pod, happened)


def _hearing(plugin: Plugin, event: Event) -> Literal["yes", "blindly", "no"]:
    """Return how a plugin listens to an event.

    As in Kubernetes, a plugin that waits for new nodes also retries after any change of taints, without a hint. Nothing
    is won by that but a fresh message: the pod then says which taint keeps it away now.
    """
    if any(own.covers(event) for own in plugin.wakes_on):
        return "yes"
    if event in _TAINTED and _NODE_ADDED in plugin.wakes_on:
        directly = any(own.covers(part) for own in plugin.wakes_on for part in _TAINTED)
        return "no" if directly else "blindly"
    return "no"


class Hints:
    """Find the plugins that listen to an event, and ask their queueing hints."""
    def __init__(self, profiles: Sequence[Profile]) -> None:
        self._plugins = {p.scheduler_name: {plugin.name: plugin for plugin in p.plugins()} for p in profiles}
        self._listeners: dict[Event, tuple[Listener, ...]] = {}  # by event as it happens, filled as they come

    def listeners(self, event: Event) -> tuple[Listener, ...]:
        known = self._listeners.get(event)
        if known is None:
            known = self._listeners[event] = tuple(
                Listener(scheduler, plugin, blindly=hearing == "blindly")
                for scheduler, plugins in self._plugins.items()
                for plugin in plugins.values()
                if (hearing := _hearing(plugin, event)) != "no"
            )
        return known

    def kin(self, plugin: str, pod: PodInfo) -> Hashable:
        """Return a key that is equal for pods that get the same answer from this plugin's `queueing_hint`."""
        known = self._plugins[pod.scheduler].get(plugin)
        if known is None or known.scope.kind == "always":
            return pod.uid
        return (pod.shape.number, known.signature(pod))

    def worth(self, queued: QueuedPod, happened: Happened) -> Worth:
        """Return what the plugins that rejected this pod want done after an event."""
        best = Worth.NOTHING
        for listener in self.listeners(happened.event):
            if listener.scheduler != queued.pod.scheduler:
                continue
            waited_for = listener.name in queued.pending
            if not waited_for and listener.name not in queued.rejected:
                continue
            if not listener.sees_hope(queued.pod, happened):
                continue
            if waited_for:
                return Worth.AT_ONCE
            if not queued.pending:
                return Worth.AFTER_BACKOFF
            best = Worth.AFTER_BACKOFF  # a pending plugin may still say: at once
        return best

    def best(self, queued: QueuedPod, events: Iterable[Happened]) -> Worth:
        """Return the strongest strategy that any of these events calls for."""
        best = Worth.NOTHING
        most = Worth.AT_ONCE if queued.pending else Worth.AFTER_BACKOFF
        for happened in events:
            best = max(best, self.worth(queued, happened))
            if best is most:
                break
        return best
