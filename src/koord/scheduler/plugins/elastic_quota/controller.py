"""Run the controllers of ElasticQuota: create the default quotas, write the status of all, revoke over-used ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator import protocol
from koord.api.koordinator.custom_kinds import ELASTIC_QUOTAS
from koord.api.koordinator.sigs_scheduling import ElasticQuota as QuotaObject
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.model import ResourceList
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.scheduler.controller import SchedulerController, SchedulerControllerContext
from koord.scheduler.evictor import victim_record
from koord.scheduler.plugins.elastic_quota.plugin import (
    ElasticQuotaPlugin,
    OveruseState,
    observe_overuse,
    overused_quotas,
    select_revoked_pods,
)
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from koord.scheduler.plugins.elastic_quota.report import decide_status_patch, quota_figures
from koord.scheduler.plugins.elastic_quota.tree import BUILTIN_QUOTAS
from koord.values import duration
from koord.values.resources import format_amounts, subtract_amounts


def quota_controllers(context: SchedulerControllerContext) -> Sequence[SchedulerController]:
    """Build the quota controllers with the first profile's arguments: there is one set of objects."""
    plugin = context.plugins[0]
    assert isinstance(plugin, ElasticQuotaPlugin)
    return (
        DefaultQuotaController(context, plugin),
        QuotaStatusController(context, plugin),
        QuotaOverUsedRevokeController(context, plugin),
    )


_LOG = logging.getLogger(__name__)

CREATE_RETRY_S = 30.0  # for a namespace that does not exist yet, or a server that does not answer


class DefaultQuotaController:
    """Create the quotas that always exist: the root, and the groups of pods that have no other."""

    name: ClassVar[str] = "the quotas that are always there"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("scheduling.sigs.k8s.io", ("elasticquotas",), (*READ_VERBS, "create")),
    )

    def __init__(self, context: SchedulerControllerContext, plugin: ElasticQuotaPlugin) -> None:
        self._client = context.client
        self._clock = context.clock
        self._quotas = context.handle.lister(ELASTIC_QUOTAS)
        self._args = plugin.args
        self._quiet = RateLimitedLog(_LOG, context.clock, every_s=600.0, burst=1)

    async def run(self) -> None:
        """Run until all of them exist. Nothing depends on them: an object only states another max."""
        for body in self.desired_quotas():
            while not await self._ensure(body):  # what keeps one from being made keeps the others too
                await self._clock.sleep(CREATE_RETRY_S)

    def desired_quotas(self) -> list[dict[str, Any]]:
        args = self._args
        root = {
            protocol.L_QUOTA_IS_PARENT: protocol.TRUE,
            protocol.L_QUOTA_ALLOW_LENT_RESOURCE: protocol.FALSE,
            protocol.L_QUOTA_PARENT: "",
        }
        return [
            self._body(protocol.ROOT_QUOTA, {}, root),
            self._body(protocol.SYSTEM_QUOTA, args.system_quota_group_max, {}),
            self._body(protocol.DEFAULT_QUOTA, args.default_quota_group_max, {}),
        ]

    def _body(self, name: str, most: ResourceList, labels: dict[str, str]) -> dict[str, Any]:
        metadata = {"name": name, "namespace": self._args.quota_group_namespace, "labels": labels}
        return {"metadata": metadata, "spec": {"max": dict(most), "min": {}}}

    async def _ensure(self, body: dict[str, Any]) -> bool:
        """Create the quota unless it exists; return whether it exists now."""
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        if self._quotas.get(namespace, name) is not None:
            return True
        try:
            answer = await self._client.create(ELASTIC_QUOTAS, body)
        except TRANSIENT_ERRORS as outage:
            self._quiet.warning("the quota %s/%s is not made: %s", namespace, name, outage)
            return False
        if isinstance(answer, ApiError) and not answer.already_exists:
            self._quiet.warning("the quota %s/%s is not made: %s", namespace, name, answer)
            return False
        return True


OVERUSE_RULE = "QuotaOverused"


class QuotaOverUsedRevokeController:
    """Evict the least important pods of quotas that used more than their runtime for too long."""

    name: ClassVar[str] = "the revocation of overused quotas"

    def __init__(self, context: SchedulerControllerContext, plugin: ElasticQuotaPlugin) -> None:
        args = plugin.args
        self._clock = context.clock
        self._evictor = context.evictor
        self._cache = plugin.quota_cache
        self._plugin = plugin.name
        self._enabled = args.monitor_all_quotas is True and plugin.quota_cache.rules.limits_by_runtime
        self._delay_s = duration.parse_seconds(args.delay_evict_time or "120s")
        self._interval_s = duration.parse_seconds(args.revoke_pod_interval or "1s")
        self._watch = OveruseState({})

    async def run(self) -> None:
        """Check all quotas periodically; a new leader starts timing anew, because it did not see what was before."""
        self._watch = OveruseState({})
        while self._enabled:
            await self.reconcile()
            await self._clock.sleep(self._interval_s)

    async def reconcile(self) -> None:
        over = overused_quotas(self._cache.manager)
        self._watch = observe_overuse(self._watch, over, self._clock.monotonic(), self._delay_s)
        for quota in self._watch.due:
            await self._revoke_quota(quota)

    async def _revoke_quota(self, quota: str) -> None:
        manager = self._cache.manager
        quota_node = manager.trees.node(quota)
        if quota_node is None:
            return
        entitled = manager.runtime(quota)
        used = dict(quota_node.used)
        staying = {}
        for pod in self._cache.pods_in_quota(quota):
            quota_pod = self._cache.quota_pod(pod)
            if pod.deleting:  # it gives back what it has without being asked again
                used = subtract_amounts(used, {name: n for name, n in quota_pod.requests.items() if name in used})
            elif self._evictor.serves_scheduler(pod.scheduler):
                staying[pod.uid] = (pod, quota_pod)
        leaving = select_revoked_pods((quota_pod for _, quota_pod in staying.values()), used, entitled)
        for number, quota_pod in enumerate(leaving, 1):
            pod = staying[quota_pod.uid][0]
            record = msgspec.structs.replace(
                victim_record(pod, plugin=self._plugin, rule=OVERUSE_RULE),
                measured=f"quota {quota} uses {format_amounts(used)}",
                threshold=(
                    f"it has been entitled to no more than {format_amounts(entitled)} for {self._delay_s:g}s or longer"
                ),
                rank=f"{number} of {len(leaving)} that leave, of {len(staying)} pods of the quota",
                why_this_pod=(f"among its pods this one of priority {pod.priority} is the least important that helps"),
                frees=quota_pod.requests,
                request=f"ElasticQuota {quota}",
            )
            await self._evictor.evict(pod, record)


STATUS_PERIOD_S = 1.0
_QUOTAS_PER_YIELD = 32  # quotas between two looks at the rest of the program
_MAX_CONCURRENT_WRITES = 8

QuotaKey = tuple[str, str]


class QuotaStatusController:
    """Write on every ElasticQuota what the quota cache says of it, where it does not show that already."""

    name: ClassVar[str] = "the status of quotas"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("scheduling.sigs.k8s.io", ("elasticquotas",), (*READ_VERBS, "patch")),
    )

    def __init__(self, context: SchedulerControllerContext, plugin: ElasticQuotaPlugin) -> None:
        self._client = context.client
        self._clock = context.clock
        self._cache = plugin.quota_cache
        self._quotas = context.handle.lister(ELASTIC_QUOTAS)
        self._quiet = RateLimitedLog(_LOG, context.clock)
        self._semaphore = asyncio.Semaphore(_MAX_CONCURRENT_WRITES)
        self._seen_versions: tuple[int, int] | None = None  # at which version of the manager and of the list
        # By object: the figures that are known to be shown, and the revision of the object that was looked at.
        self._written: dict[QuotaKey, tuple[Any, str]] = {}
        self.writes = 0
        metrics = context.metrics
        self._observe_write_s = metrics.quota_status_s.observe if metrics is not None else None

    async def run(self) -> None:
        self._seen_versions = None  # another leader may have written meanwhile
        self._written.clear()
        while True:
            await self.reconcile()
            await self._clock.sleep(STATUS_PERIOD_S)

    async def reconcile(self) -> None:
        """Check all quotas once, yielding to the scheduler in between."""
        self._cache.end_grace_periods()
        mark = (self._cache.manager.version, self._quotas.version)
        if mark == self._seen_versions:
            return
        listed = self._quotas.list()
        behind = []
        for count, live in enumerate(listed, 1):
            if self._is_outdated(live):
                behind.append(self._write_status(live))
            if count % _QUOTAS_PER_YIELD == 0:
                await asyncio.sleep(0)
        done = await asyncio.gather(*behind)
        for key in self._written.keys() - {_quota_key(live) for live in listed}:
            del self._written[key]
        self._seen_versions = mark if all(done) else None

    def _is_outdated(self, live: QuotaObject) -> bool:
        manager = self._cache.manager
        if not _is_authoritative(manager, live) or live.metadata.deletion_timestamp is not None:
            return False
        return self._written.get(_quota_key(live)) != (
            quota_figures(manager, live.metadata.name),
            live.metadata.resource_version,
        )

    async def _write_status(self, live: QuotaObject) -> bool:
        """Write the quota's status; return False when that has to be tried again."""
        async with self._semaphore:
            meta, manager = live.metadata, self._cache.manager
            found = quota_figures(manager, meta.name)
            patch = decide_status_patch(live, manager)
            if isinstance(patch, MalformedAnnotation):
                self._quiet.warning("the status of quota %s/%s is left alone: %s", *_quota_key(live), patch)
            elif patch is not None:
                started = self._clock.monotonic()
                try:
                    answer = await self._client.patch_object(ELASTIC_QUOTAS, live, patch, kind="merge")
                except TRANSIENT_ERRORS as outage:
                    self._quiet.warning("the status of quota %s/%s is not written: %s", *_quota_key(live), outage)
                    return False
                if isinstance(answer, ApiError):
                    if answer.not_found or answer.conflict:
                        return True  # it is gone, or another one by now: the watch will tell
                    self._quiet.warning("the status of quota %s/%s is not written: %s", *_quota_key(live), answer)
                    return False
                self.writes += 1
                if self._observe_write_s is not None:
                    self._observe_write_s(self._clock.monotonic() - started)
            self._written[_quota_key(live)] = (found, meta.resource_version)
            return True


def _is_authoritative(manager: GroupQuotaManager, live: QuotaObject) -> bool:
    """Return whether this object is the one that counts of those that share its name."""
    if live.metadata.name == protocol.ROOT_QUOTA or live.metadata.name in BUILTIN_QUOTAS:
        return True
    quota = manager.quota_index.get(live.metadata.name)
    return quota is not None and quota.namespace == live.metadata.namespace


def _quota_key(live: QuotaObject) -> QuotaKey:
    return live.metadata.namespace, live.metadata.name
