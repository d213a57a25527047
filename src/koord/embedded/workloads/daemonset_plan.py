"""Decide on which nodes a DaemonSet runs, and which of its pods are created or deleted next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from koord.api.kubernetes.affinity import Toleration
from koord.api.kubernetes.apps import DaemonSet, DaemonSetStatus
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod, PodSpec
from koord.embedded.workloads.controller_context import seconds_until
from koord.embedded.workloads.controller_revision import REVISION_HASH_LABEL
from koord.embedded.workloads.pod_state import is_pod_available, is_pod_ready, next_available_s
from koord.policy.node_match import NO_EXECUTE, NO_SCHEDULE, find_untolerated_taint, matches_node_affinity
from koord.values.int_or_string import scaled_value

_PREFIX = "node.kubernetes.io/"
# A daemon's pod stays where others must leave: that is where it is needed most.
DAEMON_TOLERATIONS = tuple(
    Toleration(key=_PREFIX + key, operator="Exists", effect=effect)
    for key, effect in (
        ("not-ready", NO_EXECUTE),
        ("unreachable", NO_EXECUTE),
        ("disk-pressure", NO_SCHEDULE),
        ("memory-pressure", NO_SCHEDULE),
        ("pid-pressure", NO_SCHEDULE),
        ("unschedulable", NO_SCHEDULE),
    )
)
HOST_NETWORK_TOLERATION = Toleration(key=_PREFIX + "network-unavailable", operator="Exists", effect=NO_SCHEDULE)
FIRST_RETRY_S = 1
MAX_RETRY_S = 900


class DaemonSetView(msgspec.Struct, frozen=True, kw_only=True):
    set: DaemonSet
    spec: PodSpec  # of the template, typed
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    revision: str  # hash of the present template
    failures: dict[str, tuple[int, datetime]] = {}  # node -> failed pods so far, and when the last was ended
    expectations_met: bool = True
    now: datetime


class DaemonSetPlan(msgspec.Struct, frozen=True, kw_only=True):
    create: tuple[str, ...] = ()  # node names
    delete: tuple[Pod, ...] = ()
    failed: tuple[Pod, ...] = ()  # of `delete`, those that had failed
    status: DaemonSetStatus
    requeue_after_s: float | None = None


def daemon_tolerations(spec: PodSpec) -> tuple[Toleration, ...]:
    extra = (*DAEMON_TOLERATIONS, HOST_NETWORK_TOLERATION) if spec.host_network else DAEMON_TOLERATIONS
    return (*spec.tolerations, *(t for t in extra if t not in spec.tolerations))


def daemon_fits_node(spec: PodSpec, node: Node) -> tuple[bool, bool]:
    """Return whether a pod should run on the node, and whether one that is there may stay."""
    if spec.node_name and spec.node_name != node.metadata.name:
        return False, False
    if not matches_node_affinity(spec, node):
        return False, False
    tolerant = daemon_tolerations(spec)
    if find_untolerated_taint(tolerant, node.spec.taints) is None:
        return True, True
    return False, find_untolerated_taint(tolerant, node.spec.taints, (NO_EXECUTE,)) is None


def target_node(pod: Pod) -> str:
    """Return the node of the pod, or the only one that its affinity allows."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    for term in required.node_selector_terms if required is not None else ():
        for field in term.match_fields:
            if field.key == "metadata.name" and field.operator == "In" and len(field.values) == 1:
                return field.values[0]
    return ""


def rolling_bounds(daemon_set: DaemonSet, desired: int) -> tuple[int, int]:
    """Return maxSurge and maxUnavailable as numbers of pods."""
    rolling = daemon_set.spec.update_strategy.rolling_update
    given_surge = rolling.max_surge if rolling is not None else None
    given_unavailable = rolling.max_unavailable if rolling is not None else None
    surge = scaled_value(0 if given_surge is None else given_surge, desired, round_up=True)
    unavailable = scaled_value(1 if given_unavailable is None else given_unavailable, desired, round_up=True)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return surge, unavailable


def _is_terminating(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def _creation_order(pod: Pod) -> tuple[float, str]:
    at = pod.metadata.creation_timestamp
    return (at.timestamp() if at is not None else 0.0, pod.metadata.name)


def decide_daemon_set(view: DaemonSetView) -> DaemonSetPlan:
    by_node: dict[str, list[Pod]] = {}
    for pod in sorted(view.pods, key=_creation_order):
        by_node.setdefault(target_node(pod), []).append(pod)
    fitness = {node.metadata.name: daemon_fits_node(view.spec, node) for node in view.nodes}
    status = _status(view, by_node, fitness)
    wait = next_available_s(view.pods, view.set.spec.min_ready_seconds, view.now)
    if not view.expectations_met or view.set.metadata.deletion_timestamp is not None:
        return DaemonSetPlan(status=status, requeue_after_s=wait)
    create: list[str] = []
    delete: list[Pod] = []
    failed: list[Pod] = []
    for name, (should, may_stay) in fitness.items():
        here = by_node.get(name, [])
        if should and not here:
            create.append(name)
        elif may_stay and here:
            bad = [pod for pod in here if pod.status.phase == "Failed" and not _is_terminating(pod)]
            for pod in bad:
                left = _retry_left_s(view, name)
                if left > 0:
                    wait = left if wait is None else min(wait, left)
                else:
                    failed.append(pod)
            good = [pod for pod in here if pod not in bad and not _is_terminating(pod)]
            delete += _duplicate_pods(view, good)
        elif not may_stay:
            delete += [pod for pod in here if not _is_terminating(pod)]
    if (view.set.spec.update_strategy.type or "RollingUpdate") == "RollingUpdate":
        more, gone = _roll_update(view, by_node, fitness, len([1 for s, _ in fitness.values() if s]))
        create += more
        delete += [pod for pod in gone if pod not in delete and pod not in failed]
    return DaemonSetPlan(
        create=tuple(create), delete=(*delete, *failed), failed=tuple(failed), status=status, requeue_after_s=wait
    )


def _retry_left_s(view: DaemonSetView, node: str) -> float:
    """Return the seconds to wait before a failed pod on this node is replaced, with exponential back-off."""
    count, last = view.failures.get(node, (0, view.now))
    if not count:
        return 0.0
    delay = min(FIRST_RETRY_S << min(count - 1, 16), MAX_RETRY_S)
    return seconds_until(last + timedelta(seconds=delay), view.now)


def _duplicate_pods(view: DaemonSetView, here: Sequence[Pod]) -> list[Pod]:
    """Return the surplus pods of a node: the oldest stays; with surge, one old and one new pod may run together."""
    surge, _ = rolling_bounds(view.set, len(view.nodes))
    if not surge:
        return list(here[1:])
    new = [pod for pod in here if _is_updated(view, pod)]
    old = [pod for pod in here if not _is_updated(view, pod)]
    return [*old[1:], *new[1:]]


def _is_updated(view: DaemonSetView, pod: Pod) -> bool:
    return pod.metadata.labels.get(REVISION_HASH_LABEL) == view.revision


def _is_available(view: DaemonSetView, pod: Pod) -> bool:
    return not _is_terminating(pod) and is_pod_available(pod, view.set.spec.min_ready_seconds, view.now)


def _roll_update(
    view: DaemonSetView, by_node: dict[str, list[Pod]], fitness: dict[str, tuple[bool, bool]], desired: int
) -> tuple[list[str], list[Pod]]:
    """Return the nodes that get a second pod, and the old pods to delete."""
    surge, most_unavailable = rolling_bounds(view.set, desired)
    create: list[str] = []
    gone: list[Pod] = []
    candidates: list[Pod] = []
    unavailable = surging = 0
    for name, (should, _) in fitness.items():
        if not should:
            continue
        here = [pod for pod in by_node.get(name, ()) if not _is_terminating(pod)]
        new = next((pod for pod in here if _is_updated(view, pod)), None)
        old = next((pod for pod in here if not _is_updated(view, pod)), None)
        if surge:
            if old is None:
                continue
            if new is not None:
                surging += 1
                if _is_available(view, new) or not _is_available(view, old):
                    gone.append(old)  # its successor serves, or it never did
            elif not _is_available(view, old):
                gone.append(old)
            else:
                candidates.append(old)
        elif old is not None and not _is_available(view, old):
            unavailable += 1
            gone.append(old)  # nothing is lost with it
        elif old is not None:
            candidates.append(old)
        elif new is None or not _is_available(view, new):
            unavailable += 1
    if surge:
        create = [target_node(pod) for pod in candidates[: max(0, surge - surging)]]
    else:
        gone += candidates[: max(0, most_unavailable - unavailable)]
    return create, gone


def _status(
    view: DaemonSetView, by_node: dict[str, list[Pod]], fitness: dict[str, tuple[bool, bool]]
) -> DaemonSetStatus:
    desired = current = misplaced = count_ready = count_available = updated = 0
    for name, (should, _) in fitness.items():
        here = by_node.get(name, [])
        if not should:
            misplaced += bool(here)
            continue
        desired += 1
        if not here:
            continue
        current += 1
        newest = max(here, key=lambda pod: (_is_available(view, pod), _creation_order(pod)))
        if is_pod_ready(newest):
            count_ready += 1
            count_available += _is_available(view, newest)
        updated += any(_is_updated(view, pod) for pod in here)
    return DaemonSetStatus(
        current_number_scheduled=current,
        number_misscheduled=misplaced,
        desired_number_scheduled=desired,
        number_ready=count_ready,
        observed_generation=view.set.metadata.generation,
        updated_number_scheduled=updated,
        number_available=count_available,
        number_unavailable=desired - count_available,
        collision_count=view.set.status.collision_count,
        conditions=view.set.status.conditions,
    )
