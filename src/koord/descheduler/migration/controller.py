"""The controller of PodMigrationJobs: creates jobs from eviction proposals, and brings every job to its end.

    proposal -> job -> arbitration -> step, step, step ... -> Succeeded or Failed -> garbage collected

Steps are decided in koord.descheduler.migration.step from what is known at that moment, so a process that was killed in
the middle continues where the objects say it was.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any, ClassVar

import msgspec

from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koordinator.protocol import A_EVICT_REASON, A_EVICT_TRIGGER, A_JOB_CREATED_BY
from koord.api.koordinator.scheduling import PodMigrationJob, Reservation
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.rbac import RbacRule
from koord.api.model import to_dict
from koord.descheduler.context import DeschedulerContext
from koord.descheduler.framework.plugin import EvictionProposal
from koord.descheduler.migration import step
from koord.descheduler.migration.arbiter import MigrationArbiter
from koord.descheduler.migration.job import (
    FALSE,
    RESERVATION_CREATED,
    has_passed_arbitration,
    is_active,
    reservation_name,
    with_condition,
)
from koord.descheduler.migration.plugin import MigrationControllerPlugin, controller_uid
from koord.descheduler.migration.reservation_fit import reservation_misfit
from koord.descheduler.migration.writer import JobGarbageCollector, JobWriteCache, MigrationWriter, PodEvictor
from koord.descheduler.snapshot_source import SnapshotSource
from koord.kube.controller.controller import Controller, Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.events.recorder import object_reference
from koord.kube.informer.cache import ObjectChange
from koord.kube.rate_limit import ItemExponentialRateLimiter
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.policy.eviction import DRY_RUN, REFUSED
from koord.values import duration

_LOG = logging.getLogger(__name__)

_BY_POD, _BY_RESERVATION = "pod", "reservation"  # indexes over jobs
_BY_NODE = "descheduler-node"  # index over reservations
# Between attempts that fail. Not longer: a job must notice that its time is over.
BACKOFF_BASE_S, BACKOFF_MAX_S = 0.05, 10.0
MAX_STEPS_PER_RECONCILE = 12  # more than any job has; a job that needs more waits for its next turn


class MigrationJobController:
    """The eviction backend of MigrationController: reconciles PodMigrationJobs."""

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("scheduling.koordinator.sh", ("podmigrationjobs",), ("create",)),
        *MigrationWriter.rights,
        *PodEvictor.rights,
    )

    def __init__(
        self, context: DeschedulerContext, snapshot_source: SnapshotSource, plugin: MigrationControllerPlugin
    ) -> None:
        self._context = context
        self._snapshot_source = snapshot_source
        self._plugin = plugin
        self._reservations = context.informers.for_resource(RESERVATIONS)
        self._writer = MigrationWriter(context)
        self._evictor = PodEvictor(context, plugin.args)
        self._queue: WorkQueue[str] = WorkQueue(
            context.clock, name="migration", limiter=ItemExponentialRateLimiter(BACKOFF_BASE_S, BACKOFF_MAX_S)
        )
        self._controller = Controller(
            "migration", self._queue, self.reconcile, workers=plugin.args.max_concurrent_reconciles or 1
        )
        self._write_cache = JobWriteCache()
        self.arbiter = MigrationArbiter(
            context, snapshot_source, plugin, self._writer, self._write_cache, self._on_arbitration_passed
        )
        self._garbage_collector = JobGarbageCollector(context, snapshot_source, self._reservations, self._writer)
        # By uid: jobs whose pod this process saw before any eviction, or that it moved on itself; and jobs with an
        # eviction of which it does not know the outcome. Of other jobs an earlier process may have evicted the pod.
        self._seen_before_eviction: set[str] = set()
        self._uncertain_evictions: set[str] = set()
        self._orphaned_reservations: dict[str, str] = {}  # by name of a deleted job: the reservation that was its own
        self._created_jobs: dict[str, str] = {}  # by uid of the pod: the job made for it, until the watch shows that
        self._tasks: list[asyncio.Task[None]] = []
        snapshot_source.jobs.add_index(_BY_POD, _pod_keys)
        snapshot_source.jobs.add_index(_BY_RESERVATION, lambda job: [reservation_name(job)])
        snapshot_source.jobs.add_event_handler(self._on_job)
        snapshot_source.pods.add_event_handler(self._on_pod)
        if not self._reservations.has_index(_BY_NODE):
            self._reservations.add_index(_BY_NODE, lambda reservation: [reservation.status.node_name])
        self._reservations.add_event_handler(self._on_reservation)

    async def start(self) -> None:
        runs = (self._controller.run(), self.arbiter.run(), self._garbage_collector.run())
        self._tasks = [asyncio.create_task(run) for run in runs]

    async def stop(self) -> None:
        self._queue.shutdown(drain=False)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Jobs of proposals -------------------------------------------------------------------------------------------

    async def execute(self, proposal: EvictionProposal) -> str | None:
        if self._plugin.args.dry_run:
            self._context.ledger.add(proposal.record().concluded(self._context.clock.time(), DRY_RUN))
            return None
        args, meta = self._plugin.args, proposal.pod.metadata
        spec: dict[str, Any] = {
            "podRef": {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid},
            "mode": args.default_job_mode,
            "ttl": duration.text(duration.parse(args.default_job_ttl or "5m")),
        }
        if args.default_delete_options is not None:
            spec["deleteOptions"] = to_dict(args.default_delete_options)
        annotations = {
            A_EVICT_REASON: proposal.reason,
            A_EVICT_TRIGGER: proposal.plugin,
            A_JOB_CREATED_BY: self._context.identity,
        }
        earlier = self._created_jobs.get(meta.uid)
        if earlier is not None and self._snapshot_source.jobs.get("", earlier) is None:
            return f"job {earlier} was made for it, and the watch has not shown it yet"
        name = str(uuid.UUID(int=self._context.rng.getrandbits(128), version=4))
        job = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        made = await self._context.client.create(POD_MIGRATION_JOBS, job)
        if isinstance(made, ApiError):
            return str(made)
        self._created_jobs[meta.uid] = name
        self._evictor.remember(name, proposal.record())
        return None

    def reservation_of_job(self, job: PodMigrationJob) -> Reservation | None:
        """Return the reservation that the job names, as far as the informer shows it."""
        name = reservation_name(job)
        return self._reservations.get("", name) if name else None

    def protection_reason(self, pod: Pod) -> str:
        """Return why the pod may not be moved at all; empty when it may."""
        return self._plugin.protection.rejection_reason(pod, self._snapshot_source.snapshot_for_jobs(())) or ""

    def rate_limit_reason(self, pod: Pod) -> str:
        """Return why an eviction of the pod's workload or namespace must wait; empty when it need not."""
        return self._plugin.limiter.rejection_reason(pod, self._context.clock.time()) or ""

    # Event handlers ----------------------------------------------------------------------------------------------

    def _on_job(self, change: ObjectChange[PodMigrationJob]) -> None:
        job = change.object
        if job.spec.pod_ref is not None:
            self._created_jobs.pop(job.spec.pod_ref.uid, None)
        if change.kind == "deleted" or not is_active(job):
            self.arbiter.forget(job)
            self._write_cache.forget(job.metadata.name)
            self._seen_before_eviction.discard(job.metadata.uid)
            self._uncertain_evictions.discard(job.metadata.uid)
        if change.kind == "deleted":
            # One that was made, and not yet written into the job, has the job's uid for a name.
            self._orphaned_reservations[job.metadata.name] = reservation_name(job) or job.metadata.uid
            self._queue.add(job.metadata.name)
        elif not is_active(job):
            return
        elif has_passed_arbitration(job):
            self._queue.add(job.metadata.name)
        else:
            self.arbiter.enqueue(job)

    def _on_arbitration_passed(self, job: PodMigrationJob) -> None:
        self._queue.add(job.metadata.name)

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        """Enqueue the jobs of a changed pod, which may be the pod to move or its successor."""
        meta = change.object.metadata
        self._enqueue_indexed(_BY_POD, f"{meta.namespace}/{meta.name}")

    def _on_reservation(self, change: ObjectChange[Reservation]) -> None:
        self._enqueue_indexed(_BY_RESERVATION, change.object.metadata.name)

    def _enqueue_indexed(self, index: str, value: str) -> None:
        for job in self._snapshot_source.jobs.by_index(index, value):
            if is_active(job) and has_passed_arbitration(job):
                self._queue.add(job.metadata.name)

    # One job -----------------------------------------------------------------------------------------------------

    async def reconcile(self, name: str) -> ReconcileResult:
        try:
            return await self._advance(name)
        except TRANSIENT_ERRORS as outage:
            return Requeue(str(outage))

    async def _advance(self, name: str) -> ReconcileResult:
        job = self._latest_job(name)
        if job is None:
            return await self._delete_orphaned_reservation(name)
        if not is_active(job) or not has_passed_arbitration(job):
            return Done()
        for _ in range(MAX_STEPS_PER_RECONCILE):
            facts = await self._gather_facts(job)
            if isinstance(facts, ApiError):
                return Requeue(str(facts))
            now = step.next_step(job, facts)
            if isinstance(now.action, step.EvictPod) and facts.reservation is not None:
                # The watch may be behind: the place is looked at once more before anybody has to leave for it.
                reservation = await self._get_reservation(facts.reservation.metadata.name)
                if isinstance(reservation, ApiError):
                    return Requeue(str(reservation))
                misfit = self._reservation_misfit(facts.pod, reservation)
                looked = msgspec.structs.replace(facts, reservation=reservation, reservation_misfit=misfit)
                now = step.next_step(job, looked)
            if now.action is not None:
                done = await self._execute_action(job, now.action)
                if isinstance(done, str):
                    return Requeue(done)
                if isinstance(done, step.MigrationStep):
                    now = done
                else:
                    job = done or job
            if now.status is not None and now.status != job.status:
                written = await self._writer.patch_status(job, now.status)
                if isinstance(written, ApiError):
                    return Done() if written.not_found else Requeue(str(written))
                job = written
                self._seen_before_eviction.add(job.metadata.uid)
            self._write_cache.record_write(job)
            if now.event is not None:
                self._record_event(job, now.event)
            if now.requeue_after_s is not None:
                return RequeueAfter(now.requeue_after_s)
            if now.action is None and now.status is None:
                break
        return Done()

    async def _delete_orphaned_reservation(self, name: str) -> ReconcileResult:
        """Delete the reservation of a deleted job, since nobody else would."""
        refused = await self._writer.delete_reservation(self._orphaned_reservations.get(name, ""))
        if refused is not None:
            return Requeue(str(refused))
        self._orphaned_reservations.pop(name, None)
        return Done()

    def _latest_job(self, name: str) -> PodMigrationJob | None:
        seen = self._snapshot_source.jobs.get("", name)
        return None if seen is None else self._write_cache.newest(seen)

    async def _gather_facts(self, job: PodMigrationJob) -> step.MigrationFacts | ApiError:
        """Gather the facts of a job. What the informer lacks is read from the server: an absence must be certain."""
        ref, name, after = job.spec.pod_ref, reservation_name(job), job.status.pod_ref
        pod = await self._get_pod(ref.namespace, ref.name) if ref is not None and ref.namespace and ref.name else None
        if isinstance(pod, ApiError):
            return pod
        reservation = self._reservations.get("", name) or await self._get_reservation(name) if name else None
        if isinstance(reservation, ApiError):
            return reservation
        successor = await self._get_pod(after.namespace, after.name) if after is not None else None
        if isinstance(successor, ApiError):
            return successor
        if successor is not None and after is not None and successor.metadata.uid != after.uid:
            successor = None  # gone, and another has its name
        uid = job.metadata.uid
        if pod is not None and ref is not None and ref.uid in ("", pod.metadata.uid):
            self._seen_before_eviction.add(uid)
        return step.MigrationFacts(
            now_s=self._context.clock.time(),
            default_mode=self._plugin.args.default_job_mode,
            default_delete_options=self._plugin.args.default_delete_options,
            pod=pod,
            reservation=reservation,
            reservation_misfit=self._reservation_misfit(pod, reservation),
            successor=successor,
            rate_limit_reason=self.rate_limit_reason(pod) if pod is not None else "",
            may_have_been_evicted=uid in self._uncertain_evictions or uid not in self._seen_before_eviction,
        )

    def _reservation_misfit(self, pod: Pod | None, reservation: Reservation | None) -> str:
        """Return why the pod's successor could not take the reservation; empty when it could, or either is gone."""
        if pod is None or reservation is None:
            return ""
        node = reservation.status.node_name
        there = self._reservations.by_index(_BY_NODE, node) if node else ()
        return reservation_misfit(pod, reservation, self._snapshot_source.snapshot_of_node(node), there) or ""

    async def _get_pod(self, namespace: str, name: str) -> Pod | ApiError | None:
        known = self._snapshot_source.pods.get(namespace, name)
        if known is not None:
            return known
        asked = await self._context.client.get(PODS, name, namespace)
        return None if isinstance(asked, ApiError) and asked.not_found else asked

    async def _get_reservation(self, name: str) -> Reservation | ApiError | None:
        """Read the reservation from the server."""
        asked = await self._context.client.get(RESERVATIONS, name)
        return None if isinstance(asked, ApiError) and asked.not_found else asked

    async def _execute_action(
        self, job: PodMigrationJob, action: step.StepAction
    ) -> PodMigrationJob | step.MigrationStep | str | None:
        """Execute the action. Return the changed job, None when it is unchanged, the error message when it is to be
        tried again, or the step to take instead when it never is.
        """
        if isinstance(action, step.EvictPod):
            return await self._evict(job, action)
        if isinstance(action, step.SetPodUid):
            written = await self._writer.set_pod_uid(job, action.uid)
            return str(written) if isinstance(written, ApiError) else written
        if isinstance(action, step.CreateReservation):
            reserved = await self._writer.create_reservation(job)
            if isinstance(reserved, ApiError):
                if reserved.code in (400, 422):
                    return step.reservation_refused(job, str(reserved), self._context.clock.time())
                return await self._record_reservation_failure(job, reserved)
            return reserved
        if isinstance(action, step.NormalizeReservationTtl):
            refused = await self._writer.normalize_reservation_ttl(action.name, action.uid, action.ttl)
        elif isinstance(action, step.StampReservationOrder):
            refused = await self._writer.stamp_reservation_order(action.name, action.uid, action.order_ms)
        else:
            refused = await self._writer.delete_reservation(action.name)
        return None if refused is None else str(refused)

    async def _record_reservation_failure(self, job: PodMigrationJob, refused: ApiError) -> str:
        text = str(refused)
        status = with_condition(
            job.status, self._context.clock.time(), RESERVATION_CREATED, FALSE, "FailedCreateReservation", text
        )
        if status is not job.status:
            await self._writer.patch_status(job, status)
            self._record_event(job, step.JobEvent("Warning", "FailedCreateReservation", text))
        return text

    async def _evict(self, job: PodMigrationJob, action: step.EvictPod) -> step.MigrationStep | str | None:
        pod, options = action.pod, action.options
        uid, uncertain = job.metadata.uid, self._uncertain_evictions
        was_uncertain = uid in uncertain
        uncertain.add(uid)
        result = await self._evictor.evict(job, pod, options)
        if not (was_uncertain or result.evicted or result.is_uncertain):
            uncertain.discard(uid)
        if result.outcome == DRY_RUN:
            if A_JOB_CREATED_BY in job.metadata.annotations:  # or its plugin would ask again in the next round
                self._record_in_limiter(pod)
            return None
        if result.is_final or (result.outcome == REFUSED and options is not None and options.is_dry_run):
            return step.refused_for_good(job, options, result.error_text, self._context.clock.time())
        if not result.evicted:
            name, why = f"{pod.metadata.namespace}/{pod.metadata.name}", result.error_text
            self._record_event(job, step.JobEvent("Warning", "Evicting", f'Failed evict Pod "{name}" caused by {why}'))
            return why
        self._record_in_limiter(pod)
        return None

    def _record_in_limiter(self, pod: Pod) -> None:
        workload = self._snapshot_source.workloads.get(controller_uid(pod))
        self._plugin.limiter.record_eviction(pod, workload, self._context.clock.time())

    def _record_event(self, job: PodMigrationJob, event: step.JobEvent) -> None:
        about = object_reference(POD_MIGRATION_JOBS, job)
        kind: Any = event.type
        self._context.recorder.record(about, kind, event.reason, event.message, action="Migrating")


def _pod_keys(job: PodMigrationJob) -> list[str]:
    """Return the keys of the pod that is moved and of its successor."""
    refs = (job.spec.pod_ref, job.status.pod_ref)
    return [f"{ref.namespace}/{ref.name}" for ref in refs if ref is not None]
