"""Pods as controllers see them: phase, readiness, index by node, DisruptionTarget and the deletion order."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Pod, PodCondition
from koord.embedded.workloads.controller_context import error_unless_gone
from koord.kube.client.request_builder import Unstructured
from koord.kube.client.typed_client import Client
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError
from koord.values import timestamp

FINISHED_PHASES = ("Succeeded", "Failed")


def is_pod_finished(pod: Pod) -> bool:
    return pod.status.phase in FINISHED_PHASES


def is_pod_terminating(pod: Pod) -> bool:
    """Return whether the pod is being deleted and still runs."""
    return pod.metadata.deletion_timestamp is not None and not is_pod_finished(pod)


def is_pod_active(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and not is_pod_finished(pod)


def pod_condition(pod: Pod, type: str) -> PodCondition | None:
    for found in pod.status.conditions:
        if found.type == type:
            return found
    return None


def is_pod_ready(pod: Pod) -> bool:
    found = pod_condition(pod, "Ready")
    return found is not None and found.status == "True"


def pod_ready_since(pod: Pod) -> datetime | None:
    found = pod_condition(pod, "Ready")
    return found.last_transition_time if found is not None and found.status == "True" else None


def pod_available_at(pod: Pod, min_ready_s: int) -> datetime | None:
    """Return when the pod counts as available if it stays ready; None when it is not ready."""
    since = pod_ready_since(pod)
    return None if since is None else since + timedelta(seconds=min_ready_s)


def is_pod_available(pod: Pod, min_ready_s: int, now: datetime) -> bool:
    if not min_ready_s:
        return is_pod_ready(pod)
    at = pod_available_at(pod, min_ready_s)
    return at is not None and at <= now


def next_available_s(pods: Iterable[Pod], min_ready_s: int, now: datetime) -> float | None:
    """Return the seconds until the next ready pod becomes available, or None."""
    if not min_ready_s:
        return None
    ahead = [at for pod in pods if (at := pod_available_at(pod, min_ready_s)) is not None and at > now]
    return (min(ahead) - now).total_seconds() if ahead else None


def max_restart_count(pod: Pod) -> int:
    return max((status.restart_count for status in pod.status.container_statuses), default=0)


_NODE_INDEX = "node"


def index_pods_by_node(pods: Informer[Pod]) -> None:
    if not pods.has_index(_NODE_INDEX):
        pods.add_index(_NODE_INDEX, lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ())


def pods_on_node(pods: Informer[Pod], node: str) -> list[Pod]:
    return pods.by_index(_NODE_INDEX, node)


def nodes_with_pods(pods: Informer[Pod]) -> list[str]:
    return pods.index_values(_NODE_INDEX)


DISRUPTION_TARGET = "DisruptionTarget"


async def add_disruption_target(
    client: Client, pod: Pod, reason: str, message: str, now: datetime, *, phase: str = ""
) -> ApiError | None:
    """Add the DisruptionTarget condition. `phase` is also set, for a pod that no kubelet will ever report on again."""
    status: Unstructured = {}
    known = pod_condition(pod, DISRUPTION_TARGET)
    if known is None or known.status != "True" or known.reason != reason:
        mark = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": timestamp.text(now),
        }
        status["conditions"] = [mark]
    if phase and pod.status.phase != phase:
        status["phase"] = phase
    if not status:
        return None
    answer = await client.patch_object(PODS, pod, {"status": status}, kind="strategic", subresource="status")
    return error_unless_gone(answer)


DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASE_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}


def deletion_cost(pod: Pod) -> int:
    """Return the deletion cost; 0 when the annotation is absent or not a 32-bit integer."""
    text = pod.metadata.annotations.get(DELETION_COST)
    if text is None:
        return 0
    try:
        cost = int(text)
    except ValueError:
        return 0
    return cost if -(1 << 31) <= cost < 1 << 31 else 0


def pods_to_delete(pods: Sequence[Pod], count: int, related: Iterable[Pod], now: datetime) -> tuple[Pod, ...]:
    """Return `count` of `pods` to delete; `related` are the pods of all ReplicaSets of the same Deployment."""
    if count >= len(pods):
        return tuple(pods)
    crowd = Counter(pod.spec.node_name for pod in related if is_pod_active(pod) and pod.spec.node_name)
    return tuple(heapq.nsmallest(count, pods, key=lambda pod: _deletion_rank(pod, crowd, now)))


def _deletion_rank(
    pod: Pod, crowd: Counter[str], now: datetime
) -> tuple[bool, int, bool, int, int, int, int, int, str]:
    """Return the deletion rank, lowest first: unassigned, pending, not ready, cheap, crowded, lately ready, often
    restarted, young.

    Ages of one order of magnitude are equal, and in the end the UID decides: between equals the choice is random.
    """
    return (
        bool(pod.spec.node_name),
        _PHASE_RANK.get(pod.status.phase, 0),
        is_pod_ready(pod),
        deletion_cost(pod),
        -crowd[pod.spec.node_name],
        _magnitude(pod_ready_since(pod), now),
        -max_restart_count(pod),
        _magnitude(pod.metadata.creation_timestamp, now),
        pod.metadata.uid,
    )


def _magnitude(at: datetime | None, now: datetime) -> int:
    nanoseconds = (now - at).total_seconds() * 1e9 if at is not None else 0.0
    return int(math.log2(nanoseconds)) if nanoseconds >= 1 else 0
