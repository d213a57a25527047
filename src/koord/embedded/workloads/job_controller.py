"""The Job controller runs pods until enough succeeded or too many failed, and removes Jobs whose TTL has passed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec

from koord.api.kubernetes.builtin_kinds import JOBS, PODS
from koord.api.kubernetes.meta import LabelSelector, stored_label_selector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.workload import Job
from koord.embedded.workloads import controller_context, controller_ref, job_accounting
from koord.embedded.workloads.controller_context import ControllerExpectations, WrittenVersions
from koord.embedded.workloads.job_accounting import TRACKING_FINALIZER, JobBackoff, has_tracking_finalizer, is_indexed
from koord.embedded.workloads.job_plan import JobPlan, JobView, NewJobPod, decide_job, is_job_finished, job_finished_at
from koord.embedded.workloads.pod_control import OwnedPodWatch, PodControl, name_suffix, pod_from_template
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.events import recorder
from koord.kube.informer.cache import ObjectChange, ObjectKey
from koord.kube.transport.api_error import ApiError
from koord.values.selector import Selector

CONTROLLER_UID_LABEL = "batch.kubernetes.io/controller-uid"
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOB_CONTROLLER_NAME = "kubernetes.io/job-controller"
_MAX_NAME_LENGTH = 63
# Ends of pods come in bursts; one look for all of a moment saves a status write for each.
_BATCHING_S = 0.05
_LARGE_JOB = 20


class JobController:
    name = "job"

    def __init__(self, context: controller_context.ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._rng = context.rng_for(self.name)
        self._jobs = context.informers.for_resource(JOBS)
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        self._expectations = ControllerExpectations(context.clock)
        self._writer = PodControl(context, JOBS, self._expectations)
        self._backoffs: dict[str, JobBackoff] = {}
        self._written_versions = WrittenVersions()
        self._pods = OwnedPodWatch(context, self._jobs, self._expectations, _selector, self._enqueue).pods
        self._jobs.add_event_handler(self._job_changed)
        self._orphan_pods: WorkQueue[ObjectKey] = WorkQueue(context.clock, name="job-stray")
        self._pods.add_event_handler(self._pod_changed)

    def _enqueue(self, key: ObjectKey) -> None:
        job = self._jobs.get(*key)
        if job is not None and (job.spec.parallelism or 1) >= _LARGE_JOB:
            self._queue.add_after(key, _BATCHING_S)
        else:
            self._queue.add(key)

    def _job_changed(self, change: ObjectChange[Job]) -> None:
        if change.kind == "deleted":
            uid = change.object.metadata.uid
            self._backoffs.pop(uid, None)
            self._written_versions.forget(uid)
            for pod in controller_ref.owned_objects(self._pods, uid):
                if has_tracking_finalizer(pod):
                    self._orphan_pods.add((pod.metadata.namespace, pod.metadata.name))

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        """Enqueue a pod that has the tracking finalizer but no Job: it would never be deleted."""
        pod = change.object
        if change.kind == "deleted" or not has_tracking_finalizer(pod):
            return
        if not self._has_job(pod) and self._jobs.has_synced:
            self._orphan_pods.add((pod.metadata.namespace, pod.metadata.name))

    def _has_job(self, pod: Pod) -> bool:
        owner = controller_ref.controller_owner_of_kind(pod.metadata, JOBS)
        job = self._jobs.get(pod.metadata.namespace, owner.name) if owner is not None else None
        return job is not None and owner is not None and job.metadata.uid == owner.uid

    async def run(self) -> None:
        needs = (self._jobs, self._pods)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._context.run_controller(self.name, self._queue, self.reconcile, needs))
            group.create_task(self._release_orphans())

    async def _release_orphans(self) -> None:
        await self._jobs.wait_for_sync()
        await self._pods.wait_for_sync()
        for pod in self._pods.list():
            if has_tracking_finalizer(pod) and not self._has_job(pod):
                self._orphan_pods.add((pod.metadata.namespace, pod.metadata.name))
        await self._context.run_controller("job-stray", self._orphan_pods, self._release_orphan, (), workers=1)

    async def _release_orphan(self, key: ObjectKey) -> ReconcileResult:
        pod = self._pods.get(*key)
        if pod is None or not has_tracking_finalizer(pod):
            return Done()
        if (owner := controller_ref.controller_owner_of_kind(pod.metadata, JOBS)) is not None:
            live = await self._client.get(JOBS, owner.name, key[0])
            if not isinstance(live, ApiError) and live.metadata.uid == owner.uid:
                return Done()  # the cache is behind; the Job's own turn comes
            if isinstance(live, ApiError) and not live.not_found:
                return Requeue(live.message)
        refused = await self._remove_finalizer(pod)
        return controller_context.sync_result(refused)

    # -- one job

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        job = self._jobs.get(*key)
        if job is None or (job.spec.managed_by or JOB_CONTROLLER_NAME) != JOB_CONTROLLER_NAME:
            return Done()
        if self._written_versions.is_stale(job):
            return Done()
        if is_job_finished(job):
            return await self._clean_up_finished(job, controller_ref.owned_objects(self._pods, job.metadata.uid))
        held = await controller_ref.claim_objects(
            self._client, JOBS, job, _selector(job), self._pods, finalizer=TRACKING_FINALIZER
        )
        if not isinstance(held, tuple):
            return held
        view = JobView(
            job=job,
            pods=held,
            expectations_met=self._expectations.fulfilled(job.metadata.uid),
            backoff=self._backoffs.get(job.metadata.uid, JobBackoff()),
            now=self._context.now(),
        )
        return await self.apply(job, decide_job(view))

    async def apply(self, job: Job, plan: JobPlan) -> ReconcileResult:
        status, refused = plan.status, None
        if plan.create:
            bodies = [lambda new=new: self._pod(job, new) for new in plan.create]
            made, refused = await self._writer.create(job, bodies)
            status = msgspec.structs.replace(status, active=status.active - len(plan.create) + made)
        if plan.delete_uncounted:
            for pod in plan.delete_uncounted:
                refused = await self._remove_finalizer(pod) or refused
            refused = await self._writer.delete(job, plan.delete_uncounted) or refused
        if plan.delete_as_failed:
            refused = await self._writer.delete(job, plan.delete_as_failed) or refused
        ended = await self._context.update_status(
            JOBS, job, controller_context.status_patch(job.status, status), exactly=True, written=self._written_versions
        )
        if ended is not None:
            return ended
        self._backoffs[job.metadata.uid] = plan.backoff
        for type, reason, message in plan.events:
            about = recorder.object_reference(JOBS, job)
            self._context.recorder.record(about, "Warning" if type == "Warning" else "Normal", reason, message)
        refusals = await asyncio.gather(*(self._remove_finalizer(pod) for pod in plan.release))
        refused = next((found for found in refusals if found is not None), refused)
        return controller_context.sync_result(refused, plan.requeue_after_s)

    async def _remove_finalizer(self, pod: Pod) -> ApiError | None:
        if not has_tracking_finalizer(pod):
            return None
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [TRACKING_FINALIZER]}}
        answer = await self._client.patch_object(PODS, pod, patch, kind="strategic")
        return controller_context.error_unless_gone(answer)

    async def _clean_up_finished(self, job: Job, pods: list[Pod]) -> ReconcileResult:
        """Remove the finalizers of the pods, and delete the Job when its TTL has passed."""
        refusals = await asyncio.gather(*(self._remove_finalizer(pod) for pod in pods if has_tracking_finalizer(pod)))
        refused = next((found for found in refusals if found is not None), None)
        if refused is not None:
            return Requeue(refused.message)
        ttl, at = job.spec.ttl_seconds_after_finished, job_finished_at(job)
        if ttl is None or at is None or job.metadata.deletion_timestamp is not None:
            return Done()
        left = controller_context.seconds_until(at + timedelta(seconds=ttl), self._context.now())
        if left > 0:
            return RequeueAfter(left)
        meta = job.metadata
        answer = await self._client.delete(
            JOBS,
            meta.name,
            meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            propagation="Foreground",
        )
        return Requeue(answer.message) if isinstance(answer, ApiError) and not answer.not_found else Done()

    def _pod(self, job: Job, new: NewJobPod) -> Unstructured:
        meta, template = job.metadata, job.spec.template
        labels = {
            CONTROLLER_UID_LABEL: meta.uid,
            JOB_NAME_LABEL: meta.name,
            "controller-uid": meta.uid,
            "job-name": meta.name,
        }
        if job.spec.manual_selector:
            labels = {}
        annotations: dict[str, str] = {}
        spec: Unstructured = {}
        base = f"{meta.name}-"
        if is_indexed(job) and new.index is not None:
            labels[job_accounting.COMPLETION_INDEX] = annotations[job_accounting.COMPLETION_INDEX] = str(new.index)
            if job.spec.backoff_limit_per_index is not None:
                annotations[job_accounting.INDEX_FAILURE_COUNT] = str(new.failures)
            base = f"{meta.name}-{new.index}-"
            given = template.get("spec") or {}
            spec = {
                key: [_with_index_env(container) for container in given.get(key) or ()]
                for key in ("containers", "initContainers")
                if given.get(key)
            }
            spec.setdefault("hostname", given.get("hostname") or f"{meta.name}-{new.index}")
        name = base[: _MAX_NAME_LENGTH - 5] + name_suffix(self._rng)
        return pod_from_template(
            template,
            name=name,
            generate_name=base[: _MAX_NAME_LENGTH - 5],
            namespace=meta.namespace,
            owner=controller_ref.controller_reference(JOBS, job),
            labels=labels,
            annotations=annotations,
            finalizers=(TRACKING_FINALIZER,),
            spec=spec,
        )


def _with_index_env(container: Unstructured) -> Unstructured:
    """Return the container with its completion index in the environment, unless it defines that variable itself."""
    env = container.get("env") or []
    if any(entry.get("name") == "JOB_COMPLETION_INDEX" for entry in env):
        return container
    field = f"metadata.labels['{job_accounting.COMPLETION_INDEX}']"
    entry = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": field}}}
    return {**container, "env": [*env, entry]}


def _selector(job: Job) -> Selector:
    """Return the selector of a Job, by default the one by its UID that servers set."""
    if job.spec.selector is None and not job.spec.manual_selector:
        return stored_label_selector(LabelSelector(match_labels={CONTROLLER_UID_LABEL: job.metadata.uid}))
    return controller_ref.spec_selector(job)
