"""The controller of PodMigrationJobs: creates jobs from eviction proposals, and brings every job to its end.

    proposal -> job -> arbitration -> step, step, step ... -> Succeeded or Failed -> garbage collected

Steps are decided in koord.descheduler.migration.step from what is known at that moment, so a process that
was killed
in the middle continues where the objects say it was.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import msgspec

from koord.api.custom import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koord_scheduling import PodMigrationJob, Reservation
from koord.api.model import to_dict
from koord.api.protocol import A_EVICT_REASON, A_EVICT_TRIGGER, A_JOB_CREATED_BY
from koord.descheduler.framework.effect import Evict
from koord.descheduler.migration.moves import has_passed, is_alive
from koord.descheduler.migration.protection import controller_uid
from koord.descheduler.migration.status import FALSE, RESERVATION_CREATED, with_condition
from koord.descheduler.migration.step import (
    Action,
    CreateReservation,
    EvictPod,
    Facts,
    NamePod,
    TidyReservation,
    Told,
    step,
)
from koord.descheduler.plugins.migration_controller import MigrationController
from koord.descheduler.shell.migration.ahead import Ahead
from koord.descheduler.shell.migration.arbiter import Arbiter
from koord.descheduler.shell.migration.departure import Departures
from koord.descheduler.shell.migration.scavenger import Scavenger
from koord.descheduler.shell.migration.writing import Pen
from koord.descheduler.shell.view import View
from koord.descheduler.wire import PODS, Pod
from koord.descheduler.world import World
from koord.kube.cache import Change
from koord.kube.controller import Controller, Done, Outcome, Requeue, Retry
from koord.kube.outage import OUTAGE
from koord.kube.ratelimit import ItemExponential
from koord.kube.recorder import reference
from koord.kube.refused import Refused
from koord.kube.workqueue import WorkQueue
from koord.values import duration

_LOG = logging.getLogger(__name__)

_POD, _RESERVATION = "pod", "reservation"  # indexes over jobs
# Between attempts that fail. Not longer: a job must notice that its time is over.
FIRST_S, LONGEST_S = 0.05, 10.0
STEPS_AT_ONCE = 12  # more than any job has; a job that needs more waits for its next turn


class Migration:
    """The eviction backend of MigrationController: reconciles PodMigrationJobs."""

    def __init__(self, world: World, view: View, plugin: MigrationController) -> None:
        self._world = world
        self._view = view
        self._plugin = plugin
        self._reservations = world.informers.of(RESERVATIONS)
        self._pen = Pen(world)
        self._departures = Departures(world, plugin.args)
        self._queue: WorkQueue[str] = WorkQueue(
            world.clock, name="migration", limiter=ItemExponential(FIRST_S, LONGEST_S)
        )
        self._controller = Controller(
            "migration", self._queue, self.reconcile, workers=plugin.args.max_concurrent_reconciles or 1
        )
        self._ahead = Ahead()
        self.arbiter = Arbiter(world, view, plugin, self._pen, self._ahead, self._let_through)
        self._scavenger = Scavenger(world, view, self._pen)
        self._orphans: dict[str, str] = {}  # by name of a deleted job: the reservation that was its own
        self._made: dict[str, str] = {}  # by uid of the pod: the job made for it, until the watch shows that
        self._tasks: list[asyncio.Task[None]] = []
        view.jobs.add_index(_POD, _pods_of)
        view.jobs.add_index(_RESERVATION, lambda job: [_reservation_of(job)])
        view.jobs.on(self._on_job)
        view.pods.on(self._on_pod)
        self._reservations.on(self._on_reservation)

    async def start(self) -> None:
        runs = (self._controller.run(), self.arbiter.run(), self._scavenger.run())
        self._tasks = [asyncio.create_task(run) for run in runs]

    async def stop(self) -> None:
        self._queue.shutdown(drain=False)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Jobs of proposals -------------------------------------------------------------------------------------------

    async def carry_out(self, proposal: Evict) -> str | None:
        if self._plugin.args.dry_run:
            return None
        args, meta = self._plugin.args, proposal.pod.metadata
        spec: dict[str, Any] = {
            "podRef": {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid},
            "mode": args.default_job_mode,
            "ttl": duration.text(duration.parse(args.default_job_ttl or "5m")),
        }
        options = proposal.delete_options
        if options is None and args.default_delete_options is not None:
            options = to_dict(args.default_delete_options)
        if options is not None:
            spec["deleteOptions"] = options
        annotations = {
            A_EVICT_REASON: proposal.reason,
            A_EVICT_TRIGGER: proposal.plugin,
            A_JOB_CREATED_BY: self._world.identity,
        }
        earlier = self._made.get(meta.uid)
        if earlier is not None and self._view.jobs.get("", earlier) is None:
            return f"job {earlier} was made for it, and the watch has not shown it yet"
        name = str(uuid.uuid4())
        job = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        made = await self._world.client.create(POD_MIGRATION_JOBS, job)
        if isinstance(made, Refused):
            return str(made)
        self._made[meta.uid] = name
        return None

    def place(self, job: PodMigrationJob) -> Reservation | None:
        """Return the reservation that the job names, as far as the informer shows it."""
        name = _reservation_of(job)
        return self._reservations.get("", name) if name else None

    def forbidden(self, pod: Pod) -> str:
        """Return why the pod may not be moved at all; empty when it may."""
        return self._plugin.protection.refuses(pod, self._view.of_jobs(())) or ""

    def limited(self, pod: Pod) -> str:
        """Return why an eviction of the pod's workload or namespace must wait; empty when it need not."""
        return self._plugin.limiter.refuses(pod, self._world.clock.time()) or ""

    # Event handlers ----------------------------------------------------------------------------------------------

    def _on_job(self, change: Change[PodMigrationJob]) -> None:
        job = change.object
        if job.spec.pod_ref is not None:
            self._made.pop(job.spec.pod_ref.uid, None)
        if change.kind == "deleted":
            self.arbiter.forget(job)
            self._ahead.forget(job.metadata.name)
            if name := _reservation_of(job):
                self._orphans[job.metadata.name] = name
                self._queue.add(job.metadata.name)
        elif not is_alive(job):
            self.arbiter.forget(job)
            self._ahead.forget(job.metadata.name)
        elif has_passed(job):
            self._queue.add(job.metadata.name)
        else:
            self.arbiter.await_turn(job)

    def _let_through(self, job: PodMigrationJob) -> None:
        self._queue.add(job.metadata.name)

    def _on_pod(self, change: Change[Pod]) -> None:
        """Enqueue the jobs of a changed pod, which may be the pod to move or its successor."""
        meta = change.object.metadata
        self._wake(_POD, f"{meta.namespace}/{meta.name}")

    def _on_reservation(self, change: Change[Reservation]) -> None:
        self._wake(_RESERVATION, change.object.metadata.name)

    def _wake(self, index: str, value: str) -> None:
        for job in self._view.jobs.by_index(index, value):
            if is_alive(job) and has_passed(job):
                self._queue.add(job.metadata.name)

    # One job -----------------------------------------------------------------------------------------------------

    async def reconcile(self, name: str) -> Outcome:
        try:
            return await self._advance(name)
        except OUTAGE as outage:
            return Requeue(str(outage))

    async def _advance(self, name: str) -> Outcome:
        job = self._known(name)
        if job is None:
            return await self._bury(name)
        if not is_alive(job) or not has_passed(job):
            return Done()
        for _ in range(STEPS_AT_ONCE):
            facts = await self._facts(job)
            if isinstance(facts, Refused):
                return Requeue(str(facts))
            now = step(job, facts)
            if isinstance(now.action, EvictPod) and facts.reservation is not None:
                # The watch may be behind: the place is looked at once more before anybody has to leave for it.
                place = await self._place(facts.reservation.metadata.name)
                if isinstance(place, Refused):
                    return Requeue(str(place))
                now = step(job, msgspec.structs.replace(facts, reservation=place))
            if now.action is not None:
                done = await self._act(job, now.action)
                if isinstance(done, str):
                    return Requeue(done)
                job = done or job
            if now.status is not None and now.status != job.status:
                written = await self._pen.status(job, now.status)
                if isinstance(written, Refused):
                    return Done() if written.not_found else Requeue(str(written))
                job = written
            self._ahead.wrote(job)
            if now.told is not None:
                self._tell(job, now.told)
            if now.wait_s is not None:
                return Retry(now.wait_s)
            if now.action is None and now.status is None:
                break
        return Done()

    async def _bury(self, name: str) -> Outcome:
        """Delete the reservation of a deleted job, since nobody else would."""
        orphan = self._orphans.get(name)
        refused = await self._pen.drop(orphan) if orphan is not None else None
        if refused is not None:
            return Requeue(str(refused))
        self._orphans.pop(name, None)
        return Done()

    def _known(self, name: str) -> PodMigrationJob | None:
        seen = self._view.jobs.get("", name)
        return None if seen is None else self._ahead.newest(seen)

    async def _facts(self, job: PodMigrationJob) -> Facts | Refused:
        """Gather the facts of a job. What the informer lacks is read from the server: an absence must be certain."""
        ref, name, after = job.spec.pod_ref, _reservation_of(job), job.status.pod_ref
        pod = await self._pod(ref.namespace, ref.name) if ref is not None and ref.namespace and ref.name else None
        if isinstance(pod, Refused):
            return pod
        reservation = self._reservations.get("", name) or await self._place(name) if name else None
        if isinstance(reservation, Refused):
            return reservation
        successor = await self._pod(after.namespace, after.name) if after is not None else None
        if isinstance(successor, Refused):
            return successor
        if successor is not None and after is not None and successor.metadata.uid != after.uid:
            successor = None  # gone, and another has its name
        return Facts(
            now_s=self._world.clock.time(),
            default_mode=self._plugin.args.default_job_mode,
            pod=pod,
            reservation=reservation,
            successor=successor,
            limited=self.limited(pod) if pod is not None else "",
        )

    async def _pod(self, namespace: str, name: str) -> Pod | Refused | None:
        known = self._view.pods.get(namespace, name)
        if known is not None:
            return known
        asked = await self._world.client.get(PODS, name, namespace)
        return None if isinstance(asked, Refused) and asked.not_found else asked

    async def _place(self, name: str) -> Reservation | Refused | None:
        """Read the reservation from the server."""
        asked = await self._world.client.get(RESERVATIONS, name)
        return None if isinstance(asked, Refused) and asked.not_found else asked

    async def _act(self, job: PodMigrationJob, action: Action) -> PodMigrationJob | str | None:
        """Execute the action. Return the changed job, None when it is unchanged, or the error message."""
        if isinstance(action, EvictPod):
            return await self._evict(job, action.pod)
        if isinstance(action, NamePod):
            written = await self._pen.pod_uid(job, action.uid)
            return str(written) if isinstance(written, Refused) else written
        if isinstance(action, CreateReservation):
            reserved = await self._pen.reserve(job)
            if isinstance(reserved, Refused):
                return await self._unreserved(job, reserved)
            return reserved
        if isinstance(action, TidyReservation):
            refused = await self._pen.tidy(action.name, action.ttl)
        else:
            refused = await self._pen.drop(action.name)
        return None if refused is None else str(refused)

    async def _unreserved(self, job: PodMigrationJob, refused: Refused) -> str:
        text = str(refused)
        status = with_condition(
            job.status, self._world.clock.time(), RESERVATION_CREATED, FALSE, "FailedCreateReservation", text
        )
        if status is not job.status:
            await self._pen.status(job, status)
            self._tell(job, Told("Warning", "FailedCreateReservation", text))
        return text

    async def _evict(self, job: PodMigrationJob, pod: Pod) -> str | None:
        failed = await self._departures.send(job, pod)
        if failed is not None:
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            self._tell(job, Told("Warning", "Evicting", f'Failed evict Pod "{name}" caused by {failed}'))
            return failed
        workload = self._view.workloads.get(controller_uid(pod))
        self._plugin.limiter.evicted(pod, workload, self._world.clock.time())
        return None

    def _tell(self, job: PodMigrationJob, told: Told) -> None:
        about = reference(POD_MIGRATION_JOBS, job)
        kind: Any = told.type
        self._world.recorder.record(about, kind, told.reason, told.message, action="Migrating")


def _pods_of(job: PodMigrationJob) -> list[str]:
    """Return the keys of the pod that is moved and of its successor."""
    refs = (job.spec.pod_ref, job.status.pod_ref)
    return [f"{ref.namespace}/{ref.name}" for ref in refs if ref is not None]


def _reservation_of(job: PodMigrationJob) -> str:
    options = job.spec.reservation_options
    ref = options.reservation_ref if options is not None else None
    return ref.name if ref is not None else ""
