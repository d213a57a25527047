"""The parts of nodes and pods that the operator reads; nothing else is kept in memory."""

from __future__ import annotations

from datetime import datetime
from typing import cast

import msgspec

from koord.api.koordinator.protocol import A_ORIGIN_EXTENDED_ALLOCATABLE, A_THIRD_PARTY_ALLOCATIONS
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, DEPRECATED_BATCH
from koord.api.koordinator.yarn import (
    A_CLUSTER_ID,
    A_NODE_ID,
    MalformedNodeId,
    YarnNodeId,
    cluster_id,
    is_node_manager,
    parse_node_id,
)
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes import pod as api_pod
from koord.api.kubernetes.meta import Object, ObjectMeta
from koord.api.kubernetes.pod import ResourceRequirements
from koord.api.kubernetes.pod_resources import pod_requests
from koord.api.kubernetes.resource import Resource
from koord.api.model import ResourceList, Submodel

_NODE_ANNOTATIONS = (A_ORIGIN_EXTENDED_ALLOCATABLE, A_THIRD_PARTY_ALLOCATIONS)
_BATCH_NAMES = (BATCH_CPU, BATCH_MEMORY)
_HOLDING_PHASES = ("Running", "Pending")


class BatchAmounts(msgspec.Struct, frozen=True):
    """BatchAmounts is an amount of both batch resources."""

    cpu_milli: int = 0
    memory_bytes: int = 0

    def __add__(self, other: BatchAmounts) -> BatchAmounts:
        return BatchAmounts(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes)


class YarnNodeStatus(Submodel, frozen=True, kw_only=True):
    allocatable: ResourceList = {}


class YarnNode(Object, frozen=True, kw_only=True):
    status: YarnNodeStatus = YarnNodeStatus()


class YarnContainer(Submodel, frozen=True, kw_only=True):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class YarnPodSpec(Submodel, frozen=True, kw_only=True):
    node_name: str = ""
    containers: tuple[YarnContainer, ...] = ()
    init_containers: tuple[YarnContainer, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: ResourceList | None = None


class YarnPodStatus(Submodel, frozen=True, kw_only=True):
    phase: str = ""


class NodeManager(Submodel, frozen=True, kw_only=True):
    """NodeManager is what a pod says of the NodeManager in it."""

    cluster: str
    node_id: YarnNodeId | None
    flaw: str = ""  # why there is no identity
    since: datetime | None = None


class YarnPod(Object, frozen=True, kw_only=True):
    spec: YarnPodSpec = YarnPodSpec()
    status: YarnPodStatus = YarnPodStatus()
    # Not on the wire: worked out by `transform_pod`.
    requested: BatchAmounts = BatchAmounts()
    node_manager: NodeManager | None = None


NODES: Resource[YarnNode] = builtin_kinds.NODES.with_model(YarnNode)
PODS: Resource[YarnPod] = builtin_kinds.PODS.with_model(YarnPod)


def transform_node(node: YarnNode) -> YarnNode:
    meta = node.metadata
    kept = ObjectMeta(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        annotations={key: meta.annotations[key] for key in _NODE_ANNOTATIONS if key in meta.annotations},
    )
    allocatable = {name: node.status.allocatable[name] for name in _BATCH_NAMES if name in node.status.allocatable}
    return YarnNode(metadata=kept, status=YarnNodeStatus(allocatable=allocatable))


def transform_pod(pod: YarnPod) -> YarnPod | None:
    """Reduce a pod; None for one that has ended, has no node yet, or neither requests batch resources nor is a
    NodeManager.
    """
    if not pod.spec.node_name or pod.status.phase not in _HOLDING_PHASES:
        return None
    requested = batch_requests(pod)
    manager = node_manager_of(pod.metadata)
    if manager is None and requested == BatchAmounts():
        return None
    meta = pod.metadata
    return YarnPod(
        metadata=ObjectMeta(
            name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version
        ),
        spec=YarnPodSpec(node_name=pod.spec.node_name),
        requested=requested,
        node_manager=manager,
    )


def batch_requests(pod: YarnPod) -> BatchAmounts:
    requests = pod_requests(cast(api_pod.PodSpec, pod.spec))
    for old, name in DEPRECATED_BATCH.items():
        requests[name] = requests.get(name, 0) + requests.get(old, 0)
    return BatchAmounts(requests[BATCH_CPU], requests[BATCH_MEMORY])


def node_manager_of(meta: ObjectMeta) -> NodeManager | None:
    if not is_node_manager(meta.labels):
        return None
    known = {key: meta.annotations[key] for key in (A_NODE_ID, A_CLUSTER_ID) if key in meta.annotations}
    found = parse_node_id(known)
    if isinstance(found, MalformedNodeId):
        return NodeManager(cluster=cluster_id(known), node_id=None, flaw=str(found), since=meta.creation_timestamp)
    return NodeManager(cluster=cluster_id(known), node_id=found, since=meta.creation_timestamp)
