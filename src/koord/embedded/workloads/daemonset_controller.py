"""The DaemonSet controller runs one pod on every suitable node. Pure functions decide on which nodes it runs, and
which of its pods are created or deleted next.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from koord.api.kubernetes.affinity import Toleration
from koord.api.kubernetes.builtin_kinds import CONTROLLER_REVISIONS, DAEMON_SETS, NODES
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod, PodSpec, PodTemplateSpec
from koord.api.kubernetes.workload import DaemonSet, DaemonSetStatus
from koord.api.model import convert, to_dict
from koord.embedded.workloads.controller_context import (
    ControllerContext,
    ControllerExpectations,
    seconds_until,
    status_patch,
    sync_result,
)
from koord.embedded.workloads.controller_ref import (
    claim_objects,
    controller_reference,
    index_by_controller,
    spec_selector,
)
from koord.embedded.workloads.controller_revision import REVISION_HASH_LABEL, RevisionHistory
from koord.embedded.workloads.pod_control import (
    BURST_REPLICAS,
    OwnedPodWatch,
    PodControl,
    generate_name,
    is_pod_available,
    is_pod_ready,
    next_available_s,
    pod_from_template,
)
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, WorkQueue
from koord.kube.events import recorder
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
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


class DaemonSetController:
    name = "daemonset"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._rng = context.rng_for(self.name)
        self._sets = context.informers.for_resource(DAEMON_SETS)
        self._nodes = context.informers.for_resource(NODES)
        self._revisions = context.informers.for_resource(CONTROLLER_REVISIONS)
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        self._expectations = ControllerExpectations(context.clock)
        self._writer = PodControl(context, DAEMON_SETS, self._expectations)
        self._failures: dict[str, dict[str, tuple[int, datetime]]] = {}  # set UID -> node -> failures
        index_by_controller(self._revisions)
        self._pods = OwnedPodWatch(context, self._sets, self._expectations, spec_selector, self._queue.add).pods
        self._history = RevisionHistory(context.client, DAEMON_SETS, self._revisions, REVISION_HASH_LABEL)
        self._sets.add_event_handler(self._set_changed)
        self._nodes.add_event_handler(self._node_changed)

    def _set_changed(self, change: ObjectChange[DaemonSet]) -> None:
        if change.kind == "deleted":
            self._failures.pop(change.object.metadata.uid, None)

    def _node_changed(self, change: ObjectChange[Node]) -> None:
        """Enqueue DaemonSets only for node changes that decide where they run: heartbeats come all the time."""
        new, old = change.object, change.old
        if (
            change.kind == "updated"
            and old is not None
            and old.metadata.labels == new.metadata.labels
            and old.spec == new.spec
        ):
            return
        for daemon_set in self._sets.list():
            spec = convert(daemon_set.spec.template, PodTemplateSpec).spec
            before = (False, False) if old is None or change.kind == "deleted" else daemon_fits_node(spec, old)
            if change.kind != "updated" or before != daemon_fits_node(spec, new):
                self._queue.add(object_key(daemon_set))

    async def run(self) -> None:
        needs = (self._sets, self._nodes, self._pods, self._revisions)
        await self._context.run_controller(self.name, self._queue, self.reconcile, needs)

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        daemon_set = self._sets.get(*key)
        if daemon_set is None:
            return Done()
        selector = spec_selector(daemon_set)
        if selector.is_everything():
            message = "This daemon set is selecting all pods. A non-empty selector is required."
            about = recorder.object_reference(DAEMON_SETS, daemon_set)
            self._context.recorder.record(about, "Warning", "SelectingAll", message)
            return Done()
        held = await claim_objects(self._client, DAEMON_SETS, daemon_set, selector, self._pods)
        if not isinstance(held, tuple):
            return held
        collisions = daemon_set.status.collision_count
        present = await self._history.ensure_current(daemon_set, daemon_set.spec.template, collisions)
        if isinstance(present, Requeue):
            return present
        view = DaemonSetView(
            set=daemon_set,
            spec=convert(daemon_set.spec.template, PodTemplateSpec).spec,
            nodes=tuple(self._nodes.list()),
            pods=held,
            revision=self._history.hash_of(present),
            failures=dict(self._failures.get(daemon_set.metadata.uid, {})),
            expectations_met=self._expectations.fulfilled(daemon_set.metadata.uid),
            now=self._context.now(),
        )
        outcome = await self.apply(view, decide_daemon_set(view))
        used = {pod.metadata.labels.get(REVISION_HASH_LABEL, "") for pod in held}
        in_use = {r.metadata.name for r in self._history.revisions_of(daemon_set) if self._history.hash_of(r) in used}
        limit = daemon_set.spec.revision_history_limit
        refused = await self._history.prune(daemon_set, in_use | {present.metadata.name}, limit)
        return outcome if refused is None else sync_result(refused)

    async def apply(self, view: DaemonSetView, plan: DaemonSetPlan) -> ReconcileResult:
        daemon_set = view.set
        refused = await self._writer.delete(daemon_set, plan.delete[:BURST_REPLICAS]) if plan.delete else None
        self._count_failures(view, plan.failed)
        if plan.create:
            bodies = [lambda node=node: self._pod(view, node) for node in plan.create[:BURST_REPLICAS]]
            _, not_made = await self._writer.create(daemon_set, bodies)
            refused = refused or not_made
        patch = status_patch(daemon_set.status, plan.status)
        ended = await self._context.update_status(DAEMON_SETS, daemon_set, patch)
        return ended or sync_result(refused, plan.requeue_after_s)

    def _count_failures(self, view: DaemonSetView, pods: tuple[Pod, ...]) -> None:
        known = self._failures.setdefault(view.set.metadata.uid, {})
        for pod in pods:
            node = target_node(pod)
            count, last = known.get(node, (0, view.now))
            quiet = (view.now - last).total_seconds() > 2 * 900
            known[node] = (1 if quiet else count + 1, view.now)
            who = f"{pod.metadata.namespace}/{pod.metadata.name}"
            message = f"Found failed daemon pod {who} on node {node}, will try to kill it"
            about = recorder.object_reference(DAEMON_SETS, view.set)
            self._context.recorder.record(about, "Warning", "FailedDaemonPod", message)

    def _pod(self, view: DaemonSetView, node: str) -> Unstructured:
        daemon_set = view.set
        meta, template = daemon_set.metadata, daemon_set.spec.template
        given = template.get("spec") or {}
        affinity = given.get("affinity") or {}
        here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        # The node was matched against the template's own terms already; to the scheduler only its name matters.
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
        known = given.get("tolerations") or []
        extra = [to_dict(t) for t in daemon_tolerations(view.spec) if t not in view.spec.tolerations]
        return pod_from_template(
            template,
            name=generate_name(f"{meta.name}-", self._rng),
            generate_name=f"{meta.name}-",
            namespace=meta.namespace,
            owner=controller_reference(DAEMON_SETS, daemon_set),
            labels={REVISION_HASH_LABEL: view.revision},
            spec={
                "affinity": {**affinity, "nodeAffinity": {**(affinity.get("nodeAffinity") or {}), **required}},
                "tolerations": [*known, *extra],
            },
        )
