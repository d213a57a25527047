"""The scheduling queue: one owner calls it, the time is an argument, and every pod is in exactly one part.

Whoever calls `on_event` has put the event into the cluster state before: a pod that wakes must see what woke it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ObjectEvent, may_open_gate, pod_update_events
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.queue.backoff import ActiveQueue, BackoffQueue, KeyedHeap, QueueSettings, backoff_end
from koord.scheduler.queue.nominations import Nominations
from koord.scheduler.queue.queued_pod import (
    ATTEMPT_FAILED,
    BACKOFF_COMPLETE,
    FORCE_ACTIVATE,
    NO_PLUGINS,
    POD_ADD,
    POP_FROM_BACKOFF,
    UNSCHEDULABLE_TIMEOUT,
    InFlightPods,
    QueueCounters,
    QueuedPod,
    QueuedPodStatus,
    QueuePart,
    queued_pod_status,
)
from koord.scheduler.queue.queueing_hints import (
    HintTimer,
    PreEnqueueGates,
    QueueingHints,
    QueueingStrategy,
    UnschedulablePods,
    pods_to_requeue,
)


class QueueObserver(Protocol):
    """Be told which pods the queue gets and loses, and which it holds back."""

    def pod_added(self, pod: PodInfo) -> None: ...

    def pod_checked(self, pod: PodInfo, gate: str) -> None:
        """Hear that PreEnqueue ran; `gate` is the plugin that holds the pod, empty if none does."""

    def pod_removed(self, uid: str) -> None:
        """Hear that a pod was deleted, bound by another or given to one; not that its own attempt succeeded."""


class SchedulingQueue:
    """Hold all pods without a node: active, backing off, unschedulable, gated and in flight."""

    def __init__(
        self,
        profiles: Sequence[SchedulerProfile],
        settings: QueueSettings | None = None,
        is_extended: Callable[[PodInfo], bool] | None = None,
        hint_timer: HintTimer | None = None,
    ) -> None:
        """Create an empty queue. `is_extended` says which pods extenders are asked about, where there are any.

        `hint_timer` asks plugins their queueing hints in place of the queue.
        """
        self._settings = settings or QueueSettings()
        self._queue_sort = _common_queue_sort(profiles)
        self._gates = PreEnqueueGates(profiles)
        self._hints = QueueingHints(profiles, with_extenders=is_extended is not None, timer=hint_timer)
        self._known: dict[str, QueuedPod] = {}  # by uid: everything below, flights included
        self._active = ActiveQueue(is_extended)
        self._backoff = BackoffQueue()
        self._unschedulable = UnschedulablePods()  # unschedulable
        self._overdue: KeyedHeap[QueuedPod] = KeyedHeap()  # the same pods, the longest unschedulable first
        self._gated = UnschedulablePods()
        self._in_flight = InFlightPods()
        self._arrivals = 0
        self.nominations = Nominations()
        self.counters = QueueCounters()
        self.observer: QueueObserver | None = None

    # What the watch says -----------------------------------------------------------------------------------------

    def add(self, pod: PodInfo, now: float) -> None:
        """Add a pod without a node that one of the profiles is responsible for."""
        if pod.uid in self._known:
            self.update(pod, now)
            return
        if pod.node_name:
            return
        if not self._gates.serves(pod.scheduler):
            raise ValueError(f"{pod.key} is for scheduler {pod.scheduler!r}, which is none of the profiles here")
        in_flight = self._in_flight.get(pod.uid)
        if in_flight is not None:  # it was deleted and is back before its last attempt ended: that attempt goes on
            in_flight.gone = False
            in_flight.latest = pod
            in_flight.activated = True  # whatever it has missed, it is worth another look
            self._known[pod.uid] = in_flight.queued
            self._nominate_as_seen(None, pod)
            return
        self._arrivals += 1
        queued = self._known[pod.uid] = QueuedPod(pod, self._arrivals, now)
        self._nominate_as_seen(None, pod)
        if self.observer is not None:
            self.observer.pod_added(pod)
        self._enqueue(queued, "active", POD_ADD, now)

    def update(self, pod: PodInfo, now: float) -> None:
        """Update a pod that still has no node; do not call this for assumed pods."""
        queued = self._known.get(pod.uid)
        if queued is None:
            self.add(pod, now)
            return
        in_flight = self._in_flight.get(pod.uid)
        old = in_flight.latest if in_flight is not None else queued.pod
        if pod.node_name or pod.scheduler != old.scheduler:
            self.delete(pod.uid)
            self.add(pod, now)
            return
        if pod.resource_version and pod.resource_version == old.resource_version:
            return
        changes = [ObjectEvent(event, old, pod) for event in pod_update_events(old, pod)]
        if in_flight is not None:  # perhaps being bound already: its nomination is settled when it fails
            in_flight.latest = pod
            in_flight.changes += changes
            return
        self._nominate_as_seen(old, pod)
        queued.pod = pod
        if queued.part == "active":
            self._active.push(queued, self._sort_key(queued))
        elif queued.part == "backoff":
            self._backoff.add(queued, self._queue_sort.sort_key(pod, queued.since))
        elif queued.part == "gated":
            if may_open_gate(old, pod):
                self._requeue(queued, QueueingStrategy.AFTER_BACKOFF, changes[0].metric_label, now)
        else:
            self._add_unschedulable(queued)
            for change in changes:
                strategy = self._hints.strategy_for(queued, change)
                if strategy is not QueueingStrategy.SKIP:
                    self._requeue(queued, strategy, change.metric_label, now)
                    break

    def delete(self, uid: str) -> QueuedPod | None:
        """Remove a pod that is deleted, bound or no longer ours; an attempt in flight must still end by itself."""
        self.nominations.remove(uid)
        queued = self._known.pop(uid, None)
        if queued is None:
            return None
        in_flight = self._in_flight.get(uid)
        if in_flight is not None:
            in_flight.gone = True
            in_flight.changes.clear()
            self._in_flight.stop_recording(uid)
        else:
            self._remove(queued)
        self.counters.clear_rejectors(queued)
        if self.observer is not None:
            self.observer.pod_removed(uid)
        return queued

    def on_event(
        self, object_event: ObjectEvent, now: float, *, at_most_priority: int | None = None, except_uid: str = ""
    ) -> int:
        """Requeue the pods that the event may help; return how many. `except_uid` is the UID of a pod that is left
        alone.

        `at_most_priority` is for resources of a nominated pod: pods above its priority never respected the nomination.
        """
        if not self._hints.listeners(object_event.event):
            return 0
        self._in_flight.record_event(object_event)
        if not self._unschedulable and not self._gated:
            return 0  # as for most events: each node of the first list is one, and so is each binding
        to_requeue = pods_to_requeue(object_event, self._hints, self._unschedulable, self._gated, at_most_priority)
        to_requeue.pop(except_uid, None)
        label = object_event.metric_label if to_requeue else ""
        return sum(self._requeue(queued, strategy, label, now) for queued, strategy in to_requeue.values())

    # Attempts ----------------------------------------------------------------------------------------------------

    def pop(self, now: float, *, hold_extended: bool = False) -> QueuedPod | None:
        """Return the next pod to try, or None when all that is left must wait.

        With `hold_extended` the pods that extenders are asked about are left where they are.
        """
        self.flush(now)
        queued = self._active.pop(hold_extended=hold_extended)
        if queued is None and self._settings.pop_from_backoff:
            queued = self._pop_early(hold_extended=hold_extended)
        return self._start(queued, now) if queued is not None else None

    def _pop_early(self, *, hold_extended: bool) -> QueuedPod | None:
        """Return a pod before its back-off is over; a pod that is held back waits among the active ones from now on."""
        while (queued := self._backoff.pop_early()) is not None:
            self.counters.entered("active", POP_FROM_BACKOFF)
            if not (hold_extended and self._active.holds_back(queued)):
                return queued
            queued.part = "active"
            self._active.push(queued, self._sort_key(queued))
        return None

    def take(self, uid: str, now: float) -> QueuedPod | None:
        """Return the pod of that UID, wherever it is and whatever gates it; None if it is unknown or in flight."""
        queued = self._known.get(uid)
        if queued is None or queued.part == "in-flight":
            return None
        self._remove(queued)
        return self._start(queued, now)

    def committed(self, uid: str) -> None:
        """Stop recording events for a pod that passed Permit: it can still fail, but no event has a part in that."""
        self._in_flight.stop_recording(uid)

    def done(self, uid: str) -> None:
        """End an attempt whose pod does not come back: it was bound, or is not to be scheduled at all."""
        if self._in_flight.end(uid) is not None:
            self._known.pop(uid, None)
            self.nominations.remove(uid)

    def attempt_failed(
        self,
        queued: QueuedPod,
        now: float,
        *,
        rejected: frozenset[str] = NO_PLUGINS,
        pending: frozenset[str] = NO_PLUGINS,
        message: str = "",
    ) -> QueuePart | None:
        """End a failed attempt; return the part that the pod went to, or None if it was deleted meanwhile.

        With no plugin to blame it was an error (or there are no nodes at all): the pod is retried after a back-off.
        """
        in_flight = self._in_flight.get(queued.uid)
        if in_flight is None or in_flight.queued is not queued:
            return None
        if in_flight.gone:
            self._in_flight.end(queued.uid)
            return None
        if queued.pod is not in_flight.latest:
            self._settle_nomination(queued.pod, in_flight.latest)
            queued.pod = in_flight.latest
        self.counters.add_rejectors(queued, rejected | pending)
        queued.rejected, queued.pending, queued.message = rejected, pending, message
        queued.since = now
        if rejected or pending:
            queued.refusals += 1
            queued.errors = 0
            strategy = self._hints.best_strategy(queued, self._in_flight.events_since_start(in_flight))
            if in_flight.activated:
                strategy = max(strategy, QueueingStrategy.AFTER_BACKOFF)
        else:
            queued.errors += 1
            strategy = QueueingStrategy.AFTER_BACKOFF
        queued.until = backoff_end(now, queued.errors or queued.refusals, self._settings)
        self._in_flight.end(queued.uid)
        if strategy is QueueingStrategy.SKIP:
            self._enter(queued, "unschedulable", ATTEMPT_FAILED)
        else:
            self._enqueue(queued, self._destination(queued, strategy, now), ATTEMPT_FAILED, now)
        return queued.part

    def activate(self, uids: Iterable[str], now: float) -> int:
        """Move these pods to the active part despite their back-off; pods in flight are requeued if they fail."""
        moved = 0
        for uid in uids:
            queued = self._known.get(uid)
            if queued is None or queued.part == "active":
                continue
            in_flight = self._in_flight.get(uid)
            if in_flight is not None:
                in_flight.activated = True
                continue
            checked = queued.part == "backoff" and self._settings.pop_from_backoff
            self._remove(queued)
            moved += self._enqueue(queued, "active", FORCE_ACTIVATE, now, checked=checked)
        return moved

    def nominate(self, uid: str, node: str) -> None:
        """Nominate the pod to a node before its status shows it, or remove the nomination with an empty name.

        Remove the nomination of a pod that is assumed: it holds its resources for real.
        """
        queued = self._known.get(uid)
        if queued is None:
            return
        in_flight = self._in_flight.get(uid)
        self.nominations.nominate(in_flight.latest if in_flight is not None else queued.pod, node)

    def flush(self, now: float) -> int:
        """Move pods whose back-off is over, and those unschedulable so long that an event may have been missed."""
        moved = 0
        for queued in self._backoff.release(now):
            moved += self._enqueue(queued, "active", BACKOFF_COMPLETE, now, checked=self._settings.pop_from_backoff)
        while (head := self._overdue.peek()) is not None and head.since + self._settings.max_unschedulable_s <= now:
            moved += self._requeue(head, QueueingStrategy.AFTER_BACKOFF, UNSCHEDULABLE_TIMEOUT, now)
        return moved

    def next_wakeup(self) -> float | None:
        """Return when `flush` will next have something to do."""
        end, head = self._backoff.next_end(), self._overdue.peek()
        if head is None:
            return end
        due = head.since + self._settings.max_unschedulable_s
        return due if end is None or due < end else end

    # Looking in --------------------------------------------------------------------------------------------------

    def status_of(self, uid: str, now: float) -> QueuedPodStatus | None:
        queued = self._known.get(uid)
        return queued_pod_status(queued, now, self.nominations.node_of(uid)) if queued is not None else None

    def ahead_of(self, uid: str) -> int | None:
        """Count the active pods before this one; None if it is not active. Looks at all of them."""
        queued = self._known.get(uid)
        if queued is None or queued.part != "active":
            return None
        mine = self._sort_key(queued)
        return sum(1 for other in self._known.values() if other.part == "active" and self._sort_key(other) < mine)

    def counts(self) -> dict[str, int]:
        """Return `scheduler_pending_pods` by queue."""
        return {
            "active": len(self._active),
            "backoff": len(self._backoff),
            "unschedulable": len(self._unschedulable),
            "gated": len(self._gated),
        }

    def in_flight_events(self) -> Counter[str]:
        """Return `scheduler_inflight_events` by event."""
        return self._in_flight.event_counts()

    def pods(self) -> Iterable[QueuedPod]:
        """Return all known pods in order of arrival."""
        return self._known.values()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    # Moving ------------------------------------------------------------------------------------------------------

    def _requeue(self, queued: QueuedPod, strategy: QueueingStrategy, label: str, now: float) -> bool:
        self._remove(queued)
        return self._enqueue(queued, self._destination(queued, strategy, now), label, now)

    def _destination(self, queued: QueuedPod, strategy: QueueingStrategy, now: float) -> QueuePart:
        return "backoff" if strategy is QueueingStrategy.AFTER_BACKOFF and now < queued.until else "active"

    def _enqueue(self, queued: QueuedPod, part: QueuePart, label: str, now: float, *, checked: bool = False) -> bool:
        """Put the pod into a part that pods are popped from if PreEnqueue lets it; return False if it is gated."""
        poppable = part == "active" or self._settings.pop_from_backoff
        if poppable and not checked and not self._passes_gates(queued):
            self._enter(queued, "gated", label)
            return False
        if part == "active" and queued.first_attempt is None:
            queued.first_attempt = now
        self._enter(queued, part, label)
        return True

    def _passes_gates(self, queued: QueuedPod) -> bool:
        held = self._gates.first_rejection(queued)
        if self.observer is not None:
            self.observer.pod_checked(queued.pod, "" if held is None else held[0])
        if held is None:
            queued.gate = queued.gate_reason = ""
            return True
        queued.gate, queued.gate_reason = held[0], held[1].text
        self.counters.add_rejectors(queued, frozenset((queued.gate,)))
        queued.rejected |= {queued.gate}
        return False

    def _enter(self, queued: QueuedPod, part: QueuePart, label: str) -> None:
        queued.part = part
        queued.moved_by = label
        if part == "active":
            self._active.push(queued, self._sort_key(queued))
        elif part == "backoff":
            self._backoff.add(queued, self._queue_sort.sort_key(queued.pod, queued.since))
        elif part == "gated":
            self._add_gated(queued)
        else:
            self._add_unschedulable(queued)
        self.counters.entered(part, label)

    def _add_unschedulable(self, queued: QueuedPod) -> None:
        pod, equivalence_key = queued.pod, self._hints.equivalence_key
        self._unschedulable.add(
            queued, [((pod.scheduler, name), equivalence_key(name, pod)) for name in sorted(queued.rejectors)]
        )
        self._overdue.push(queued.uid, (queued.since, queued.number), queued)

    def _add_gated(self, queued: QueuedPod) -> None:
        pod, equivalence_key = queued.pod, self._hints.equivalence_key
        equivalence_keys = tuple((name, equivalence_key(name, pod)) for name in sorted(queued.rejectors))
        self._gated.add(queued, [((pod.scheduler, queued.gate), equivalence_keys)])

    def _remove(self, queued: QueuedPod) -> None:
        uid = queued.uid
        if queued.part == "active":
            self._active.remove(uid)
        elif queued.part == "backoff":
            self._backoff.remove(uid)
        elif queued.part == "gated":
            self._gated.remove(uid)
        elif queued.part == "unschedulable":
            self._unschedulable.remove(uid)
            self._overdue.remove(uid)

    def _start(self, queued: QueuedPod, now: float) -> QueuedPod:
        queued.part = "in-flight"
        queued.attempts += 1
        if queued.first_attempt is None:
            queued.first_attempt = now
        self.counters.clear_rejectors(queued)
        queued.rejected = queued.pending = NO_PLUGINS
        queued.gate = queued.gate_reason = ""
        self._in_flight.start(queued)
        return queued

    def _nominate_as_seen(self, old: PodInfo | None, new: PodInfo) -> None:
        if new.gates:  # it cannot use any room before its gates are gone
            self.nominations.remove(new.uid)
        else:
            self.nominations.update_from_status(old, new)

    def _settle_nomination(self, popped: PodInfo, latest: PodInfo) -> None:
        """Follow a status that changed during the attempt; otherwise keep the nomination made or removed meanwhile."""
        if popped.nominated_node != latest.nominated_node:
            self.nominations.nominate(latest, latest.nominated_node)
        else:
            self.nominations.nominate(latest, self.nominations.node_of(latest.uid))

    def _sort_key(self, queued: QueuedPod) -> tuple[Any, int]:
        return (self._queue_sort.sort_key(queued.pod, queued.since), queued.number)


def _common_queue_sort(profiles: Sequence[SchedulerProfile]) -> Plugin:
    """Return the queue sort plugin that all profiles share, since they share one queue."""
    sorts = {plugin.name: plugin for profile in profiles for plugin in profile.plugins_at(Plugin.sort_key)[:1]}
    if len(sorts) != 1:
        raise ValueError(f"the profiles must have one queue sort plugin in common, these have {sorted(sorts)}")
    return next(iter(sorts.values()))
