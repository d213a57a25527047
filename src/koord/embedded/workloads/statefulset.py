"""The StatefulSet controller: pods with stable names and storage, created, updated and deleted in order."""

from __future__ import annotations

import msgspec

from koord.api.apps import ControllerRevision, StatefulSet
from koord.api.builtin import CONTROLLER_REVISIONS, PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS
from koord.api.core import Pod, RawTemplate
from koord.embedded.workloads import history
from koord.embedded.workloads.claim import claim_bodies, claim_names, owners_patch, pod_volumes
from koord.embedded.workloads.context import Context
from koord.embedded.workloads.expectation import Expectations
from koord.embedded.workloads.freshness import Written
from koord.embedded.workloads.history import Collision, History
from koord.embedded.workloads.ownership import (
    apply_claims,
    decide_claims,
    index_by_controller,
    orphans,
    owned,
    reference,
)
from koord.embedded.workloads.pod_watch import PodWatch
from koord.embedded.workloads.pod_writer import namespace_ends
from koord.embedded.workloads.selecting import selector_of
from koord.embedded.workloads.stateful_decision import NewPod, Plan, View, condemned, decide, ordinal_of, revision_of
from koord.embedded.workloads.status import difference, write_status
from koord.embedded.workloads.template import pod_from
from koord.kube import recorder
from koord.kube.cache import Change, Key
from koord.kube.controller import Done, Outcome, Requeue, Retry
from koord.kube.refused import Refused
from koord.kube.verb import Plain
from koord.kube.workqueue import WorkQueue
from koord.values.selector import Selector

POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"


class StatefulSets:
    name = "statefulset"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._client = context.client
        informers = context.informers
        self._sets = informers.of(STATEFUL_SETS)
        self._claims = informers.of(PERSISTENT_VOLUME_CLAIMS)
        self._revisions = informers.of(CONTROLLER_REVISIONS)
        self._queue: WorkQueue[Key] = WorkQueue(context.clock, name=self.name)
        self._written = Written()
        index_by_controller(self._revisions)
        # Names are fixed, so nothing can be made twice: what the cache does not show yet needs no memory here.
        self._pods = PodWatch(context, self._sets, Expectations(context.clock), _selector, self._queue.add).pods
        self._history = History(context.client, STATEFUL_SETS, self._revisions)
        self._sets.on(self._set_changed)

    def _set_changed(self, change: Change[StatefulSet]) -> None:
        if change.kind == "deleted":
            self._written.forget(change.object.metadata.uid)

    async def run(self) -> None:
        needs = (self._sets, self._pods, self._claims, self._revisions)
        await self._context.work(self.name, self._queue, self.reconcile, needs)

    async def reconcile(self, key: Key) -> Outcome:
        stateful = self._sets.get(*key)
        if stateful is None or self._written.outdated(stateful):
            return Done()
        selector = _selector(stateful)
        mine = owned(self._pods, stateful.metadata.uid)
        candidates = [
            pod for pod in orphans(self._pods, key[0], selector) if ordinal_of(stateful, pod.metadata.name) is not None
        ]
        claims = decide_claims(stateful, selector, mine, candidates)
        if claims.adopt or claims.release:
            refused = await apply_claims(self._client, STATEFUL_SETS, stateful, PODS, claims)
            return Done() if refused is None else Requeue(refused.message)
        collisions = stateful.status.collision_count
        update = await self._history.present(stateful, stateful.spec.template, collisions)
        if isinstance(update, Refused):
            return Requeue(update.message)
        if isinstance(update, Collision):
            patch = {"collisionCount": (collisions or 0) + 1}
            await write_status(self._client, STATEFUL_SETS, stateful, patch, exactly=True)
            return Requeue("a revision of another template has this name")
        current = self._current(stateful, update)
        seen = View(
            set=stateful,
            pods=claims.held,
            current=current.metadata.name,
            update=update.metadata.name,
            collisions=collisions,
            now=self._context.now(),
        )
        return await self.apply(seen, decide(seen), {r.metadata.name: r for r in (current, update)})

    def _current(self, stateful: StatefulSet, update: ControllerRevision) -> ControllerRevision:
        name = stateful.status.current_revision
        known = {revision.metadata.name: revision for revision in self._history.of(stateful)}
        return known.get(name, update)

    async def apply(self, seen: View, plan: Plan, revisions: dict[str, ControllerRevision]) -> Outcome:
        stateful, refused = seen.set, None
        for new in plan.create:
            template = history.template_of(revisions[new.revision])
            refused = await self._create(stateful, new, template) or refused
        for pod in plan.delete:
            refused = await self._delete(stateful, pod) or refused
        for pod in seen.pods:
            if pod not in plan.delete:
                refused = await self._keep_claims(stateful, pod) or refused
        answer = await write_status(
            self._client, STATEFUL_SETS, stateful, difference(stateful.status, plan.status), exactly=True
        )
        if isinstance(answer, Refused):
            return Done() if answer.not_found else Requeue(answer.message)
        if answer is not None:
            self._written.note(answer)
        in_use = {seen.current, seen.update, plan.status.current_revision, *(revision_of(pod) for pod in seen.pods)}
        refused = await self._history.prune(stateful, in_use, stateful.spec.revision_history_limit) or refused
        if refused is not None:
            return Requeue(refused.message)
        return Done() if plan.look_again_s is None else Retry(plan.look_again_s)

    # -- pods

    async def _create(self, stateful: StatefulSet, new: NewPod, template: RawTemplate) -> Refused | None:
        refused = await self._make_claims(stateful, new.ordinal)
        if refused is not None:
            return refused
        answer = await self._client.create(PODS, self._pod(stateful, new, template))
        if isinstance(answer, Refused):
            if answer.already_exists:
                return None  # of ours, the cache will show it; of another's, its end will wake us
            if not namespace_ends(answer):
                who = f"Pod {self._name(stateful, new)} in StatefulSet {stateful.metadata.name}"
                self._tell(stateful, "Warning", "FailedCreate", f"create {who} failed error: {answer.message}")
            return answer
        message = f"create Pod {answer.metadata.name} in StatefulSet {stateful.metadata.name} successful"
        self._tell(stateful, "Normal", "SuccessfulCreate", message, answer)
        return None

    def _name(self, stateful: StatefulSet, new: NewPod) -> str:
        return f"{stateful.metadata.name}-{new.ordinal}"

    def _pod(self, stateful: StatefulSet, new: NewPod, template: RawTemplate) -> Plain:
        name = self._name(stateful, new)
        spec: Plain = {"hostname": name}
        if stateful.spec.service_name:
            spec["subdomain"] = stateful.spec.service_name
        if stateful.spec.volume_claim_templates:
            at = msgspec.structs.replace(stateful, spec=msgspec.structs.replace(stateful.spec, template=template))
            spec["volumes"] = pod_volumes(at, new.ordinal)
        labels = {POD_NAME: name, POD_INDEX: str(new.ordinal), history.REVISION_HASH: new.revision}
        return pod_from(
            template,
            name=name,
            generate_name=f"{stateful.metadata.name}-",
            namespace=stateful.metadata.namespace,
            owner=reference(STATEFUL_SETS, stateful),
            labels=labels,
            spec=spec,
        )

    async def _delete(self, stateful: StatefulSet, pod: Pod) -> Refused | None:
        refused = await self._keep_claims(stateful, pod)
        if refused is not None:
            return refused
        meta = pod.metadata
        answer = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        if isinstance(answer, Refused):
            return None if answer.not_found or answer.conflict else answer
        message = f"delete Pod {meta.name} in StatefulSet {stateful.metadata.name} successful"
        self._tell(stateful, "Normal", "SuccessfulDelete", message, pod)
        return None

    # -- claims

    async def _make_claims(self, stateful: StatefulSet, ordinal: int) -> Refused | None:
        for body in claim_bodies(stateful, ordinal):
            meta = body["metadata"]
            known = self._claims.get(meta["namespace"], meta["name"])
            if known is not None:
                if known.metadata.deletion_timestamp is not None:
                    message = f"persistentvolumeclaim {meta['name']} is being deleted"
                    self._tell(stateful, "Warning", "FailedCreate", message)
                continue
            answer = await self._client.create(PERSISTENT_VOLUME_CLAIMS, body)
            if isinstance(answer, Refused) and not answer.already_exists:
                return answer
            if not isinstance(answer, Refused):
                message = f"create Claim {meta['name']} Pod {stateful.metadata.name}-{ordinal} in StatefulSet "
                self._tell(stateful, "Normal", "SuccessfulCreate", f"{message}{stateful.metadata.name} success", answer)
        return None

    async def _keep_claims(self, stateful: StatefulSet, pod: Pod) -> Refused | None:
        """Update the owners of a pod's claims, which decide when they go: with the set, with a pod that is scaled
        away, or never.
        """
        ordinal = ordinal_of(stateful, pod.metadata.name)
        if ordinal is None or not stateful.spec.volume_claim_templates:
            return None
        for name in claim_names(stateful, ordinal).values():
            claim = self._claims.get(stateful.metadata.namespace, name)
            if claim is None:
                continue
            meta = claim.metadata
            owners = owners_patch(stateful, pod, meta, condemned=condemned(stateful, pod.metadata.name))
            if owners is None:
                continue
            answer = await self._client.patch(
                PERSISTENT_VOLUME_CLAIMS,
                name,
                {"metadata": {"ownerReferences": owners or None}},
                meta.namespace,
                kind="merge",
                uid=meta.uid,
                resource_version=meta.resource_version,
            )
            if isinstance(answer, Refused) and not answer.not_found:
                return answer
        return None

    def _tell(
        self, stateful: StatefulSet, type: recorder.EventType, reason: str, message: str, about: object = None
    ) -> None:
        related = None
        if isinstance(about, Pod):
            related = recorder.reference(PODS, about)
        regarding = recorder.reference(STATEFUL_SETS, stateful)
        self._context.recorder.record(regarding, type, reason, message, related=related)


def _selector(stateful: StatefulSet) -> Selector:
    return selector_of(stateful.spec.selector)
