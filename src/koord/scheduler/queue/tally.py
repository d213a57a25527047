"""Count pods for the queue's metrics."""

from __future__ import annotations

from collections import Counter

from koord.scheduler.queue.entry import Part, QueuedPod

# Names of moves besides those of cluster events.
POD_ADD = "UnschedulablePodAdd"
ATTEMPT_FAILED = "ScheduleAttemptFailure"
BACKOFF_COMPLETE = "BackoffComplete"
POP_FROM_BACKOFF = "PopFromBackoffQ"
FORCE_ACTIVATE = "ForceActivate"
UNSCHEDULABLE_TIMEOUT = "UnschedulableTimeout"


class Tally:
    """Count the moves between queues, under Kubernetes' names, and the unschedulable pods by rejecting plugin."""
    def __init__(self) -> None:
        self.incoming: Counter[tuple[str, str]] = Counter()  # (queue, event): scheduler_queue_incoming_pods_total
        self.refused: Counter[tuple[str, str]] = Counter()  # (plugin, profile): scheduler_unschedulable_pods

    def entered(self, part: Part, event: str) -> None:
        # Kubernetes keeps gated pods among the unschedulable ones and counts their arrival there.
        self.incoming["unschedulable" if part == "gated" else part, event] += 1

    def blame(self, queued: QueuedPod, plugins: frozenset[str]) -> None:
        """Count the pod for plugins that reject it from now on."""
        for plugin in plugins - queued.rejectors:
            self.refused[plugin, queued.pod.scheduler] += 1

    def acquit(self, queued: QueuedPod) -> None:
        """Stop counting the pod as rejected: it is being tried, or it is gone."""
        for plugin in queued.rejectors:
            key = (plugin, queued.pod.scheduler)
            self.refused[key] -= 1
            if not self.refused[key]:
                del self.refused[key]
