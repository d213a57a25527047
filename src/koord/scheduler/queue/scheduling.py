"""The scheduling queue: one owner calls it, the time is an argument, and every pod is in exactly one part.

Whoever calls `on_event` has put the event into the cluster state before: a pod that wakes must see what woke it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from koord.scheduler.framework.event import Happened
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import Profile
from koord.scheduler.queue.backoff import Backoff, Settings, ends_at
from koord.scheduler.queue.change import differs, pod_changes
from koord.scheduler.queue.entry import NOBODY, Part, QueuedPod, Standing, standing
from koord.scheduler.queue.flight import Flights
from koord.scheduler.queue.gate import Gates
from koord.scheduler.queue.heap import Heap
from koord.scheduler.queue.hint import Hints, Worth
from koord.scheduler.queue.nomination import Nominations
from koord.scheduler.queue.sleeper import Sleepers
from koord.scheduler.queue.tally import (
    ATTEMPT_FAILED,
    BACKOFF_COMPLETE,
    FORCE_ACTIVATE,
    POD_ADD,
    POP_FROM_BACKOFF,
    UNSCHEDULABLE_TIMEOUT,
    Tally,
)
from koord.scheduler.queue.waking import whom_to_wake
from koord.scheduler.state.pod import PodInfo


class SchedulingQueue:
    """Hold all pods without a node in the active, back-off, unschedulable, gated and in-flight parts, as kube-
    scheduler does.
    """
    def __init__(self, profiles: Sequence[Profile], settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._sort = _one_sort(profiles)
        self._gates = Gates(profiles)
        self._hints = Hints(profiles)
        self._known: dict[str, QueuedPod] = {}  # by uid: everything below, flights included
        self._active: Heap[QueuedPod] = Heap()
        self._backoff = Backoff()
        self._asleep = Sleepers()  # unschedulable
        self._overdue: Heap[QueuedPod] = Heap()  # the same pods, longest sleeper first
        self._gated = Sleepers()
        self._flights = Flights()
        self._arrivals = 0
        self.nominations = Nominations()
        self.tally = Tally()

    # What the watch says -----------------------------------------------------------------------------------------

    def add(self, pod: PodInfo, now: float) -> None:
        """Add a pod without a node that one of the profiles is responsible for."""
        if pod.uid in self._known:
            self.update(pod, now)
            return
        if pod.node_name:
            return
        if not self._gates.guards(pod.scheduler):
            raise ValueError(f"{pod.key} is for scheduler {pod.scheduler!r}, which is none of the profiles here")
        flight = self._flights.get(pod.uid)
        if flight is not None:  # it was deleted and is back before its last attempt ended: that attempt goes on
            flight.gone = False
            flight.latest = pod
            flight.activated = True  # whatever it has missed, it is worth another look
            self._known[pod.uid] = flight.queued
            self._nominate_as_seen(None, pod)
            return
        self._arrivals += 1
        queued = self._known[pod.uid] = QueuedPod(pod, self._arrivals, now)
        self._nominate_as_seen(None, pod)
        self._let_in(queued, "active", POD_ADD, now)

    def update(self, pod: PodInfo, now: float) -> None:
        """Update a pod that still has no node; do not call this for assumed pods."""
        queued = self._known.get(pod.uid)
        if queued is None:
            self.add(pod, now)
            return
        flight = self._flights.get(pod.uid)
        old = flight.latest if flight is not None else queued.pod
        if pod.node_name or pod.scheduler != old.scheduler:
            self.delete(pod.uid)
            self.add(pod, now)
            return
        if pod.revision and pod.revision == old.revision:
            return
        changes = [Happened(event, old, pod) for event in pod_changes(old, pod)]
        if flight is not None:  # perhaps being bound already: its nomination is settled when it fails
            flight.latest = pod
            flight.changes += changes
            return
        self._nominate_as_seen(old, pod)
        queued.pod = pod
        if queued.part == "active":
            self._active.push(pod.uid, self._order(queued), queued)
        elif queued.part == "backoff":
            self._backoff.add(queued, self._sort.sort_key(pod, queued.since))
        elif queued.part == "gated":
            if differs(old, pod):
                self._wake(queued, Worth.AFTER_BACKOFF, changes[0].label, now)
        else:
            self._sleep(queued)
            for change in changes:
                worth = self._hints.worth(queued, change)
                if worth is not Worth.NOTHING:
                    self._wake(queued, worth, change.label, now)
                    break

    def delete(self, uid: str) -> QueuedPod | None:
        """Remove a pod that is deleted, bound or no longer ours; an attempt in flight must still end by itself."""
        self.nominations.drop(uid)
        queued = self._known.pop(uid, None)
        if queued is None:
            return None
        flight = self._flights.get(uid)
        if flight is not None:
            flight.gone = True
            flight.changes.clear()
            self._flights.stop_listening(uid)
        else:
            self._take_out(queued)
        self.tally.acquit(queued)
        return queued

    def happened(self, happened: Happened, now: float, *, at_most_priority: int | None = None, but: str = "") -> int:
        """Requeue the pods that the event may help; return how many. `but` is the UID of a pod that is left alone.

        `at_most_priority` is for resources of a nominated pod: pods above its priority never respected the nomination.
        """
        if not self._hints.listeners(happened.event):
            return 0
        self._flights.note(happened)
        awake = whom_to_wake(happened, self._hints, self._asleep, self._gated, at_most_priority)
        awake.pop(but, None)
        label = happened.label if awake else ""
        return sum(self._wake(queued, worth, label, now) for queued, worth in awake.values())

    # Attempts ----------------------------------------------------------------------------------------------------

    def pop(self, now: float) -> QueuedPod | None:
        """Return the next pod to try, or None when all that is left must wait."""
        self.flush(now)
        queued = self._active.pop()
        if queued is None and self._settings.pop_from_backoff:
            queued = self._backoff.pop_early()
            if queued is not None:
                self.tally.entered("active", POP_FROM_BACKOFF)
        return self._start(queued, now) if queued is not None else None

    def take(self, uid: str, now: float) -> QueuedPod | None:
        """Return the pod of that UID, wherever it is and whatever gates it; None if it is unknown or in flight."""
        queued = self._known.get(uid)
        if queued is None or queued.part == "in-flight":
            return None
        self._take_out(queued)
        return self._start(queued, now)

    def committed(self, uid: str) -> None:
        """Stop recording events for a pod that passed Permit: it can still fail, but no event has a part in that."""
        self._flights.stop_listening(uid)

    def done(self, uid: str) -> None:
        """End an attempt whose pod does not come back: it was bound, or is not to be scheduled at all."""
        if self._flights.end(uid) is not None:
            self._known.pop(uid, None)
            self.nominations.drop(uid)

    def failed(
        self,
        queued: QueuedPod,
        now: float,
        *,
        rejected: frozenset[str] = NOBODY,
        pending: frozenset[str] = NOBODY,
        message: str = "",
    ) -> Part | None:
        """End a failed attempt; return the part that the pod went to, or None if it was deleted meanwhile.

        With no plugin to blame it was an error (or there are no nodes at all): the pod is retried after a back-off.
        """
        flight = self._flights.get(queued.uid)
        if flight is None or flight.queued is not queued:
            return None
        if flight.gone:
            self._flights.end(queued.uid)
            return None
        if queued.pod is not flight.latest:
            self._settle_promise(queued.pod, flight.latest)
            queued.pod = flight.latest
        self.tally.blame(queued, rejected | pending)
        queued.rejected, queued.pending, queued.message = rejected, pending, message
        queued.since = now
        if rejected or pending:
            queued.refusals += 1
            queued.errors = 0
            worth = self._hints.best(queued, self._flights.missed(flight))
            if flight.activated:
                worth = max(worth, Worth.AFTER_BACKOFF)
        else:
            queued.errors += 1
            worth = Worth.AFTER_BACKOFF
        queued.until = ends_at(now, queued.errors or queued.refusals, self._settings)
        self._flights.end(queued.uid)
        if worth is Worth.NOTHING:
            self._enter(queued, "unschedulable", ATTEMPT_FAILED)
        else:
            self._let_in(queued, self._destination(queued, worth, now), ATTEMPT_FAILED, now)
        return queued.part

    def activate(self, uids: Iterable[str], now: float) -> int:
        """Move these pods to the active part despite their back-off; pods in flight are requeued if they fail."""
        moved = 0
        for uid in uids:
            queued = self._known.get(uid)
            if queued is None or queued.part == "active":
                continue
            flight = self._flights.get(uid)
            if flight is not None:
                flight.activated = True
                continue
            checked = queued.part == "backoff" and self._settings.pop_from_backoff
            self._take_out(queued)
            moved += self._let_in(queued, "active", FORCE_ACTIVATE, now, checked=checked)
        return moved

    def nominate(self, uid: str, node: str) -> None:
        """Nominate the pod to a node before its status shows it, or remove the nomination with an empty name.

        Remove the nomination of a pod that is assumed: it holds its resources for real.
        """
        queued = self._known.get(uid)
        if queued is None:
            return
        flight = self._flights.get(uid)
        self.nominations.put(flight.latest if flight is not None else queued.pod, node)

    def nominated_on(self, node: str) -> tuple[PodInfo, ...]:
        return self.nominations.on(node)

    # Time --------------------------------------------------------------------------------------------------------

    def flush(self, now: float) -> int:
        """Move pods whose back-off is over, and those that were unschedulable so long that an event may have been
        missed.
        """
        moved = 0
        for queued in self._backoff.release(now):
            moved += self._let_in(queued, "active", BACKOFF_COMPLETE, now, checked=self._settings.pop_from_backoff)
        while (head := self._overdue.peek()) is not None and head.since + self._settings.max_unschedulable_s <= now:
            moved += self._wake(head, Worth.AFTER_BACKOFF, UNSCHEDULABLE_TIMEOUT, now)
        return moved

    def next_wakeup(self) -> float | None:
        """Return when `flush` will next have something to do."""
        end, head = self._backoff.next_end(), self._overdue.peek()
        if head is None:
            return end
        due = head.since + self._settings.max_unschedulable_s
        return due if end is None or due < end else end

    # Looking in --------------------------------------------------------------------------------------------------

    def state_of(self, uid: str, now: float) -> Standing | None:
        queued = self._known.get(uid)
        return standing(queued, now, self.nominations.node_of(uid)) if queued is not None else None

    def ahead_of(self, uid: str) -> int | None:
        """Count the active pods before this one; None if it is not active. Looks at all of them."""
        queued = self._known.get(uid)
        if queued is None or queued.part != "active":
            return None
        mine = self._order(queued)
        return sum(1 for other in self._known.values() if other.part == "active" and self._order(other) < mine)

    def counts(self) -> dict[str, int]:
        """Return `scheduler_pending_pods` by queue."""
        return {
            "active": len(self._active),
            "backoff": len(self._backoff),
            "unschedulable": len(self._asleep),
            "gated": len(self._gated),
        }

    def in_flight_events(self) -> Counter[str]:
        """Return `scheduler_inflight_events` by event."""
        return self._flights.labels()

    def pods(self) -> Iterable[QueuedPod]:
        """Return all known pods in order of arrival."""
        return self._known.values()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    # Moving ------------------------------------------------------------------------------------------------------

    def _wake(self, queued: QueuedPod, worth: Worth, label: str, now: float) -> bool:
        self._take_out(queued)
        return self._let_in(queued, self._destination(queued, worth, now), label, now)

    def _destination(self, queued: QueuedPod, worth: Worth, now: float) -> Part:
        return "backoff" if worth is Worth.AFTER_BACKOFF and now < queued.until else "active"

    def _let_in(self, queued: QueuedPod, part: Part, label: str, now: float, *, checked: bool = False) -> bool:
        """Put the pod into a part that pods are popped from if PreEnqueue lets it; return False if it is gated
        instead.
        """
        poppable = part == "active" or self._settings.pop_from_backoff
        if poppable and not checked and not self._passes_gates(queued):
            self._enter(queued, "gated", label)
            return False
        if part == "active" and queued.first_attempt is None:
            queued.first_attempt = now
        self._enter(queued, part, label)
        return True

    def _passes_gates(self, queued: QueuedPod) -> bool:
        held = self._gates.holding(queued)
        if held is None:
            queued.gate = queued.gate_reason = ""
            return True
        queued.gate, queued.gate_reason = held[0], held[1].text
        self.tally.blame(queued, frozenset((queued.gate,)))
        queued.rejected |= {queued.gate}
        return False

    def _enter(self, queued: QueuedPod, part: Part, label: str) -> None:
        queued.part = part
        queued.moved_by = label
        if part == "active":
            self._active.push(queued.uid, self._order(queued), queued)
        elif part == "backoff":
            self._backoff.add(queued, self._sort.sort_key(queued.pod, queued.since))
        elif part == "gated":
            self._sleep_gated(queued)
        else:
            self._sleep(queued)
        self.tally.entered(part, label)

    def _sleep(self, queued: QueuedPod) -> None:
        pod, kin = queued.pod, self._hints.kin
        self._asleep.add(queued, [((pod.scheduler, name), kin(name, pod)) for name in sorted(queued.rejectors)])
        self._overdue.push(queued.uid, (queued.since, queued.number), queued)

    def _sleep_gated(self, queued: QueuedPod) -> None:
        pod, kin = queued.pod, self._hints.kin
        alike = tuple((name, kin(name, pod)) for name in sorted(queued.rejectors))
        self._gated.add(queued, [((pod.scheduler, queued.gate), alike)])

    def _take_out(self, queued: QueuedPod) -> None:
        uid = queued.uid
        if queued.part == "active":
            self._active.remove(uid)
        elif queued.part == "backoff":
            self._backoff.remove(uid)
        elif queued.part == "gated":
            self._gated.remove(uid)
        elif queued.part == "unschedulable":
            self._asleep.remove(uid)
            self._overdue.remove(uid)

    def _start(self, queued: QueuedPod, now: float) -> QueuedPod:
        queued.part = "in-flight"
        queued.attempts += 1
        if queued.first_attempt is None:
            queued.first_attempt = now
        self.tally.acquit(queued)
        queued.rejected = queued.pending = NOBODY
        queued.gate = queued.gate_reason = ""
        self._flights.start(queued)
        return queued

    def _nominate_as_seen(self, old: PodInfo | None, new: PodInfo) -> None:
        if new.gates:  # it cannot use any room before its gates are gone
            self.nominations.drop(new.uid)
        else:
            self.nominations.follow(old, new)

    def _settle_promise(self, popped: PodInfo, latest: PodInfo) -> None:
        """Follow a status that changed during the attempt; otherwise keep the nomination made or removed meanwhile."""
        if popped.nominated_node != latest.nominated_node:
            self.nominations.put(latest, latest.nominated_node)
        else:
            self.nominations.put(latest, self.nominations.node_of(latest.uid))

    def _order(self, queued: QueuedPod) -> tuple[Any, int]:
        return (self._sort.sort_key(queued.pod, queued.since), queued.number)


def _one_sort(profiles: Sequence[Profile]) -> Plugin:
    """Return the queue sort plugin that all profiles share, since they share one queue."""
    sorts = {plugin.name: plugin for profile in profiles for plugin in profile.at("sort_key")[:1]}
    if len(sorts) != 1:
        raise ValueError(f"the profiles must have one queue sort plugin in common, these have {sorted(sorts)}")
    return next(iter(sorts.values()))
