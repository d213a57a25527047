"""The Job controller runs pods until enough of them succeeded or too many failed, and removes Jobs whose
TTL has passed.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec

from koord.api.batch import Job
from koord.api.builtin import JOBS, PODS
from koord.api.core import Pod
from koord.api.meta import LabelSelector
from koord.embedded.workloads import job_index
from koord.embedded.workloads.context import Context, seconds_until
from koord.embedded.workloads.expectation import Expectations
from koord.embedded.workloads.freshness import Written
from koord.embedded.workloads.job_decision import NewPod, Plan, View, decide, finished_at, is_finished
from koord.embedded.workloads.job_failure import Backoff
from koord.embedded.workloads.job_tracking import FINALIZER, held, indexed
from koord.embedded.workloads.ownership import apply_claims, controlled_by, decide_claims, orphans, owned, reference
from koord.embedded.workloads.pod_watch import PodWatch
from koord.embedded.workloads.pod_writer import PodWriter
from koord.embedded.workloads.selecting import selector_of
from koord.embedded.workloads.status import difference, write_status
from koord.embedded.workloads.template import pod_from, suffix
from koord.kube import recorder
from koord.kube.cache import Change, Key
from koord.kube.controller import Done, Outcome, Requeue, Retry
from koord.kube.refused import Refused
from koord.kube.verb import Plain
from koord.kube.workqueue import WorkQueue
from koord.values.selector import Selector

CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"
MANAGED_HERE = "kubernetes.io/job-controller"
_LONGEST_NAME = 63
# Ends of pods come in bursts; one look for all of a moment saves a status write for each.
_PATIENCE_S = 0.05
_LARGE = 20


class Jobs:
    name = "job"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._client = context.client
        self._chance = context.chance(self.name)
        self._jobs = context.informers.of(JOBS)
        self._queue: WorkQueue[Key] = WorkQueue(context.clock, name=self.name)
        self._expectations = Expectations(context.clock)
        self._writer = PodWriter(context, JOBS, self._expectations)
        self._backoffs: dict[str, Backoff] = {}
        self._written = Written()
        self._pods = PodWatch(context, self._jobs, self._expectations, _selector, self._wake).pods
        self._jobs.on(self._job_changed)
        self._strays: WorkQueue[Key] = WorkQueue(context.clock, name="job-stray")
        self._pods.on(self._pod_changed)

    def _wake(self, key: Key) -> None:
        job = self._jobs.get(*key)
        if job is not None and (job.spec.parallelism or 1) >= _LARGE:
            self._queue.add_after(key, _PATIENCE_S)
        else:
            self._queue.add(key)

    def _job_changed(self, change: Change[Job]) -> None:
        if change.kind == "deleted":
            uid = change.object.metadata.uid
            self._backoffs.pop(uid, None)
            self._written.forget(uid)
            for pod in owned(self._pods, uid):
                if held(pod):
                    self._strays.add((pod.metadata.namespace, pod.metadata.name))

    def _pod_changed(self, change: Change[Pod]) -> None:
        """Enqueue a pod that has the tracking finalizer but no Job: it would never be deleted."""
        pod = change.object
        if change.kind == "deleted" or not held(pod):
            return
        if not self._has_job(pod) and self._jobs.synced:
            self._strays.add((pod.metadata.namespace, pod.metadata.name))

    def _has_job(self, pod: Pod) -> bool:
        owner = controlled_by(pod.metadata, JOBS)
        job = self._jobs.get(pod.metadata.namespace, owner.name) if owner is not None else None
        return job is not None and owner is not None and job.metadata.uid == owner.uid

    async def run(self) -> None:
        needs = (self._jobs, self._pods)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._context.work(self.name, self._queue, self.reconcile, needs))
            group.create_task(self._free_strays())

    async def _free_strays(self) -> None:
        await self._jobs.wait_synced()
        await self._pods.wait_synced()
        for pod in self._pods.list():
            if held(pod) and not self._has_job(pod):
                self._strays.add((pod.metadata.namespace, pod.metadata.name))
        await self._context.work("job-stray", self._strays, self._free, (), workers=1)

    async def _free(self, key: Key) -> Outcome:
        pod = self._pods.get(*key)
        if pod is None or not held(pod):
            return Done()
        if (owner := controlled_by(pod.metadata, JOBS)) is not None:
            live = await self._client.get(JOBS, owner.name, key[0])
            if not isinstance(live, Refused) and live.metadata.uid == owner.uid:
                return Done()  # the cache is behind; the Job's own turn comes
            if isinstance(live, Refused) and not live.not_found:
                return Requeue(live.message)
        refused = await self._release(pod)
        return Done() if refused is None else Requeue(refused.message)

    # -- one job

    async def reconcile(self, key: Key) -> Outcome:
        job = self._jobs.get(*key)
        if job is None or (job.spec.managed_by or MANAGED_HERE) != MANAGED_HERE:
            return Done()
        if self._written.outdated(job):
            return Done()
        selector = _selector(job)
        mine = owned(self._pods, job.metadata.uid)
        if is_finished(job):
            return await self._finished(job, mine)
        claims = decide_claims(job, selector, mine, orphans(self._pods, key[0], selector))
        if claims.adopt or claims.release:
            refused = await apply_claims(self._client, JOBS, job, PODS, claims, FINALIZER)
            return Done() if refused is None else Requeue(refused.message)
        seen = View(
            job=job,
            pods=claims.held,
            settled=self._expectations.fulfilled(job.metadata.uid),
            backoff=self._backoffs.get(job.metadata.uid, Backoff()),
            now=self._context.now(),
        )
        return await self.apply(job, decide(seen))

    async def apply(self, job: Job, plan: Plan) -> Outcome:
        status, refused = plan.status, None
        if plan.create:
            bodies = [lambda new=new: self._pod(job, new) for new in plan.create]
            made, refused = await self._writer.create(job, bodies)
            status = msgspec.structs.replace(status, active=status.active - len(plan.create) + made)
        if plan.drop:
            for pod in plan.drop:
                refused = await self._release(pod) or refused
            refused = await self._writer.delete(job, plan.drop) or refused
        if plan.end:
            refused = await self._writer.delete(job, plan.end) or refused
        answer = await write_status(self._client, JOBS, job, difference(job.status, status), exactly=True)
        if isinstance(answer, Refused):
            return Done() if answer.not_found else Requeue(answer.message)
        if answer is not None:
            self._written.note(answer)
        self._backoffs[job.metadata.uid] = plan.backoff
        for type, reason, message in plan.told:
            about = recorder.reference(JOBS, job)
            self._context.recorder.record(about, "Warning" if type == "Warning" else "Normal", reason, message)
        refusals = await asyncio.gather(*(self._release(pod) for pod in plan.release))
        refused = next((found for found in refusals if found is not None), refused)
        if refused is not None:
            return Requeue(refused.message)
        return Done() if plan.look_again_s is None else Retry(plan.look_again_s)

    async def _release(self, pod: Pod) -> Refused | None:
        if not held(pod):
            return None
        meta = pod.metadata
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}}
        answer = await self._client.patch(PODS, meta.name, patch, meta.namespace, kind="strategic", uid=meta.uid)
        if isinstance(answer, Refused) and not answer.not_found and not answer.conflict:
            return answer
        return None

    async def _finished(self, job: Job, pods: list[Pod]) -> Outcome:
        """Remove the finalizers of the pods, and delete the Job when its TTL has passed."""
        refusals = await asyncio.gather(*(self._release(pod) for pod in pods if held(pod)))
        refused = next((found for found in refusals if found is not None), None)
        if refused is not None:
            return Requeue(refused.message)
        ttl, at = job.spec.ttl_seconds_after_finished, finished_at(job)
        if ttl is None or at is None or job.metadata.deletion_timestamp is not None:
            return Done()
        left = seconds_until(at + timedelta(seconds=ttl), self._context.now())
        if left > 0:
            return Retry(left)
        meta = job.metadata
        answer = await self._client.delete(
            JOBS,
            meta.name,
            meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            propagation="Foreground",
        )
        return Requeue(answer.message) if isinstance(answer, Refused) and not answer.not_found else Done()

    def _pod(self, job: Job, new: NewPod) -> Plain:
        meta, template = job.metadata, job.spec.template
        labels = {
            CONTROLLER_UID: meta.uid,
            JOB_NAME: meta.name,
            "controller-uid": meta.uid,
            "job-name": meta.name,
        }
        if job.spec.manual_selector:
            labels = {}
        annotations: dict[str, str] = {}
        spec: Plain = {}
        base = f"{meta.name}-"
        if indexed(job) and new.index is not None:
            labels[job_index.INDEX] = annotations[job_index.INDEX] = str(new.index)
            if job.spec.backoff_limit_per_index is not None:
                annotations[job_index.FAILURES] = str(new.failures)
            base = f"{meta.name}-{new.index}-"
            given = template.get("spec") or {}
            spec = {
                key: [_told_index(container) for container in given.get(key) or ()]
                for key in ("containers", "initContainers")
                if given.get(key)
            }
            spec.setdefault("hostname", given.get("hostname") or f"{meta.name}-{new.index}")
        name = base[: _LONGEST_NAME - 5] + suffix(self._chance)
        return pod_from(
            template,
            name=name,
            generate_name=base[: _LONGEST_NAME - 5],
            namespace=meta.namespace,
            owner=reference(JOBS, job),
            labels=labels,
            annotations=annotations,
            finalizers=(FINALIZER,),
            spec=spec,
        )


def _told_index(container: Plain) -> Plain:
    """Return the container with its completion index in the environment, unless it defines that variable
    itself.
    """
    env = container.get("env") or []
    if any(entry.get("name") == "JOB_COMPLETION_INDEX" for entry in env):
        return container
    field = f"metadata.labels['{job_index.INDEX}']"
    entry = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": field}}}
    return {**container, "env": [*env, entry]}


def _selector(job: Job) -> Selector:
    """Return the selector of a Job, by default the one by its UID that servers set."""
    if job.spec.selector is None and not job.spec.manual_selector:
        return selector_of(LabelSelector(match_labels={CONTROLLER_UID: job.metadata.uid}))
    return selector_of(job.spec.selector)
