"""Writes to jobs and reservations, each a patch of what changed with the uid of the object that was decided on; the
cache of own writes that informers have not shown yet; the garbage collector of jobs long past their ttl; and the
eviction of a pod, by the policy that it, its job or the configuration names, within the configured rate.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec

from koord.api.annotations import pod_codecs
from koord.api.annotations.pod_codecs import SoftEviction
from koord.api.config.descheduler import plugin_args
from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koordinator.protocol import (
    A_EVICT_TRIGGER,
    A_PASSED_ARBITRATION,
    A_SOFT_EVICTION,
    DESCHEDULER_NAME,
    L_EVICT_POLICY,
    L_RESERVATION_ORDER,
    REASON_TOO_MANY_EVICTIONS,
)
from koord.api.koordinator.scheduling import PodMigrationJob, PodMigrationJobStatus, Reservation
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.meta import DeleteOptions
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.model import to_dict
from koord.descheduler.context import ERROR, SUCCESS, DeschedulerContext
from koord.descheduler.migration.job import normalized_duration, reservation_name, ttl_s
from koord.descheduler.migration.reservation_fit import CREATED_BY_LABEL, build_reservation
from koord.descheduler.snapshot_source import SnapshotSource
from koord.kube.client.eviction import EvictionResult, delete_pod, evict_pod
from koord.kube.events.recorder import object_reference
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.policy.eviction import (
    DRY_RUN,
    EVICTED,
    FAILED,
    KOORD_DESCHEDULER,
    EvictionRecord,
    parse_record,
    record_annotations,
)
from koord.values.token_bucket import TokenBucket

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


MAX_BEGUN_RECORDS = 4096


class PodEvictor:
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("pods",), ("patch", "delete")),  # the policies SoftEviction and Delete
        RbacRule("", ("pods/eviction",), ("create",)),
    )

    def __init__(self, context: DeschedulerContext, args: plugin_args.MigrationControllerArgs) -> None:
        self._context = context
        self._policy = args.eviction_policy
        self._bucket = TokenBucket(plugin_args.evict_qps(args), args.evict_burst or 1, context.clock.monotonic())
        # By job: the records begun by the plugins of this process. A job carries no annotation but upstream's, so the
        # numbers of a job that an earlier process made are lost with it; its reason and trigger are not.
        self._begun: dict[str, EvictionRecord] = {}

    def remember(self, job_name: str, begun: EvictionRecord) -> None:
        """Keep the record of a proposal until the pod of its job is evicted."""
        if len(self._begun) >= MAX_BEGUN_RECORDS:
            self._begun.pop(next(iter(self._begun)))
        self._begun[job_name] = begun

    async def evict(self, job: PodMigrationJob, pod: Pod, options: DeleteOptions | None) -> EvictionResult:
        if not self._bucket.allow(self._context.clock.monotonic()):
            return EvictionResult(outcome=FAILED, detail=REASON_TOO_MANY_EVICTIONS)
        result = await self._request_eviction(job, pod, options)
        begun = self._begun.get(job.metadata.name)
        record = job_record(job, pod, begun).concluded(self._context.clock.time(), result.outcome, result.detail)
        self._context.ledger.add(record)
        if result.outcome == DRY_RUN:
            return result
        meta, trigger = pod.metadata, job.metadata.annotations.get(A_EVICT_TRIGGER, "")
        self._context.metrics.evicted(SUCCESS if result.evicted else ERROR, trigger, meta.namespace, pod.spec.node_name)
        if not result.evicted:
            return result
        self._begun.pop(job.metadata.name, None)
        why = pod_codecs.parse_evict_reason(job.metadata.annotations)
        note = f'Pod evicted from node "{pod.spec.node_name}" by the reason "{why}"'
        about = object_reference(PODS, pod)
        self._context.recorder.record(
            about, "Normal", "Descheduled", note, action="Migrating", annotations=record_annotations(record)
        )
        return result

    def eviction_policy(self, job: PodMigrationJob, pod: Pod) -> str:
        for labels in (pod.metadata.labels, job.metadata.labels):
            if labels.get(L_EVICT_POLICY) in plugin_args.EVICTION_POLICIES:
                return str(labels[L_EVICT_POLICY])
        return self._policy

    async def _request_eviction(self, job: PodMigrationJob, pod: Pod, options: DeleteOptions | None) -> EvictionResult:
        meta, client, policy = pod.metadata, self._context.client, self.eviction_policy(job, pod)
        if policy != plugin_args.SOFT_EVICTION:
            request = delete_pod if policy == plugin_args.DELETE else evict_pod
            return await request(
                client, meta.namespace, meta.name, uid=meta.uid, options=options, retries_conflict=True
            )
        dry_run = options is not None and options.is_dry_run
        patch = {"metadata": {"annotations": self._soft_eviction_annotations(job, options)}}
        try:
            answer = await client.patch(
                PODS, meta.name, patch, meta.namespace, kind="merge", uid=meta.uid, dry_run=dry_run
            )
        except TRANSIENT_ERRORS as outage:
            return EvictionResult(outcome=FAILED, detail=str(outage), is_uncertain=True)
        if isinstance(answer, ApiError) and not answer.not_found:
            return EvictionResult(outcome=FAILED, detail=answer.message, error=answer)
        return EvictionResult(outcome=DRY_RUN if dry_run else EVICTED, detail="it is marked for soft eviction")

    def _soft_eviction_annotations(self, job: PodMigrationJob, options: DeleteOptions | None) -> Mapping[str, str]:
        """Return the soft-eviction annotation for whoever removes such pods: when, how, by whom and why."""
        wanted = SoftEviction(
            timestamp=datetime.fromtimestamp(self._context.clock.time(), UTC),
            delete_options=options,
            initiator=job.metadata.annotations.get(A_EVICT_TRIGGER, ""),
            reason=pod_codecs.parse_evict_reason(job.metadata.annotations),
        )
        return {A_SOFT_EVICTION: pod_codecs.dump_soft_eviction(wanted)}


def job_record(job: PodMigrationJob, pod: Pod, proposed: EvictionRecord | None = None) -> EvictionRecord:
    """Return the record of a job's eviction, begun by whoever made the job, else by the job's reason and trigger."""
    meta, annotations = pod.metadata, job.metadata.annotations
    begun = proposed or parse_record(annotations)
    if not isinstance(begun, EvictionRecord):
        trigger = annotations.get(A_EVICT_TRIGGER, "")
        begun = EvictionRecord(
            actor=KOORD_DESCHEDULER,
            plugin=trigger,
            rule=trigger or POD_MIGRATION_JOBS.kind,
            reason=pod_codecs.parse_evict_reason(annotations),
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
        )
    return msgspec.structs.replace(
        begun,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        node=pod.spec.node_name,
        request=f"{POD_MIGRATION_JOBS.kind} {job.metadata.name}",
        request_uid=job.metadata.uid,
        count=1,
    )
