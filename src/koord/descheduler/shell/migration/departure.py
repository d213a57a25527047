"""Evicts one pod by the policy that it, its job or the configuration names, within the configured rate."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from koord.api.annotations import evict_reason, soft_eviction
from koord.api.annotations.soft_eviction import SoftEviction
from koord.api.config.descheduler.migration import (
    DELETE,
    EVICTION_POLICIES,
    SOFT_EVICTION,
    MigrationControllerArgs,
    evict_qps,
)
from koord.api.koord_scheduling import DeleteOptions, PodMigrationJob
from koord.api.protocol import A_EVICT_TRIGGER, A_SOFT_EVICTION, L_EVICT_POLICY, REASON_TOO_MANY_EVICTIONS
from koord.descheduler.metrics import ERROR, SUCCESS
from koord.descheduler.migration.limiter import Bucket
from koord.descheduler.wire import PODS, Pod
from koord.descheduler.world import World
from koord.kube.outage import OUTAGE
from koord.kube.recorder import reference
from koord.kube.refused import Refused

_LOG = logging.getLogger(__name__)


class Departures:
    def __init__(self, world: World, args: MigrationControllerArgs) -> None:
        self._world = world
        self._policy = args.eviction_policy
        self._bucket = Bucket(evict_qps(args), args.evict_burst or 1, world.clock.monotonic())

    async def send(self, job: PodMigrationJob, pod: Pod) -> str | None:
        """Evict the pod. Return None when it is on its way out, else the reason."""
        now = self._world.clock.monotonic()
        if self._bucket.tokens(now) < 1:
            return REASON_TOO_MANY_EVICTIONS
        self._bucket.take(now)
        try:
            refused = await self._asked(job, pod)
        except OUTAGE as outage:
            refused = str(outage)
        meta, trigger = pod.metadata, job.metadata.annotations.get(A_EVICT_TRIGGER, "")
        result = SUCCESS if refused is None else ERROR
        self._world.metrics.evicted(result, trigger, meta.namespace, pod.spec.node_name)
        if refused is None:
            why = evict_reason.parse(job.metadata.annotations)
            note = f'Pod evicted from node "{pod.spec.node_name}" by the reason "{why}"'
            about = reference(PODS, pod)
            self._world.recorder.record(about, "Normal", "Descheduled", note, action="Migrating")
        return refused

    def policy_of(self, job: PodMigrationJob, pod: Pod) -> str:
        for labels in (pod.metadata.labels, job.metadata.labels):
            if labels.get(L_EVICT_POLICY) in EVICTION_POLICIES:
                return str(labels[L_EVICT_POLICY])
        return self._policy

    async def _asked(self, job: PodMigrationJob, pod: Pod) -> str | None:
        meta, client, policy = pod.metadata, self._world.client, self.policy_of(job, pod)
        options = job.spec.delete_options
        grace = options.grace_period_seconds if options is not None else None
        answer: Any
        if policy == SOFT_EVICTION:
            patch = {"metadata": {"annotations": self._request(job, options)}}
            answer = await client.patch(PODS, meta.name, patch, meta.namespace, kind="merge", uid=meta.uid)
        elif policy == DELETE:
            answer = await client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=grace)
        else:
            answer = await client.evict(meta.namespace, meta.name, uid=meta.uid, grace_seconds=grace)
        if isinstance(answer, Refused) and not answer.not_found:
            return str(answer)
        return None

    def _request(self, job: PodMigrationJob, options: DeleteOptions | None) -> Mapping[str, str]:
        """Return the soft-eviction annotation for whoever removes such pods: when, how, by whom and why."""
        wanted = SoftEviction(
            timestamp=datetime.fromtimestamp(self._world.clock.time(), UTC),
            delete_options=options,
            initiator=job.metadata.annotations.get(A_EVICT_TRIGGER, ""),
            reason=evict_reason.parse(job.metadata.annotations),
        )
        return {A_SOFT_EVICTION: soft_eviction.dump(wanted)}
