"""This module follows a cluster for the dashboard: informers of nodes, pods and NodeMetrics become rows of its table.

An event marks its node; once a second the marked nodes are computed again, by the function behind `koord top nodes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from koord.api.annotations.gang_codecs import gang_name_of_pod
from koord.api.koordinator.protocol import L_POD_GROUP
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.meta import Object, ObjectMeta
from koord.api.kubernetes.resource import Resource
from koord.api.model import ResourceList, Submodel
from koord.dashboard.fleet import FleetTable, NodeRow, PendingPod, ResourceUse, label_texts, pending_reason
from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import HandlerRegistration, Informer
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import Unreachable
from koord.manager.colocation import models
from koord.manager.explain import tier_usage
from koord.telemetry.clock import Clock

# Labels that name a node's pool, the first that a node has: koord up's, then those of the large clouds.
POOL_LABELS = (
    "sim.koord.sh/pool",
    "node.koordinator.sh/pool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "alibabacloud.com/nodepool-id",
    "node.kubernetes.io/instance-type",
)
NODES_AT_ONCE = 250  # some 50 ms: others in this process have their turn in between
_CRD_CHECK_S = 30.0
_ENDED = ("Succeeded", "Failed")
NO_METRICS = (
    "This cluster has no NodeMetrics, so nothing is known of use: koord manifests prints what installs koord-manager "
    "and koordlet, which report it."
)


class WatchedCondition(Submodel, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class WatchedNodeSpec(Submodel, frozen=True, kw_only=True):
    unschedulable: bool = False


class WatchedNodeStatus(Submodel, frozen=True, kw_only=True):
    capacity: ResourceList = {}
    allocatable: ResourceList = {}
    conditions: tuple[WatchedCondition, ...] = ()


class WatchedNode(Object, frozen=True, kw_only=True):
    spec: WatchedNodeSpec = WatchedNodeSpec()
    status: WatchedNodeStatus = WatchedNodeStatus()


class WatchedPodStatus(models.ColocationPodStatus, frozen=True, kw_only=True):
    conditions: tuple[WatchedCondition, ...] = ()


class WatchedPod(models.ColocationPod, frozen=True, kw_only=True):
    status: WatchedPodStatus = WatchedPodStatus()


NODES: Resource[WatchedNode] = builtin_kinds.NODES.with_model(WatchedNode)
PODS: Resource[WatchedPod] = builtin_kinds.PODS.with_model(WatchedPod)


def transform_node(node: WatchedNode) -> WatchedNode:
    """Reduce a node: of its conditions only readiness is shown."""
    meta = node.metadata
    kept = ObjectMeta(name=meta.name, uid=meta.uid, resource_version=meta.resource_version, labels=meta.labels)
    ready = tuple(one for one in node.status.conditions if one.type == "Ready")
    return WatchedNode(metadata=kept, spec=node.spec, status=msgspec.structs.replace(node.status, conditions=ready))


def transform_pod(pod: WatchedPod) -> WatchedPod | None:
    """Reduce a pod to what its tier, its requests and its waiting are computed from; drop one that has ended."""
    if pod.status.phase in _ENDED:
        return None
    meta = pod.metadata
    waits = not pod.spec.node_name
    labels = {key: value for key, value in meta.labels.items() if "koordinator.sh/" in key}
    if waits and (gang := gang_name_of_pod(meta.labels, meta.annotations)) is not None:
        labels[L_POD_GROUP] = gang
    kept = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        creation_timestamp=meta.creation_timestamp,
        labels=labels,
    )
    told = tuple(one for one in pod.status.conditions if waits and one.type == "PodScheduled")
    return WatchedPod(metadata=kept, spec=pod.spec, status=msgspec.structs.replace(pod.status, conditions=told))


class _Progress:
    """_Progress tells from an informer's counters whether it follows the server or only fails."""

    def __init__(self, informer: Informer[Any]) -> None:
        self._informer = informer
        self._steps = self._failures = -1
        self.problem = ""

    def check(self) -> str:
        counts = self._informer.counts
        steps = counts.lists + counts.watches + counts.events + counts.bookmarks
        if counts.failures > max(self._failures, 0):
            self.problem = counts.last_failure
        elif steps > self._steps:
            self.problem = ""
        self._steps, self._failures = steps, counts.failures
        return self.problem


class ClusterWatch:
    """ClusterWatch feeds a fleet table: `start`, then `refresh` before each tick, then `stop`."""

    def __init__(self, client: Client, informers: InformerFactory, clock: Clock, fleet: FleetTable) -> None:
        self._client = client
        self._informers = informers
        self._clock = clock
        self._fleet = fleet
        self._pods_of: dict[str, dict[tuple[str, str], WatchedPod]] = {}
        self._dirty: set[str] = set()
        self._metrics: Informer[models.ColocationNodeMetric] | None = None
        self._registrations: list[tuple[Informer[Any], HandlerRegistration[Any]]] = []
        self._progress: list[_Progress] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.nodes = self._follow(NODES, self._node_changed, transform_node)
        self.pods = self._follow(PODS, self._pod_changed, transform_pod)
        self._task = asyncio.create_task(self._follow_metrics(), name="dashboard-node-metrics")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for informer, registration in self._registrations:
            informer.remove_event_handler(registration)

    def refresh(self) -> bool:
        """Compute nodes that changed, a limited number at once; return whether there are more."""
        for _ in range(min(len(self._dirty), NODES_AT_ONCE)):
            name = self._dirty.pop()
            node = self.nodes.get("", name)
            if node is None:
                self._fleet.remove_node(name)
            else:
                self._fleet.put_node(self._row(node))
        synced = self.nodes.has_synced and self.pods.has_synced
        self._fleet.ready = self._fleet.ready or (synced and not self._dirty)
        self._fleet.problem = next((one for one in [each.check() for each in self._progress] if one), "")
        return bool(self._dirty)

    def find_pods(self, words: Sequence[str], node: str, offset: int, limit: int) -> dict[str, Any]:
        """Return a window of the pods whose namespace/name has all of `words`, with requests and use."""
        if node:
            listed = list(self._pods_of.get(node, {}).values())
        else:
            listed = self.pods.list()
        keyed = [(f"{pod.metadata.namespace}/{pod.metadata.name}", pod) for pod in listed]
        found = sorted((each for each in keyed if all(word in each[0] for word in words)), key=lambda each: each[0])
        window = [pod for _, pod in found[offset : offset + limit]]
        metrics: Mapping[str, models.ColocationNodeMetric] = {}
        if self._metrics is not None:
            names = {pod.spec.node_name for pod in window}
            metrics = {name: metric for name in names if (metric := self._metrics.get("", name)) is not None}
        return {"total": len(found), "offset": offset, "pods": tier_usage.pod_tier_usages(window, metrics)}

    def _follow(self, resource: Resource[Any], handler: Any, transform: Any) -> Informer[Any]:
        informer = self._informers.for_resource(resource, transform=transform)
        self._registrations.append((informer, informer.add_event_handler(handler)))
        self._progress.append(_Progress(informer))
        return informer

    async def _follow_metrics(self) -> None:
        """Follow NodeMetrics as soon as the cluster has the kind."""
        while True:
            try:
                listed = await self._client.list(models.NODE_METRICS, limit=1)
            except Unreachable:
                listed = None  # the other informers tell of it
            if listed is not None and not isinstance(listed, ApiError):
                break
            if isinstance(listed, ApiError):
                self._fleet.notes = (NO_METRICS,) if listed.not_found else (f"NodeMetrics cannot be read: {listed}",)
            await self._clock.sleep(_CRD_CHECK_S)
        self._fleet.notes = ()
        self._metrics = self._follow(models.NODE_METRICS, self._metric_changed, models.transform_metric)

    def _node_changed(self, change: ObjectChange[WatchedNode]) -> None:
        self._dirty.add(change.object.metadata.name)

    def _metric_changed(self, change: ObjectChange[models.ColocationNodeMetric]) -> None:
        self._dirty.add(change.object.metadata.name)

    def _pod_changed(self, change: ObjectChange[WatchedPod]) -> None:
        pod = change.object
        meta, node = pod.metadata, pod.spec.node_name
        key = (meta.namespace, meta.name)
        if change.old is not None and (was := change.old.spec.node_name) and (was != node or change.kind == "deleted"):
            self._pods_of.get(was, {}).pop(key, None)
            self._dirty.add(was)
        if change.kind == "deleted" or node:
            self._fleet.remove_pending(*key)
        if change.kind == "deleted":
            return
        if node:
            self._pods_of.setdefault(node, {})[key] = pod
            self._dirty.add(node)
            return
        told = next((one for one in pod.status.conditions if one.status == "False"), WatchedCondition())
        created = meta.creation_timestamp
        gang = meta.labels.get(L_POD_GROUP, "")
        self._fleet.put_pending(
            PendingPod(
                namespace=meta.namespace,
                name=meta.name,
                reason=pending_reason(told.reason, told.message, gang),
                created_s=created.timestamp() if created is not None else 0.0,
            )
        )

    def _row(self, node: WatchedNode) -> NodeRow:
        meta, name = node.metadata, node.metadata.name
        pods = self._pods_of.get(name, {})
        metric = self._metrics.get("", name) if self._metrics is not None else None
        usage = tier_usage.node_tier_usage(cast(models.ColocationNode, node), pods.values(), metric)
        return NodeRow(
            name=name,
            cpu=_resource_use(usage.cpu),
            memory=_resource_use(usage.memory),
            pods=len(pods),
            reported_s=None if usage.reported is None else usage.reported.timestamp(),
            ready=any(one.status == "True" for one in node.status.conditions),
            schedulable=not node.spec.unschedulable,
            pool=next((meta.labels[label] for label in POOL_LABELS if label in meta.labels), ""),
            labels=label_texts(meta.labels),
        )


def _resource_use(usage: tier_usage.ResourceTierUsage) -> ResourceUse:
    prod, mid, batch = usage.prod, usage.mid, usage.batch
    return ResourceUse(
        usage.capacity,
        usage.used,
        prod.requested,
        prod.used,
        mid.room,
        mid.requested,
        mid.used,
        batch.room,
        batch.requested,
        batch.used,
        usage.system,
    )
