"""Writes to jobs and reservations, each a patch of what changed with the uid of the object that was decided on; the
cache of own writes that informers have not shown yet; and the garbage collector of jobs long past their ttl.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from typing import Any, ClassVar

from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koordinator.protocol import A_PASSED_ARBITRATION, DESCHEDULER_NAME, L_RESERVATION_ORDER
from koord.api.koordinator.scheduling import PodMigrationJob, PodMigrationJobStatus, Reservation
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.model import to_dict
from koord.descheduler.context import DeschedulerContext
from koord.descheduler.migration.job import normalized_duration, reservation_name, ttl_s
from koord.descheduler.migration.reservation_fit import CREATED_BY_LABEL, build_reservation
from koord.descheduler.snapshot_source import SnapshotSource
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS

_LOG = logging.getLogger(__name__)

DISABLE_PVC_RESERVATION = "DisablePVCReservation"  # feature gate: reservations are made without the pod's claims

JobPatchResult = PodMigrationJob | ApiError


class MigrationWriter:
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("scheduling.koordinator.sh", ("podmigrationjobs",), (*READ_VERBS, "patch", "delete")),
        RbacRule("scheduling.koordinator.sh", ("podmigrationjobs/status",), ("patch",)),
        RbacRule("scheduling.koordinator.sh", ("reservations",), (*READ_VERBS, "create", "patch", "delete")),
        RbacRule("", ("pods",), ("get",)),
    )

    def __init__(self, context: DeschedulerContext) -> None:
        self._context = context
        self._drop_claims = DISABLE_PVC_RESERVATION in context.gates

    async def patch_status(self, job: PodMigrationJob, status: PodMigrationJobStatus) -> JobPatchResult:
        # What became empty must be said: a merge patch keeps what it does not name.
        told = {"phase": None, "status": None, "reason": None, "message": None, **to_dict(status)}
        return await self._patch(job, {"status": told}, subresource="status")

    async def mark_passed(self, job: PodMigrationJob) -> JobPatchResult:
        """Mark the job as passed, and normalize its ttl on the way."""
        patch: dict[str, Any] = {"metadata": {"annotations": {A_PASSED_ARBITRATION: "true"}}}
        if job.spec.ttl and (tidy := normalized_duration(job.spec.ttl)) != job.spec.ttl:
            patch["spec"] = {"ttl": tidy}
        return await self._patch(job, patch)

    async def set_pod_uid(self, job: PodMigrationJob, uid: str) -> JobPatchResult:
        return await self._patch(job, {"spec": {"podRef": {"uid": uid}}})

    async def _patch(
        self, job: PodMigrationJob, patch: dict[str, Any], subresource: str | None = None
    ) -> JobPatchResult:
        return await self._context.client.patch_object(
            POD_MIGRATION_JOBS, job, patch, kind="merge", subresource=subresource
        )

    # Reservations ------------------------------------------------------------------------------------------------

    async def create_reservation(self, job: PodMigrationJob) -> JobPatchResult | str:
        """Create the reservation and name it in the job; adopt an existing one, which an earlier attempt created.

        A string that is returned says why it is not created now.
        """
        plain, ref = self._context.client.dynamic, job.spec.pod_ref
        assert ref is not None
        whole_job = await plain.get(POD_MIGRATION_JOBS, job.metadata.name)
        if isinstance(whole_job, ApiError):
            return whole_job
        pod = await plain.get(PODS, ref.name, ref.namespace)
        if isinstance(pod, ApiError):
            return "its pod is gone" if pod.not_found else pod
        if ref.uid not in ("", pod["metadata"]["uid"]):
            return "another pod has its name by now"
        now_ms = int(self._context.clock.time() * 1000)
        wanted = build_reservation(whole_job, pod, now_ms, drop_claims=self._drop_claims)
        made = await plain.create(RESERVATIONS, wanted)
        if isinstance(made, ApiError) and not made.already_exists:
            return made
        named = {"spec": {"reservationOptions": {"reservationRef": {"name": wanted["metadata"]["name"]}}}}
        return await self._patch(job, named)

    async def normalize_reservation_ttl(self, name: str, uid: str, ttl: str) -> ApiError | None:
        return await self._patch_reservation(name, uid, {"spec": {"ttl": ttl}})

    async def stamp_reservation_order(self, name: str, uid: str, order_ms: int) -> ApiError | None:
        return await self._patch_reservation(name, uid, {"metadata": {"labels": {L_RESERVATION_ORDER: str(order_ms)}}})

    async def _patch_reservation(self, name: str, uid: str, patch: dict[str, Any]) -> ApiError | None:
        answer = await self._context.client.patch(RESERVATIONS, name, patch, kind="merge", uid=uid)
        return answer if isinstance(answer, ApiError) else None

    async def delete_reservation(self, name: str) -> ApiError | None:
        """Delete a reservation that this program created; one that a person named in the job is left alone."""
        if not name:
            return None
        found = await self._context.client.get(RESERVATIONS, name)
        if isinstance(found, ApiError):
            return None if found.not_found else found
        if found.metadata.labels.get(CREATED_BY_LABEL) != DESCHEDULER_NAME:
            return None
        answer = await self._context.client.delete(RESERVATIONS, name, uid=found.metadata.uid)
        return answer if isinstance(answer, ApiError) and not answer.not_found else None

    async def delete_job(self, job: PodMigrationJob) -> ApiError | None:
        answer = await self._context.client.delete(POD_MIGRATION_JOBS, job.metadata.name, uid=job.metadata.uid)
        return answer if isinstance(answer, ApiError) and not answer.not_found else None


class JobWriteCache:
    def __init__(self) -> None:
        self._writes: dict[str, PodMigrationJob] = {}  # by name

    def record_write(self, job: PodMigrationJob) -> None:
        self._writes[job.metadata.name] = job

    def forget(self, name: str) -> None:
        self._writes.pop(name, None)

    def newest(self, seen: PodMigrationJob) -> PodMigrationJob:
        """Return the job as the informer shows it, or the own write where that is later."""
        ours = self._writes.get(seen.metadata.name)
        if ours is None:
            return seen
        if ours.metadata.uid == seen.metadata.uid and _resource_version(ours) > _resource_version(seen):
            return ours
        self.forget(seen.metadata.name)
        return seen


def _resource_version(job: PodMigrationJob) -> int:
    text = job.metadata.resource_version
    return int(text) if text.isdigit() else 0


GC_INTERVAL_S = 60.0
GRACE_AFTER_TTL_S = 300.0
MAX_AGE_WITHOUT_TTL_S = 1800.0


class JobGarbageCollector:
    """Deletes jobs past their ttl with their reservations, and reservations whose job was deleted unseen."""

    def __init__(
        self,
        context: DeschedulerContext,
        snapshot_source: SnapshotSource,
        reservations: Informer[Reservation],
        writer: MigrationWriter,
    ) -> None:
        self._context = context
        self._snapshot_source = snapshot_source
        self._reservations = reservations
        self._writer = writer

    async def run(self) -> None:
        while True:
            await self._context.clock.sleep(GC_INTERVAL_S)
            try:
                for job in self._snapshot_source.jobs.list():
                    if is_garbage(job, self._context.clock.time()):
                        await self._delete_job(job)
                await self._delete_orphaned_reservations()
            except TRANSIENT_ERRORS as outage:
                _LOG.warning("reservations without a job are not cleared away yet: %s", outage)
            except Exception:  # noqa: BLE001  one bad object must not end this for good: it is told
                _LOG.exception("jobs are not cleared away this time")

    async def _delete_orphaned_reservations(self) -> None:
        known, now_s = _reservation_names(self._snapshot_source.jobs.list()), self._context.clock.time()
        orphans = [one for one in self._reservations.list() if is_orphan(one, known, now_s)]
        if not orphans:
            return
        # The watch may be behind: no reservation is taken from a job that exists.
        listed = await self._context.client.list(POD_MIGRATION_JOBS)
        known = known if isinstance(listed, ApiError) else _reservation_names(listed.items)
        for one in orphans:
            refused = listed if isinstance(listed, ApiError) else None
            if one.metadata.name not in known:
                refused = refused or await self._writer.delete_reservation(one.metadata.name)
            if refused is not None:
                _LOG.warning("%s, which has no job, is not cleared away yet: %s", one.metadata.name, refused)

    async def _delete_job(self, job: PodMigrationJob) -> None:
        writer = self._writer
        refused: ApiError | Exception | None
        try:
            refused = await writer.delete_reservation(reservation_name(job)) or await writer.delete_job(job)
        except TRANSIENT_ERRORS as outage:
            refused = outage
        if refused is not None:
            _LOG.warning("%s is not cleared away yet: %s", job.metadata.name, refused)


def _reservation_names(jobs: Iterable[PodMigrationJob]) -> set[str]:
    """Return the names of the reservations that jobs refer to, or may have made and not yet written down."""
    return {name for job in jobs for name in (reservation_name(job), job.metadata.uid)}


def is_orphan(reservation: Reservation, known: Container[str], now_s: float) -> bool:
    """Return whether a reservation that this program made has had no job for a while."""
    meta = reservation.metadata
    ours = meta.labels.get(CREATED_BY_LABEL) == DESCHEDULER_NAME
    age_s = now_s - meta.creation_timestamp.timestamp() if meta.creation_timestamp is not None else 0.0
    return ours and meta.name not in known and age_s >= GRACE_AFTER_TTL_S


def is_garbage(job: PodMigrationJob, now_s: float) -> bool:
    """Return whether the job is old enough to be deleted, in whatever phase."""
    limit_s, created = ttl_s(job), job.metadata.creation_timestamp
    keep_s = limit_s + GRACE_AFTER_TTL_S if limit_s > 0 else MAX_AGE_WITHOUT_TTL_S
    return created is not None and now_s - created.timestamp() >= keep_s
