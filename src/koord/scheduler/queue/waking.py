"""Decide which pods an event requeues."""

from __future__ import annotations

from collections.abc import Iterator

from koord.scheduler.framework.event import Happened
from koord.scheduler.queue.entry import QueuedPod
from koord.scheduler.queue.hint import Hints, Listener, Worth
from koord.scheduler.queue.sleeper import Kin, Refuser, Sleepers

Awake = dict[str, tuple[QueuedPod, Worth]]  # by uid


def whom_to_wake(
    happened: Happened,
    hints: Hints,
    asleep: Sleepers,
    gated: Sleepers,
    at_most_priority: int | None = None,
) -> Awake:
    """Return the pods that an event requeues, with their strategies."""
    awake: Awake = {}
    for listener in hints.listeners(happened.event):
        for kin, one in _eligible(asleep, listener.key, at_most_priority):
            if listener.sees_hope(one.pod, happened):
                _wake(kin, listener, awake)
        # A gate is looked at again when its own plugin listens and anyone who ever refused the pod sees hope.
        for kin, one in _eligible(gated, listener.key, at_most_priority):
            worth = hints.worth(one, happened)
            if worth is not Worth.NOTHING:
                awake.update((queued.uid, (queued, worth)) for queued in kin.values())
    return awake


def _eligible(sleepers: Sleepers, refuser: Refuser, at_most_priority: int | None) -> Iterator[tuple[Kin, QueuedPod]]:
    """Yield each group of equivalent pods with one that represents it; priority is part of the shape, so they agree in
    it.
    """
    for kin in sleepers.refused_by(refuser).values():
        one = next(iter(kin.values()))
        if at_most_priority is None or one.pod.priority <= at_most_priority:
            yield kin, one


def _wake(kin: Kin, listener: Listener, awake: Awake) -> None:
    for queued in kin.values():
        worth = Worth.AT_ONCE if listener.name in queued.pending else Worth.AFTER_BACKOFF
        known = awake.get(queued.uid)
        if known is None or worth > known[1]:
            awake[queued.uid] = (queued, worth)
