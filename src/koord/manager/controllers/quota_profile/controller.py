"""Reconciles each ElasticQuotaProfile with its root quota.

Nodes join and leave without an event for profiles: every profile is reconciled every ten seconds, as
upstream does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar

from koord.api.builtin import NODES
from koord.api.custom import ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.node import Node
from koord.api.protocol import L_QUOTA_TREE_ID
from koord.api.quota import ElasticQuotaProfile
from koord.api.right import READ, Right
from koord.kube.cache import Change, Key
from koord.kube.controller import Controller, Done, Outcome, Requeue, Retry
from koord.kube.noise import QuietLog
from koord.kube.recorder import reference
from koord.kube.refused import Refused
from koord.kube.subscription import Subscription
from koord.kube.workqueue import WorkQueue
from koord.manager.controllers.quota_profile.pool import (
    NodeShare,
    RootQuota,
    change,
    creation,
    measure,
    ratio_of,
    tree_id_of,
    wanted,
)
from koord.manager.world import World
from koord.values.quantity import QuantityError
from koord.values.selector import NOTHING, Selector, SelectorError

ROUND_S = 10.0
AFTER_FAILURE_S = 2.0

_LOG = logging.getLogger(__name__)


class QuotaProfileController:
    name: ClassVar[str] = "quotaprofile"
    rights: ClassVar[tuple[Right, ...]] = (
        Right("quota.koordinator.sh", ("elasticquotaprofiles",), (*READ, "patch")),
        Right("scheduling.sigs.k8s.io", ("elasticquotas",), (*READ, "create", "patch")),
        Right("", ("nodes",), READ),
    )

    def __init__(self, world: World) -> None:
        self._client = world.client
        self._recorder = world.recorder
        self._profiles = world.informers.of(ELASTIC_QUOTA_PROFILES)
        self._quotas = world.informers.of(ELASTIC_QUOTAS)
        self._nodes = world.informers.of(NODES)
        self._shares: dict[str, NodeShare] = {}
        self._clock = world.clock
        self._quiet = QuietLog(_LOG, world.clock)
        self._queue: WorkQueue[Key] = WorkQueue(world.clock, name=self.name)
        self._subscriptions: tuple[Subscription[ElasticQuotaProfile], Subscription[Node]] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the controller, also after `stop`: a replica may lead more than once."""
        self._queue = WorkQueue(self._clock, name=self.name)
        self._shares.clear()
        self._subscriptions = self._profiles.on(self._on_profile), self._nodes.on(self._on_node)
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        if self._subscriptions is not None:
            profiles, nodes = self._subscriptions
            self._profiles.off(profiles)
            self._nodes.off(nodes)
            self._subscriptions = None
        self._queue.shutdown(drain=False)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def reconcile(self, key: Key) -> Outcome:
        profile = self._profiles.get(*key)
        if profile is None or profile.metadata.deletion_timestamp is not None:
            return Done()
        tree_id = profile.metadata.labels.get(L_QUOTA_TREE_ID, "")
        if not tree_id:
            tree_id = tree_id_of(*key)
            if refused := await self._name_tree(profile, tree_id):
                return Done() if refused.not_found else Requeue(str(refused))
        root = self._decide(profile, tree_id)
        if isinstance(root, str):
            self._quiet.warning("quota profile %s/%s makes no quota: %s", *key, root)
            return Retry(ROUND_S)
        if root.complaint:
            self._quiet.warning("quota profile %s/%s: %s; cpu and memory are used", *key, root.complaint)
        return await self._write(profile, root)

    async def _run(self) -> None:
        # A sum over half the nodes would shrink a quota for a moment: wait until all are known.
        for informer in (self._profiles, self._quotas, self._nodes):
            await informer.wait_synced()
        await Controller(self.name, self._queue, self.reconcile).run()

    def _decide(self, profile: ElasticQuotaProfile, tree_id: str) -> RootQuota | str:
        """Return the root quota, or why there is none."""
        try:
            selector = _selector(profile)
        except SelectorError as error:
            return f"nodeSelector: {error}"
        if not profile.spec.quota_name:
            return "quotaName is empty"
        nodes = (self._shares[name] for name in sorted(self._shares))
        return wanted(profile, tree_id, measure(nodes, selector, ratio_of(profile.spec.resource_ratio)))

    async def _name_tree(self, profile: ElasticQuotaProfile, tree_id: str) -> Refused | None:
        meta = profile.metadata
        patch = {"metadata": {"labels": {L_QUOTA_TREE_ID: tree_id}}}
        answer = await self._client.patch(
            ELASTIC_QUOTA_PROFILES, meta.name, patch, meta.namespace, kind="merge", uid=meta.uid
        )
        return answer if isinstance(answer, Refused) else None

    async def _write(self, profile: ElasticQuotaProfile, root: RootQuota) -> Outcome:
        namespace, name = profile.metadata.namespace, profile.spec.quota_name
        quota = self._quotas.get(namespace, name)
        if quota is None:
            answer = await self._client.create(ELASTIC_QUOTAS, creation(root, namespace, name))
            failure = "CreateQuotaFailed"
        else:
            patch = change(root, quota)
            if patch is None:
                return Retry(ROUND_S)
            answer = await self._client.patch(
                ELASTIC_QUOTAS, name, patch, namespace, kind="merge", uid=quota.metadata.uid
            )
            failure = "UpdateQuotaFailed"
        if not isinstance(answer, Refused):
            return Retry(ROUND_S)
        if answer.already_exists or answer.not_found or answer.conflict:
            return Retry(AFTER_FAILURE_S)  # the watch is behind; the next look knows more
        self._recorder.record(
            reference(ELASTIC_QUOTA_PROFILES, profile), "Warning", failure, f"failed to write quota {name}: {answer}"
        )
        return Retry(AFTER_FAILURE_S)

    def _on_profile(self, change: Change[ElasticQuotaProfile]) -> None:
        meta, old = change.object.metadata, change.old
        if change.kind == "deleted":
            return
        if old is None or old.metadata.generation != meta.generation or old.metadata.uid != meta.uid:
            self._queue.add((meta.namespace, meta.name))

    def _on_node(self, change: Change[Node]) -> None:
        name = change.object.metadata.name
        if change.kind == "deleted":
            self._shares.pop(name, None)
            return
        try:
            self._shares[name] = NodeShare.of(change.object)
        except QuantityError as error:
            _LOG.warning("node %s counts for no quota profile: %s", name, error)
            self._shares.pop(name, None)


def _selector(profile: ElasticQuotaProfile) -> Selector:
    given = profile.spec.node_selector
    if given is None:
        return NOTHING
    return Selector.of(given.match_labels, ((one.key, one.operator, one.values) for one in given.match_expressions))
