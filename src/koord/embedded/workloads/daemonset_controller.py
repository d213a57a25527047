"""The DaemonSet controller runs one pod on every suitable node."""

from __future__ import annotations

from datetime import datetime

from koord.api.kubernetes.apps import DaemonSet
from koord.api.kubernetes.builtin_kinds import CONTROLLER_REVISIONS, DAEMON_SETS, NODES
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod, PodTemplateSpec
from koord.api.model import convert, to_dict
from koord.embedded.workloads.controller_context import ControllerContext, status_patch, sync_result
from koord.embedded.workloads.controller_ref import (
    claim_objects,
    controller_reference,
    index_by_controller,
    spec_selector,
)
from koord.embedded.workloads.controller_revision import REVISION_HASH_LABEL, RevisionHistory
from koord.embedded.workloads.daemonset_plan import (
    DaemonSetPlan,
    DaemonSetView,
    daemon_fits_node,
    daemon_tolerations,
    decide_daemon_set,
    target_node,
)
from koord.embedded.workloads.expectations import ControllerExpectations
from koord.embedded.workloads.pod_control import BURST_REPLICAS, OwnedPodWatch, PodControl
from koord.embedded.workloads.pod_template import generate_name, pod_from_template
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue
from koord.kube.controller.workqueue import WorkQueue
from koord.kube.events import recorder
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key


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
