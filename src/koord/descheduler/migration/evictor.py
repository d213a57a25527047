"""Evicts one pod by the policy that it, its job or the configuration names, within the configured rate."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import ClassVar

import msgspec

from koord.api.annotations import pod_codecs
from koord.api.annotations.pod_codecs import SoftEviction
from koord.api.config.descheduler import migration_args
from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS
from koord.api.koordinator.protocol import A_EVICT_TRIGGER, A_SOFT_EVICTION, L_EVICT_POLICY, REASON_TOO_MANY_EVICTIONS
from koord.api.koordinator.scheduling import PodMigrationJob
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.meta import DeleteOptions
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.rbac import RbacRule
from koord.descheduler.context import ERROR, SUCCESS, DeschedulerContext
from koord.kube.client.eviction import EvictionResult, delete_pod, evict_pod
from koord.kube.events.recorder import object_reference
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

MAX_BEGUN_RECORDS = 4096


class PodEvictor:
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("pods",), ("patch", "delete")),  # the policies SoftEviction and Delete
        RbacRule("", ("pods/eviction",), ("create",)),
    )

    def __init__(self, context: DeschedulerContext, args: migration_args.MigrationControllerArgs) -> None:
        self._context = context
        self._policy = args.eviction_policy
        self._bucket = TokenBucket(migration_args.evict_qps(args), args.evict_burst or 1, context.clock.monotonic())
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
            if labels.get(L_EVICT_POLICY) in migration_args.EVICTION_POLICIES:
                return str(labels[L_EVICT_POLICY])
        return self._policy

    async def _request_eviction(self, job: PodMigrationJob, pod: Pod, options: DeleteOptions | None) -> EvictionResult:
        meta, client, policy = pod.metadata, self._context.client, self.eviction_policy(job, pod)
        if policy != migration_args.SOFT_EVICTION:
            request = delete_pod if policy == migration_args.DELETE else evict_pod
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
