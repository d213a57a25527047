"""This module decides what NodeManagers offer and what their nodes say that YARN holds. It is pure.

A NodeManager offers what its node lends to batch work less what pods requested of it. Nothing is sent where that is
not known: a ResourceManager takes what is missing for zero, and zero ends every container of the node.

The models have the parts of nodes and pods that the operator reads; nothing else is kept in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.koordinator.protocol import A_ORIGIN_EXTENDED_ALLOCATABLE, A_THIRD_PARTY_ALLOCATIONS, BATCH
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, DEPRECATED_BATCH
from koord.api.koordinator.yarn import (
    A_CLUSTER_ID,
    A_NODE_ID,
    ALLOCATION_NAME,
    MIB,
    MILLI_PER_VCORE,
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
from koord.api.model import QuantityText, ResourceList, Submodel
from koord.values.quantity import Format, Quantity
from koord.wire.hadoop_yarn import RUNNING, NodeReport, ResourceMessage

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


MAX_INT32 = (1 << 31) - 1  # vcores on the wire
_EPOCH = datetime.fromtimestamp(0, UTC)
Reports = Mapping[YarnNodeId, NodeReport]


class YarnProblem(msgspec.Struct, frozen=True):
    """YarnProblem says why a node takes no part; `reason` is one of a few words, for metrics."""

    node: str
    reason: str
    text: str


class PlacedNodeManager(msgspec.Struct, frozen=True):
    """PlacedNodeManager is the one NodeManager of a node."""

    node: str
    cluster: str
    node_id: YarnNodeId


class CapacityUpdate(msgspec.Struct, frozen=True):
    placed: PlacedNodeManager
    present: ResourceMessage
    wanted: ResourceMessage


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """ClusterPlan is what one round sends for a cluster, and why some NodeManagers take no part in it."""

    updates: tuple[CapacityUpdate, ...] = ()
    problems: tuple[YarnProblem, ...] = ()


class SeenNodeManager(msgspec.Struct, frozen=True, kw_only=True):
    """SeenNodeManager is what is remembered of a NodeManager from round to round."""

    held: ResourceMessage | None  # what its containers were granted; None: not known yet
    missed_at: float | None = None  # when a ResourceManager first did not list it; None: it is listed


# By node and identity: after its pod moved or changed its identity, what the old one holds counts until it is given up.
SeenNodeManagers = dict[tuple[str, YarnNodeId], SeenNodeManager]


def place_node_managers(
    pods: Sequence[YarnPod], clusters: Sequence[str]
) -> tuple[dict[str, PlacedNodeManager], tuple[YarnProblem, ...]]:
    """Return the NodeManager of each node, and what is wrong with the other pods.

    The oldest pod of a node wins, and of two pods with one identity the older: a ResourceManager would give what the
    node lends twice.
    """
    placed: dict[str, PlacedNodeManager] = {}
    taken: dict[tuple[str, YarnNodeId], str] = {}
    problems: list[YarnProblem] = []
    for pod in sorted(pods, key=_age):
        manager, node = pod.node_manager, pod.spec.node_name
        if manager is None:
            continue
        name = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
        if manager.node_id is None:
            problems.append(YarnProblem(node, "node-id", f"{name}: {manager.flaw}"))
        elif manager.cluster not in clusters:
            text = f'{name}: no configuration of the cluster "{manager.cluster}"'
            problems.append(YarnProblem(node, "unknown-cluster", text))
        elif node in placed:
            text = f"{name}: the node has another NodeManager, {placed[node].node_id}"
            problems.append(YarnProblem(node, "second-node-manager", text))
        elif (manager.cluster, manager.node_id) in taken:
            text = f"{name}: {manager.node_id} is on node {taken[manager.cluster, manager.node_id]} as well"
            problems.append(YarnProblem(node, "duplicate-node-id", text))
        else:
            placed[node] = PlacedNodeManager(node, manager.cluster, manager.node_id)
            taken[manager.cluster, manager.node_id] = node
    return placed, tuple(problems)


def lent_to_batch(node: YarnNode) -> BatchAmounts | str:
    """Return what a node lends to batch work in all, or why that is not known.

    koord-manager writes it beside what other orchestrators left; without that annotation the node's allocatable is the
    whole. A number that is missing is not zero.
    """
    origin = node_codecs.parse_origin_allocatable(node.metadata.annotations)
    if isinstance(origin, MalformedAnnotation):
        return str(origin)
    listed: Mapping[str, QuantityText] = node.status.allocatable if origin is None else origin.resources
    missing = [name for name in (BATCH_CPU, BATCH_MEMORY) if name not in listed]
    if missing:
        place = "allocatable" if origin is None else A_ORIGIN_EXTENDED_ALLOCATABLE
        return f"{place} has no {' and no '.join(missing)}"
    cpu, memory = (Quantity.parse(listed[name]).value() for name in (BATCH_CPU, BATCH_MEMORY))
    return BatchAmounts(cpu, memory)


def decide_capacity(lent: BatchAmounts, requested: BatchAmounts) -> ResourceMessage:
    """Return what a NodeManager offers: what pods left of what is lent, in whole vcores and MiB, rounded up."""
    cpu = max(lent.cpu_milli - requested.cpu_milli, 0)
    memory = max(lent.memory_bytes - requested.memory_bytes, 0)
    return ResourceMessage(memory_mib=-(-memory // MIB), vcores=min(-(-cpu // MILLI_PER_VCORE), MAX_INT32))


def decide_cluster(
    placed: Sequence[PlacedNodeManager],
    nodes: Mapping[str, YarnNode],
    requested: Mapping[str, BatchAmounts],
    reports: Reports,
) -> ClusterPlan:
    """Decide what one round sends to the ResourceManager of a cluster."""
    updates: list[CapacityUpdate] = []
    problems: list[YarnProblem] = []
    for one in placed:
        report, node = reports.get(one.node_id), nodes.get(one.node)
        if report is None:
            problems.append(YarnProblem(one.node, "not-registered", _unregistered(one, reports)))
            continue
        if node is None or report.state != RUNNING:  # one that is being decommissioned keeps what it has
            continue
        lent = lent_to_batch(node)
        if isinstance(lent, str):
            problems.append(YarnProblem(one.node, "unknown-batch", f"nothing is sent to YARN: {lent}"))
            continue
        present = report.capability or ResourceMessage()
        wanted = decide_capacity(lent, requested.get(one.node, BatchAmounts()))
        if present != wanted:
            updates.append(CapacityUpdate(one, present, wanted))
    return ClusterPlan(updates=tuple(updates), problems=tuple(problems))


def decide_held(
    placed: Sequence[PlacedNodeManager], seen: SeenNodeManagers, reports: Reports, now: float, grace_s: float
) -> SeenNodeManagers:
    """Return what the NodeManagers of a cluster hold, those included whose pods have gone: containers run on until the
    ResourceManager gives them up.

    A NodeManager that is not listed any more holds for `grace_s` what it held: a ResourceManager that has just started
    lists nobody until they register again.
    """
    present = {(one.node, one.node_id) for one in placed}
    found: SeenNodeManagers = {}
    for key in dict.fromkeys((*present, *seen)):
        before, report = seen.get(key), reports.get(key[1])
        if report is not None:
            used = report.used or ResourceMessage()
            if key in present or used != ResourceMessage():
                found[key] = SeenNodeManager(held=used)
            continue
        missed_at = now if before is None or before.missed_at is None else before.missed_at
        if now - missed_at < grace_s:
            found[key] = SeenNodeManager(held=None if before is None else before.held, missed_at=missed_at)
        elif key in present:
            found[key] = SeenNodeManager(held=ResourceMessage(), missed_at=missed_at)
    return found


def total_held(seen: SeenNodeManagers) -> dict[str, BatchAmounts | None]:
    """Return what the NodeManagers of each node hold together; None where that of one is not known."""
    total: dict[str, BatchAmounts | None] = {}
    for (node, _), one in seen.items():
        before = total.get(node, BatchAmounts())
        total[node] = None if before is None or one.held is None else before + amounts_held(one.held)
    return total


def held_by_yarn(annotations: Mapping[str, str]) -> BatchAmounts | None:
    """Return what a node says that YARN holds; None: it says nothing that can be read."""
    listed = node_codecs.parse_third_party_allocations(annotations)
    if listed is None or isinstance(listed, MalformedAnnotation):
        return None
    for one in listed.allocations:
        if one.name == ALLOCATION_NAME:
            return BatchAmounts(
                Quantity.parse(one.resources.get(BATCH_CPU, "0")).value(),
                Quantity.parse(one.resources.get(BATCH_MEMORY, "0")).value(),
            )
    return None


def amounts_held(used: ResourceMessage) -> BatchAmounts:
    return BatchAmounts(max(used.vcores, 0) * MILLI_PER_VCORE, max(used.memory_mib, 0) * MIB)


def with_yarn_allocation(annotations: Mapping[str, str], held: BatchAmounts) -> str | MalformedAnnotation:
    """Return the text of the annotation with YARN's entry in it. Entries of others stay as they are, with fields that
    koord does not know; text that cannot be read is left to its writer.
    """
    listed = node_codecs.parse_third_party_allocations(annotations)
    if isinstance(listed, MalformedAnnotation):
        return listed
    plain: dict[str, Any] = {}
    if listed is not None:
        plain = msgspec.json.decode(annotations[A_THIRD_PARTY_ALLOCATIONS])
    entry = {
        "name": ALLOCATION_NAME,
        "priority": BATCH,
        "resources": {
            BATCH_CPU: str(Quantity.from_value(held.cpu_milli)),
            BATCH_MEMORY: str(Quantity.from_value(held.memory_bytes, Format.BINARY_SI)),
        },
    }
    others = [one for one in plain.get("allocations") or () if one.get("name") != ALLOCATION_NAME]
    return dump_json({**plain, "allocations": [*others, entry]})


def _age(pod: YarnPod) -> tuple[datetime, str, str]:
    since = pod.node_manager.since if pod.node_manager is not None else None
    return since or _EPOCH, pod.metadata.namespace, pod.metadata.name


def _unregistered(one: PlacedNodeManager, reports: Reports) -> str:
    """Say that no NodeManager is registered under this identity, and which one is meant where that can be guessed."""
    text = f"the ResourceManager of {one.cluster} has no running NodeManager {one.node_id}"
    host = one.node_id.host
    for other in sorted(reports):
        alike = other.host.startswith(f"{host}.") or host.startswith(f"{other.host}.")
        if other.host.lower() == host.lower() or alike:
            return f"{text}, but {other}"
    return text
