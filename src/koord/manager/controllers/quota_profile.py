"""Reconciles each ElasticQuotaProfile with its root quota, whose size and content are computed purely at the top.

Nodes join and leave without an event for profiles: every profile is reconciled every ten seconds, as upstream does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import ClassVar

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.koordinator import protocol
from koord.api.koordinator.custom_kinds import ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.koordinator.profiles import ElasticQuotaProfile
from koord.api.koordinator.protocol import L_QUOTA_TREE_ID
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.meta import label_selector_as_selector
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter
from koord.kube.events.recorder import object_reference
from koord.kube.informer.cache import ObjectChange, ObjectKey
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.manager.reconcile_loop import ManagerContext, ReconcileLoop
from koord.values import resources as vector
from koord.values.go_format import parse_finite_float
from koord.values.quantity import ZERO, Format, Quantity, QuantityError
from koord.values.resources import CPU, MEMORY, Resources
from koord.values.selector import Selector, SelectorError

# Larger than any cluster, and small enough that sums in thousandths stay within 64 bits.
UNLIMITED_QUANTITY = Quantity.from_value(((1 << 63) - 1) // 2000)

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3


class PoolNode(msgspec.Struct, frozen=True):
    name: str
    labels: dict[str, str]
    allocatable: Resources
    is_schedulable: bool  # ready, and open for new pods

    @staticmethod
    def from_node(node: Node) -> PoolNode:
        ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)
        return PoolNode(
            node.metadata.name,
            node.metadata.labels,
            vector.parse(node.status.allocatable),
            ready and not node.spec.unschedulable,
        )


class NodePoolTotal(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    unschedulable_nodes: int
    ratio: float | None  # None: the profile asks for the plain sum
    total: Resources
    unschedulable: Resources


class RootQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The desired content of the quota; further labels and annotations are left alone."""

    labels: dict[str, str]
    annotations: dict[str, str]
    min: Resources
    max: Resources
    warning: str = ""  # what the profile says and cannot be used


def default_tree_id(namespace: str, name: str) -> str:
    """Return the tree id of a profile that names none: FNV-1a, 64 bits, in decimal."""
    digest = _FNV_OFFSET
    for byte in f"{namespace}/{name}".encode():
        digest = ((digest ^ byte) * _FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return str(digest)


def parse_resource_ratio(text: str | None) -> float | None:
    """Parse the ratio; what is not above 0 and up to 1 counts as 1."""
    if text is None:
        return None
    ratio = parse_finite_float(text)
    return ratio if ratio is not None and 0 < ratio <= 1 else 1.0


def sum_pool(nodes: Iterable[PoolNode], selector: Selector, ratio: float | None) -> NodePoolTotal:
    total: dict[str, Quantity] = {}
    unschedulable: dict[str, Quantity] = {}
    count = unusable = 0
    for node in nodes:
        if not selector.matches(node.labels):
            continue
        count += 1
        total = vector.add(total, node.allocatable)
        if not node.is_schedulable:
            unusable += 1
            unschedulable = vector.add(unschedulable, node.allocatable)
    return NodePoolTotal(
        nodes=count,
        unschedulable_nodes=unusable,
        ratio=ratio,
        total=_scale(total, ratio),
        unschedulable=_scale(unschedulable, ratio),
    )


def desired_root_quota(profile: ElasticQuotaProfile, tree_id: str, pool: NodePoolTotal) -> RootQuota:
    """Return the desired root quota. Unreadable resource keys count as none: the usual ones beat no quota."""
    stated = quota_codecs.quota_resource_keys(profile.metadata.annotations)
    keys = quota_codecs.DEFAULT_QUOTA_RESOURCE_KEYS if isinstance(stated, MalformedAnnotation) else stated
    return RootQuota(
        warning=str(stated) if isinstance(stated, MalformedAnnotation) else "",
        labels={
            protocol.L_QUOTA_PROFILE: profile.metadata.name,
            **profile.spec.quota_labels,
            protocol.L_QUOTA_TREE_ID: tree_id,
            protocol.L_QUOTA_IS_ROOT: protocol.TRUE,
        },
        annotations={
            protocol.A_QUOTA_TOTAL_RESOURCE: dump_json(vector.to_wire(pool.total)),
            protocol.A_QUOTA_UNSCHEDULABLE_RESOURCE: dump_json(vector.to_wire(pool.unschedulable)),
        },
        min={key: pool.total.get(key, ZERO) for key in keys},
        max=dict.fromkeys(keys, UNLIMITED_QUANTITY),
    )


def create_body(root: RootQuota, namespace: str, name: str) -> Unstructured:
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": root.labels, "annotations": root.annotations},
        "spec": {"min": vector.to_wire(root.min), "max": vector.to_wire(root.max)},
    }


def update_patch(root: RootQuota, quota: ElasticQuota) -> Unstructured | None:
    """Return the merge patch that updates the quota, or None when it is up to date."""
    metadata: Unstructured = {}
    meta = quota.metadata
    if labels := {key: value for key, value in root.labels.items() if meta.labels.get(key) != value}:
        metadata["labels"] = labels
    if notes := {
        key: text for key, text in root.annotations.items() if not _is_same_resource_list(meta.annotations, key, text)
    }:
        metadata["annotations"] = notes
    spec: Unstructured = {}
    for field, target, known in (("min", root.min, quota.spec.min), ("max", root.max, quota.spec.max)):
        if not vector.equals(target, vector.parse(known)):
            spec[field] = {**dict.fromkeys(known.keys() - target.keys()), **vector.to_wire(target)}
    patch: Unstructured = {**({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}
    return patch or None


def _is_same_resource_list(annotations: Mapping[str, str], key: str, text: str) -> bool:
    """Return whether the amounts are equal, however they are written."""
    if annotations.get(key) == text:
        return True
    known, target = (
        quota_codecs.parse_quota_resources(annotations, key),
        quota_codecs.parse_quota_resources({key: text}, key),
    )
    if (
        known is None
        or isinstance(known, MalformedAnnotation)
        or target is None
        or isinstance(target, MalformedAnnotation)
    ):
        return False
    return vector.equals(vector.parse(known), vector.parse(target))


def _scale(amounts: Resources, ratio: float | None) -> Resources:
    if ratio is None:
        return amounts
    return {name: _scale_quantity(name, amount, ratio) for name, amount in amounts.items()}


def _scale_quantity(name: str, amount: Quantity, ratio: float) -> Quantity:
    """Scale the quantity, truncated to milli-cpus and to whole units of all else."""
    if name == CPU:
        return Quantity.from_milli(int(amount.milli_value() * ratio))
    return Quantity.from_value(int(amount.value() * ratio), Format.BINARY_SI if name == MEMORY else Format.DECIMAL_SI)


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
        self._pool_nodes: dict[str, PoolNode] = {}
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
            tree_id = default_tree_id(*key)
            if refused := await self._label_tree_id(profile, tree_id):
                return Done() if refused.not_found else Requeue(str(refused))
        root = self._decide(profile, tree_id)
        if isinstance(root, str):
            self._quiet.warning("quota profile %s/%s makes no quota: %s", *key, root)
            return RequeueAfter(RESYNC_S)
        if root.warning:
            self._quiet.warning("quota profile %s/%s: %s; cpu and memory are used", *key, root.warning)
        return await self._write(profile, root)

    def _decide(self, profile: ElasticQuotaProfile, tree_id: str) -> RootQuota | str:
        try:
            selector = label_selector_as_selector(profile.spec.node_selector)
        except SelectorError as error:
            return f"nodeSelector: {error}"
        if not profile.spec.quota_name:
            return "quotaName is empty"
        nodes = (self._pool_nodes[name] for name in sorted(self._pool_nodes))
        return desired_root_quota(
            profile,
            tree_id,
            sum_pool(nodes, selector, parse_resource_ratio(profile.spec.resource_ratio)),
        )

    async def _label_tree_id(self, profile: ElasticQuotaProfile, tree_id: str) -> ApiError | None:
        patch = {"metadata": {"labels": {L_QUOTA_TREE_ID: tree_id}}}
        answer = await self._client.patch_object(ELASTIC_QUOTA_PROFILES, profile, patch, kind="merge")
        return answer if isinstance(answer, ApiError) else None

    async def _write(self, profile: ElasticQuotaProfile, root: RootQuota) -> ReconcileResult:
        namespace, name = profile.metadata.namespace, profile.spec.quota_name
        quota = self._quotas.get(namespace, name)
        if quota is None:
            answer = await self._client.create(ELASTIC_QUOTAS, create_body(root, namespace, name))
            failure = "CreateQuotaFailed"
        else:
            patch = update_patch(root, quota)
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
            self._pool_nodes[name] = PoolNode.from_node(change.object)
        except QuantityError as error:
            _LOG.warning("node %s counts for no quota profile: %s", name, error)
            self._pool_nodes.pop(name, None)
