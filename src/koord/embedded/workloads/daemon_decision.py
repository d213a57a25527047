"""Decide on which nodes a DaemonSet runs, and which of its pods are created or deleted next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from koord.api.apps import DaemonSet, DaemonSetStatus
from koord.api.core import Node, Pod, PodSpec, Toleration
from koord.embedded.workloads.context import seconds_until
from koord.embedded.workloads.history import REVISION_HASH
from koord.embedded.workloads.pod_state import available, ready, ready_since
from koord.policy.node_suitability import NO_EXECUTE, NO_SCHEDULE, selects, untolerated
from koord.values.int_or_string import scaled

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
LONGEST_RETRY_S = 900


class View(msgspec.Struct, frozen=True, kw_only=True):
    set: DaemonSet
    spec: PodSpec  # of the template, typed
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    revision: str  # hash of the present template
    failures: dict[str, tuple[int, datetime]] = {}  # node -> failed pods so far, and when the last was ended
    settled: bool = True
    now: datetime


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    create: tuple[str, ...] = ()  # node names
    delete: tuple[Pod, ...] = ()
    failed: tuple[Pod, ...] = ()  # of `delete`, those that had failed
    status: DaemonSetStatus
    look_again_s: float | None = None


def tolerations(spec: PodSpec) -> tuple[Toleration, ...]:
    extra = (*DAEMON_TOLERATIONS, HOST_NETWORK_TOLERATION) if spec.host_network else DAEMON_TOLERATIONS
    return (*spec.tolerations, *(t for t in extra if t not in spec.tolerations))


def fits(spec: PodSpec, node: Node) -> tuple[bool, bool]:
    """Return whether a pod should run on the node, and whether one that is there may stay."""
    if spec.node_name and spec.node_name != node.metadata.name:
        return False, False
    if not selects(spec, node):
        return False, False
    tolerant = tolerations(spec)
    if untolerated(tolerant, node.spec.taints, (NO_SCHEDULE, NO_EXECUTE)) is None:
        return True, True
    return False, untolerated(tolerant, node.spec.taints, (NO_EXECUTE,)) is None


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


def bounds(daemon_set: DaemonSet, desired: int) -> tuple[int, int]:
    """Return maxSurge and maxUnavailable as numbers of pods."""
    rolling = daemon_set.spec.update_strategy.rolling_update
    given_surge = rolling.max_surge if rolling is not None else None
    given_unavailable = rolling.max_unavailable if rolling is not None else None
    surge = scaled(0 if given_surge is None else given_surge, desired, round_up=True)
    unavailable = scaled(1 if given_unavailable is None else given_unavailable, desired, round_up=True)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return surge, unavailable


def _leaving(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def _born(pod: Pod) -> tuple[float, str]:
    at = pod.metadata.creation_timestamp
    return (at.timestamp() if at is not None else 0.0, pod.metadata.name)


def decide(seen: View) -> Plan:
    by_node: dict[str, list[Pod]] = {}
    for pod in sorted(seen.pods, key=_born):
        by_node.setdefault(target_node(pod), []).append(pod)
    fitness = {node.metadata.name: fits(seen.spec, node) for node in seen.nodes}
    status = _status(seen, by_node, fitness)
    wait = _next_available_s(seen)
    if not seen.settled or seen.set.metadata.deletion_timestamp is not None:
        return Plan(status=status, look_again_s=wait)
    create: list[str] = []
    delete: list[Pod] = []
    failed: list[Pod] = []
    for name, (should, may_stay) in fitness.items():
        here = by_node.get(name, [])
        if should and not here:
            create.append(name)
        elif may_stay and here:
            bad = [pod for pod in here if pod.status.phase == "Failed" and not _leaving(pod)]
            for pod in bad:
                left = _retry_left_s(seen, name)
                if left > 0:
                    wait = left if wait is None else min(wait, left)
                else:
                    failed.append(pod)
            good = [pod for pod in here if pod not in bad and not _leaving(pod)]
            delete += _doubles(seen, good)
        elif not may_stay:
            delete += [pod for pod in here if not _leaving(pod)]
    if (seen.set.spec.update_strategy.type or "RollingUpdate") == "RollingUpdate":
        more, gone = _roll(seen, by_node, fitness, len([1 for s, _ in fitness.values() if s]))
        create += more
        delete += [pod for pod in gone if pod not in delete and pod not in failed]
    return Plan(create=tuple(create), delete=(*delete, *failed), failed=tuple(failed), status=status, look_again_s=wait)


def _retry_left_s(seen: View, node: str) -> float:
    """Return the seconds to wait before a failed pod on this node is replaced, with exponential back-off."""
    count, last = seen.failures.get(node, (0, seen.now))
    if not count:
        return 0.0
    delay = min(FIRST_RETRY_S << min(count - 1, 16), LONGEST_RETRY_S)
    return seconds_until(last + timedelta(seconds=delay), seen.now)


def _doubles(seen: View, here: Sequence[Pod]) -> list[Pod]:
    """Return the surplus pods of a node: the oldest stays; with surge, one old and one new pod may run
    together.
    """
    surge, _ = bounds(seen.set, len(seen.nodes))
    if not surge:
        return list(here[1:])
    new = [pod for pod in here if _is_new(seen, pod)]
    old = [pod for pod in here if not _is_new(seen, pod)]
    return [*old[1:], *new[1:]]


def _is_new(seen: View, pod: Pod) -> bool:
    return pod.metadata.labels.get(REVISION_HASH) == seen.revision


def _available(seen: View, pod: Pod) -> bool:
    return not _leaving(pod) and available(pod, seen.set.spec.min_ready_seconds, seen.now)


def _roll(
    seen: View, by_node: dict[str, list[Pod]], fitness: dict[str, tuple[bool, bool]], desired: int
) -> tuple[list[str], list[Pod]]:
    """Return the nodes that get a second pod, and the old pods to delete."""
    surge, most_unavailable = bounds(seen.set, desired)
    create: list[str] = []
    gone: list[Pod] = []
    candidates: list[Pod] = []
    unavailable = surging = 0
    for name, (should, _) in fitness.items():
        if not should:
            continue
        here = [pod for pod in by_node.get(name, ()) if not _leaving(pod)]
        new = next((pod for pod in here if _is_new(seen, pod)), None)
        old = next((pod for pod in here if not _is_new(seen, pod)), None)
        if surge:
            if old is None:
                continue
            if new is not None:
                surging += 1
                if _available(seen, new) or not _available(seen, old):
                    gone.append(old)  # its successor serves, or it never did
            elif not _available(seen, old):
                gone.append(old)
            else:
                candidates.append(old)
        elif old is not None and not _available(seen, old):
            unavailable += 1
            gone.append(old)  # nothing is lost with it
        elif old is not None:
            candidates.append(old)
        elif new is None or not _available(seen, new):
            unavailable += 1
    if surge:
        create = [target_node(pod) for pod in candidates[: max(0, surge - surging)]]
    else:
        gone += candidates[: max(0, most_unavailable - unavailable)]
    return create, gone


def _status(seen: View, by_node: dict[str, list[Pod]], fitness: dict[str, tuple[bool, bool]]) -> DaemonSetStatus:
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
        newest = max(here, key=lambda pod: (_available(seen, pod), _born(pod)))
        if ready(newest):
            count_ready += 1
            count_available += _available(seen, newest)
        updated += any(_is_new(seen, pod) for pod in here)
    return DaemonSetStatus(
        current_number_scheduled=current,
        number_misscheduled=misplaced,
        desired_number_scheduled=desired,
        number_ready=count_ready,
        observed_generation=seen.set.metadata.generation,
        updated_number_scheduled=updated,
        number_available=count_available,
        number_unavailable=desired - count_available,
        collision_count=seen.set.status.collision_count,
        conditions=seen.set.status.conditions,
    )


def _next_available_s(seen: View) -> float | None:
    wait = seen.set.spec.min_ready_seconds
    if not wait:
        return None
    moments = [since + timedelta(seconds=wait) for pod in seen.pods if (since := ready_since(pod)) is not None]
    ahead = [moment for moment in moments if moment > seen.now]
    return seconds_until(min(ahead), seen.now) if ahead else None
