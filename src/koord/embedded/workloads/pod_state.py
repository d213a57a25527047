"""The state of pods as controllers see it: phase and readiness, the index by node, the DisruptionTarget
condition and the deletion order.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from koord.api.core import Pod, PodCondition

FINISHED = ("Succeeded", "Failed")


def finished(pod: Pod) -> bool:
    return pod.status.phase in FINISHED


def terminating(pod: Pod) -> bool:
    """Return whether the pod is being deleted and still runs."""
    return pod.metadata.deletion_timestamp is not None and not finished(pod)


def active(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and not finished(pod)


def condition(pod: Pod, type: str) -> PodCondition | None:
    for found in pod.status.conditions:
        if found.type == type:
            return found
    return None


def ready(pod: Pod) -> bool:
    found = condition(pod, "Ready")
    return found is not None and found.status == "True"


def ready_since(pod: Pod) -> datetime | None:
    found = condition(pod, "Ready")
    return found.last_transition_time if found is not None and found.status == "True" else None


def available_at(pod: Pod, min_ready_s: int) -> datetime | None:
    """Return when the pod counts as available if it stays ready; None when it is not ready."""
    since = ready_since(pod)
    return None if since is None else since + timedelta(seconds=min_ready_s)


def available(pod: Pod, min_ready_s: int, now: datetime) -> bool:
    if not min_ready_s:
        return ready(pod)
    at = available_at(pod, min_ready_s)
    return at is not None and at <= now


def restarts(pod: Pod) -> int:
    return max((status.restart_count for status in pod.status.container_statuses), default=0)
