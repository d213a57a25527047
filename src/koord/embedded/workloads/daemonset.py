"""The DaemonSet controller runs one pod on every suitable node."""

from __future__ import annotations

from datetime import datetime

from koord.api.apps import DaemonSet
from koord.api.builtin import CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS
from koord.api.core import Node, Pod, PodTemplateSpec
from koord.api.model import convert, to_dict
from koord.embedded.workloads.context import Context
from koord.embedded.workloads.daemon_decision import Plan, View, decide, fits, target_node, tolerations
from koord.embedded.workloads.expectation import Expectations
from koord.embedded.workloads.history import HASH, REVISION_HASH, Collision, History
from koord.embedded.workloads.ownership import (
    apply_claims,
    decide_claims,
    index_by_controller,
    orphans,
    owned,
    reference,
)
from koord.embedded.workloads.pod_watch import PodWatch
from koord.embedded.workloads.pod_writer import BURST, PodWriter
from koord.embedded.workloads.selecting import selector_of
from koord.embedded.workloads.status import difference, write_status
from koord.embedded.workloads.template import generated, pod_from
from koord.kube import recorder
from koord.kube.cache import Change, Key, key_of
from koord.kube.controller import Done, Outcome, Requeue, Retry
from koord.kube.refused import Refused
from koord.kube.verb import Plain
from koord.kube.workqueue import WorkQueue
from koord.values.selector import Selector


class DaemonSets:
    name = "daemonset"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._client = context.client
        self._chance = context.chance(self.name)
        self._sets = context.informers.of(DAEMON_SETS)
        self._nodes = context.informers.of(NODES)
        self._revisions = context.informers.of(CONTROLLER_REVISIONS)
        self._queue: WorkQueue[Key] = WorkQueue(context.clock, name=self.name)
        self._expectations = Expectations(context.clock)
        self._writer = PodWriter(context, DAEMON_SETS, self._expectations)
        self._failures: dict[str, dict[str, tuple[int, datetime]]] = {}  # set UID -> node -> failures
        index_by_controller(self._revisions)
        self._pods = PodWatch(context, self._sets, self._expectations, _selector, self._queue.add).pods
        self._history = History(context.client, DAEMON_SETS, self._revisions)
        self._sets.on(self._set_changed)
        self._nodes.on(self._node_changed)

    def _set_changed(self, change: Change[DaemonSet]) -> None:
        if change.kind == "deleted":
            self._failures.pop(change.object.metadata.uid, None)

    def _node_changed(self, change: Change[Node]) -> None:
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
            before = (False, False) if old is None or change.kind == "deleted" else fits(spec, old)
            if change.kind != "updated" or before != fits(spec, new):
                self._queue.add(key_of(daemon_set))

    async def run(self) -> None:
        needs = (self._sets, self._nodes, self._pods, self._revisions)
        await self._context.work(self.name, self._queue, self.reconcile, needs)

    async def reconcile(self, key: Key) -> Outcome:
        daemon_set = self._sets.get(*key)
        if daemon_set is None:
            return Done()
        selector = _selector(daemon_set)
        if selector.is_everything():
            message = "This daemon set is selecting all pods. A non-empty selector is required."
            about = recorder.reference(DAEMON_SETS, daemon_set)
            self._context.recorder.record(about, "Warning", "SelectingAll", message)
            return Done()
        mine = owned(self._pods, daemon_set.metadata.uid)
        claims = decide_claims(daemon_set, selector, mine, orphans(self._pods, key[0], selector))
        if claims.adopt or claims.release:
            refused = await apply_claims(self._client, DAEMON_SETS, daemon_set, PODS, claims)
            return Done() if refused is None else Requeue(refused.message)
        collisions = daemon_set.status.collision_count
        present = await self._history.present(daemon_set, daemon_set.spec.template, collisions)
        if isinstance(present, Refused):
            return Requeue(present.message)
        if isinstance(present, Collision):
            patch = {"collisionCount": (collisions or 0) + 1}
            await write_status(self._client, DAEMON_SETS, daemon_set, patch, exactly=True)
            return Requeue("a revision of another template has this name")
        seen = View(
            set=daemon_set,
            spec=convert(daemon_set.spec.template, PodTemplateSpec).spec,
            nodes=tuple(self._nodes.list()),
            pods=claims.held,
            revision=present.metadata.labels.get(HASH, ""),
            failures=dict(self._failures.get(daemon_set.metadata.uid, {})),
            settled=self._expectations.fulfilled(daemon_set.metadata.uid),
            now=self._context.now(),
        )
        outcome = await self.apply(seen, decide(seen))
        used = {pod.metadata.labels.get(REVISION_HASH, "") for pod in claims.held}
        in_use = {r.metadata.name for r in self._history.of(daemon_set) if r.metadata.labels.get(HASH) in used}
        limit = daemon_set.spec.revision_history_limit
        refused = await self._history.prune(daemon_set, in_use | {present.metadata.name}, limit)
        return Requeue(refused.message) if refused is not None else outcome

    async def apply(self, seen: View, plan: Plan) -> Outcome:
        daemon_set = seen.set
        refused = await self._writer.delete(daemon_set, plan.delete[:BURST]) if plan.delete else None
        self._note_failures(seen, plan.failed)
        if plan.create:
            bodies = [lambda node=node: self._pod(seen, node) for node in plan.create[:BURST]]
            _, not_made = await self._writer.create(daemon_set, bodies)
            refused = refused or not_made
        answer = await write_status(self._client, DAEMON_SETS, daemon_set, difference(daemon_set.status, plan.status))
        if isinstance(answer, Refused) and not answer.not_found:
            return Requeue(answer.message)
        if refused is not None:
            return Requeue(refused.message)
        return Done() if plan.look_again_s is None else Retry(plan.look_again_s)

    def _note_failures(self, seen: View, pods: tuple[Pod, ...]) -> None:
        known = self._failures.setdefault(seen.set.metadata.uid, {})
        for pod in pods:
            node = target_node(pod)
            count, last = known.get(node, (0, seen.now))
            quiet = (seen.now - last).total_seconds() > 2 * 900
            known[node] = (1 if quiet else count + 1, seen.now)
            who = f"{pod.metadata.namespace}/{pod.metadata.name}"
            message = f"Found failed daemon pod {who} on node {node}, will try to kill it"
            about = recorder.reference(DAEMON_SETS, seen.set)
            self._context.recorder.record(about, "Warning", "FailedDaemonPod", message)

    def _pod(self, seen: View, node: str) -> Plain:
        daemon_set = seen.set
        meta, template = daemon_set.metadata, daemon_set.spec.template
        given = template.get("spec") or {}
        affinity = given.get("affinity") or {}
        here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        # The node was matched against the template's own terms already; to the scheduler only its name matters.
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
        known = given.get("tolerations") or []
        extra = [to_dict(t) for t in tolerations(seen.spec) if t not in seen.spec.tolerations]
        return pod_from(
            template,
            name=generated(f"{meta.name}-", self._chance),
            generate_name=f"{meta.name}-",
            namespace=meta.namespace,
            owner=reference(DAEMON_SETS, daemon_set),
            labels={REVISION_HASH: seen.revision},
            spec={
                "affinity": {**affinity, "nodeAffinity": {**(affinity.get("nodeAffinity") or {}), **required}},
                "tolerations": [*known, *extra],
            },
        )


def _selector(daemon_set: DaemonSet) -> Selector:
    return selector_of(daemon_set.spec.selector)
