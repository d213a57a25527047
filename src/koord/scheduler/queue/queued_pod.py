"""Hold one pod in the queue with its history, its status for explanations, and the queue's counters for metrics."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from koord.scheduler.cache.pod_info import PodInfo

QueuePart = Literal["active", "backoff", "unschedulable", "gated", "in-flight"]
NO_PLUGINS: frozenset[str] = frozenset()


class QueuedPod:
    """Hold one pod and its history. Owned by the queue: who popped it reads it and returns it to `attempt_failed`."""

    __slots__ = (
        "attempts",
        "errors",
        "first_attempt",
        "gate",
        "gate_reason",
        "message",
        "moved_by",
        "number",
        "part",
        "pending",
        "pod",
        "queued_at",
        "refusals",
        "rejected",
        "since",
        "until",
    )

    def __init__(self, pod: PodInfo, number: int, now: float) -> None:
        self.pod = pod
        self.number = number  # order of arrival: decides between pods that the sort plugin finds equal
        self.part: QueuePart = "active"
        self.queued_at = now  # when it came, for good
        self.since = now  # when it came or last failed: the time that the order of pods is made of
        self.first_attempt: float | None = None  # when it could first have been tried: latency is measured from here
        self.attempts = 0
        self.refusals = 0  # attempts that ended in a refusal, over its whole life
        self.errors = 0  # attempts in a row that ended because something was broken
        self.until = 0.0  # its back-off ends
        # Who refused it. `pending` plugins wait for something that is on its way, and their events skip the back-off.
        self.rejected: frozenset[str] = NO_PLUGINS
        self.pending: frozenset[str] = NO_PLUGINS
        self.gate = ""  # the plugin that holds it back before any attempt
        self.gate_reason = ""
        self.message = ""  # of the last failure
        self.moved_by = ""  # the event that brought it to where it is, by its name in metrics

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def rejectors(self) -> frozenset[str]:
        return self.rejected | self.pending if self.pending else self.rejected

    def __repr__(self) -> str:
        return f"QueuedPod({self.pod.key}, {self.part}, attempts={self.attempts})"


class QueuedPodStatus(msgspec.Struct, frozen=True):
    """Describe where a pod is in the queue, for explanations."""

    pod: str
    uid: str
    part: QueuePart
    attempts: int
    queued_at: float
    since: float
    moved_by: str
    first_attempt: float | None = None
    backing_off_until: float | None = None
    errors: int = 0
    rejected_by: tuple[str, ...] = ()
    pending_on: tuple[str, ...] = ()
    gated_by: str = ""
    gate_reason: str = ""
    last_failure: str = ""
    nominated_node: str = ""


def queued_pod_status(queued: QueuedPod, now: float, nominated_node: str) -> QueuedPodStatus:
    return QueuedPodStatus(
        pod=queued.pod.key,
        uid=queued.uid,
        part=queued.part,
        attempts=queued.attempts,
        queued_at=queued.queued_at,
        since=queued.since,
        moved_by=queued.moved_by,
        first_attempt=queued.first_attempt,
        backing_off_until=queued.until if queued.until > now else None,
        errors=queued.errors,
        rejected_by=tuple(sorted(queued.rejected)),
        pending_on=tuple(sorted(queued.pending)),
        gated_by=queued.gate,
        gate_reason=queued.gate_reason,
        last_failure=queued.message,
        nominated_node=nominated_node,
    )


# Names of moves besides those of cluster events.
POD_ADD = "UnschedulablePodAdd"
ATTEMPT_FAILED = "ScheduleAttemptFailure"
BACKOFF_COMPLETE = "BackoffComplete"
POP_FROM_BACKOFF = "PopFromBackoffQ"
FORCE_ACTIVATE = "ForceActivate"
UNSCHEDULABLE_TIMEOUT = "UnschedulableTimeout"


class QueueCounters:
    """Count the moves between queues, under Kubernetes' names, and the unschedulable pods by rejecting plugin."""

    def __init__(self) -> None:
        self.incoming: Counter[tuple[str, str]] = Counter()  # (queue, event): scheduler_queue_incoming_pods_total
        self.unschedulable: Counter[tuple[str, str]] = Counter()  # (plugin, profile): scheduler_unschedulable_pods

    def entered(self, part: QueuePart, event: str) -> None:
        # Kubernetes keeps gated pods among the unschedulable ones and counts their arrival there.
        self.incoming["unschedulable" if part == "gated" else part, event] += 1

    def add_rejectors(self, queued: QueuedPod, plugins: frozenset[str]) -> None:
        """Count the pod for plugins that reject it from now on."""
        for plugin in plugins - queued.rejectors:
            self.unschedulable[plugin, queued.pod.scheduler] += 1

    def clear_rejectors(self, queued: QueuedPod) -> None:
        """Stop counting the pod as rejected: it is being tried, or it is gone."""
        for plugin in queued.rejectors:
            key = (plugin, queued.pod.scheduler)
            self.unschedulable[key] -= 1
            if not self.unschedulable[key]:
                del self.unschedulable[key]
