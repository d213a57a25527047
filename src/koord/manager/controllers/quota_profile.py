"""Reconciles each ElasticQuotaProfile with its root quota.

Nodes join and leave without an event for profiles: every profile is reconciled every ten seconds, as upstream does.
"""

from __future__ import annotations

import logging
from typing import ClassVar

from koord.api.koordinator.custom_kinds import ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.koordinator.profiles import ElasticQuotaProfile
from koord.api.koordinator.protocol import L_QUOTA_TREE_ID
from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.meta import label_selector_as_selector
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter
from koord.kube.events.recorder import object_reference
from koord.kube.informer.cache import ObjectChange, ObjectKey
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.manager.controllers import root_quota
from koord.manager.reconcile_loop import ManagerContext, ReconcileLoop
from koord.values.quantity import QuantityError
from koord.values.selector import SelectorError

RESYNC_S = 10.0
RETRY_S = 2.0

_LOG = logging.getLogger(__name__)


class QuotaProfileController:
    name: ClassVar[str] = "quotaprofile"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("quota.koordinator.sh", ("elasticquotaprofiles",), (*READ_VERBS, "patch")),
        RbacRule("scheduling.sigs.k8s.io", ("elasticquotas",), (*READ_VERBS, "create", "patch")),
        RbacRule("", ("nodes",), READ_VERBS),
    )

    def __init__(self, context: ManagerContext) -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._profiles = context.informers.for_resource(ELASTIC_QUOTA_PROFILES)
        self._quotas = context.informers.for_resource(ELASTIC_QUOTAS)
        self._nodes = context.informers.for_resource(NODES)
        self._pool_nodes: dict[str, root_quota.PoolNode] = {}
        self._quiet = RateLimitedLog(_LOG, context.clock)
        self._loop: ReconcileLoop[ObjectKey] = ReconcileLoop(self.name, context.clock, self.reconcile)

    async def start(self) -> None:
        self._pool_nodes.clear()
        # A sum over half the nodes would shrink a quota for a moment: all must be known.
        self._loop.start(
            (self._profiles, self._quotas, self._nodes),
            ((self._nodes, self._on_node), (self._profiles, self._on_profile)),
        )

    async def stop(self) -> None:
        await self._loop.stop()

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        profile = self._profiles.get(*key)
        if profile is None or profile.metadata.deletion_timestamp is not None:
            return Done()
        tree_id = profile.metadata.labels.get(L_QUOTA_TREE_ID, "")
        if not tree_id:
            tree_id = root_quota.default_tree_id(*key)
            if refused := await self._label_tree_id(profile, tree_id):
                return Done() if refused.not_found else Requeue(str(refused))
        root = self._decide(profile, tree_id)
        if isinstance(root, str):
            self._quiet.warning("quota profile %s/%s makes no quota: %s", *key, root)
            return RequeueAfter(RESYNC_S)
        if root.warning:
            self._quiet.warning("quota profile %s/%s: %s; cpu and memory are used", *key, root.warning)
        return await self._write(profile, root)

    def _decide(self, profile: ElasticQuotaProfile, tree_id: str) -> root_quota.RootQuota | str:
        try:
            selector = label_selector_as_selector(profile.spec.node_selector)
        except SelectorError as error:
            return f"nodeSelector: {error}"
        if not profile.spec.quota_name:
            return "quotaName is empty"
        nodes = (self._pool_nodes[name] for name in sorted(self._pool_nodes))
        return root_quota.desired_root_quota(
            profile,
            tree_id,
            root_quota.sum_pool(nodes, selector, root_quota.parse_resource_ratio(profile.spec.resource_ratio)),
        )

    async def _label_tree_id(self, profile: ElasticQuotaProfile, tree_id: str) -> ApiError | None:
        patch = {"metadata": {"labels": {L_QUOTA_TREE_ID: tree_id}}}
        answer = await self._client.patch_object(ELASTIC_QUOTA_PROFILES, profile, patch, kind="merge")
        return answer if isinstance(answer, ApiError) else None

    async def _write(self, profile: ElasticQuotaProfile, root: root_quota.RootQuota) -> ReconcileResult:
        namespace, name = profile.metadata.namespace, profile.spec.quota_name
        quota = self._quotas.get(namespace, name)
        if quota is None:
            answer = await self._client.create(ELASTIC_QUOTAS, root_quota.create_body(root, namespace, name))
            failure = "CreateQuotaFailed"
        else:
            patch = root_quota.update_patch(root, quota)
            if patch is None:
                return RequeueAfter(RESYNC_S)
            answer = await self._client.patch_object(ELASTIC_QUOTAS, quota, patch, kind="merge")
            failure = "UpdateQuotaFailed"
        if not isinstance(answer, ApiError):
            return RequeueAfter(RESYNC_S)
        if answer.already_exists or answer.not_found or answer.conflict:
            return RequeueAfter(RETRY_S)  # the watch is behind; the next look knows more
        self._recorder.record(
            object_reference(ELASTIC_QUOTA_PROFILES, profile),
            "Warning",
            failure,
            f"failed to write quota {name}: {answer}",
        )
        return RequeueAfter(RETRY_S)

    def _on_profile(self, change: ObjectChange[ElasticQuotaProfile]) -> None:
        meta, old = change.object.metadata, change.old
        if change.kind == "deleted":
            return
        if old is None or old.metadata.generation != meta.generation or old.metadata.uid != meta.uid:
            self._loop.queue.add((meta.namespace, meta.name))

    def _on_node(self, change: ObjectChange[Node]) -> None:
        name = change.object.metadata.name
        if change.kind == "deleted":
            self._pool_nodes.pop(name, None)
            return
        try:
            self._pool_nodes[name] = root_quota.PoolNode.from_node(change.object)
        except QuantityError as error:
            _LOG.warning("node %s counts for no quota profile: %s", name, error)
            self._pool_nodes.pop(name, None)
