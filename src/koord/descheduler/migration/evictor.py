"""Evicts one pod by the policy that it, its job or the configuration names, within the configured rate."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from koord.api.annotations import eviction_codecs
from koord.api.annotations.eviction_codecs import SoftEviction
from koord.api.config.descheduler.migration_args import (
    DELETE,
    EVICTION_POLICIES,
    SOFT_EVICTION,
    MigrationControllerArgs,
    evict_qps,
)
from koord.api.koordinator.protocol import A_EVICT_TRIGGER, A_SOFT_EVICTION, L_EVICT_POLICY, REASON_TOO_MANY_EVICTIONS
from koord.api.koordinator.scheduling import PodMigrationJob
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.meta import DeleteOptions
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.rbac import RbacRule
from koord.descheduler.context import ERROR, SUCCESS, DeschedulerContext
from koord.kube.events.recorder import object_reference
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.values.token_bucket import TokenBucket

_LOG = logging.getLogger(__name__)


class PodEvictor:
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("pods",), ("patch", "delete")),  # the policies SoftEviction and Delete
        RbacRule("", ("pods/eviction",), ("create",)),
    )

    def __init__(self, context: DeschedulerContext, args: MigrationControllerArgs) -> None:
        self._context = context
        self._policy = args.eviction_policy
        self._bucket = TokenBucket(evict_qps(args), args.evict_burst or 1, context.clock.monotonic())

    async def evict(self, job: PodMigrationJob, pod: Pod) -> str | None:
        """Evict the pod. Return None when it is on its way out, else the reason."""
        if not self._bucket.allow(self._context.clock.monotonic()):
            return REASON_TOO_MANY_EVICTIONS
        try:
            refused = await self._request_eviction(job, pod)
        except TRANSIENT_ERRORS as outage:
            refused = str(outage)
        meta, trigger = pod.metadata, job.metadata.annotations.get(A_EVICT_TRIGGER, "")
        result = SUCCESS if refused is None else ERROR
        self._context.metrics.evicted(result, trigger, meta.namespace, pod.spec.node_name)
        if refused is None:
            why = eviction_codecs.parse_evict_reason(job.metadata.annotations)
            note = f'Pod evicted from node "{pod.spec.node_name}" by the reason "{why}"'
            about = object_reference(PODS, pod)
            self._context.recorder.record(about, "Normal", "Descheduled", note, action="Migrating")
        return refused

    def eviction_policy(self, job: PodMigrationJob, pod: Pod) -> str:
        for labels in (pod.metadata.labels, job.metadata.labels):
            if labels.get(L_EVICT_POLICY) in EVICTION_POLICIES:
                return str(labels[L_EVICT_POLICY])
        return self._policy

    async def _request_eviction(self, job: PodMigrationJob, pod: Pod) -> str | None:
        meta, client, policy = pod.metadata, self._context.client, self.eviction_policy(job, pod)
        options = job.spec.delete_options
        grace = options.grace_period_seconds if options is not None else None
        answer: Any
        if policy == SOFT_EVICTION:
            patch = {"metadata": {"annotations": self._soft_eviction_annotations(job, options)}}
            answer = await client.patch(PODS, meta.name, patch, meta.namespace, kind="merge", uid=meta.uid)
        elif policy == DELETE:
            answer = await client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=grace)
        else:
            answer = await client.evict(meta.namespace, meta.name, uid=meta.uid, grace_seconds=grace)
        if isinstance(answer, ApiError) and not answer.not_found:
            return str(answer)
        return None

    def _soft_eviction_annotations(self, job: PodMigrationJob, options: DeleteOptions | None) -> Mapping[str, str]:
        """Return the soft-eviction annotation for whoever removes such pods: when, how, by whom and why."""
        wanted = SoftEviction(
            timestamp=datetime.fromtimestamp(self._context.clock.time(), UTC),
            delete_options=options,
            initiator=job.metadata.annotations.get(A_EVICT_TRIGGER, ""),
            reason=eviction_codecs.parse_evict_reason(job.metadata.annotations),
        )
        return {A_SOFT_EVICTION: eviction_codecs.dump_soft_eviction(wanted)}
