"""Builds a snapshot for one round from listed or stored objects, as the informers would have shown them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from koord.api.koordinator.custom_kinds import NODE_METRICS, POD_MIGRATION_JOBS
from koord.api.kubernetes.builtin_kinds import (
    DEPLOYMENTS,
    NODES,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
)
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.descheduler.framework.plugin import DeschedulerPlugin
from koord.descheduler.framework.snapshot import ClusterSnapshot, Workload

SNAPSHOT_RESOURCES: tuple[Resource[Any], ...] = (
    NODES,
    PODS,
    NODE_METRICS,
    POD_MIGRATION_JOBS,
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    REPLICATION_CONTROLLERS,
)
DEPLOYMENT = "Deployment"
ListObjects = Callable[[Resource[Any]], Sequence[Any]]


def required_resources(plugins: Iterable[DeschedulerPlugin]) -> tuple[Resource[Any], ...]:
    """Return every resource that these plugins read."""
    extra = {resource.plural: resource for plugin in plugins for resource in plugin.extra_resources}
    known = {resource.plural for resource in SNAPSHOT_RESOURCES}
    return (*SNAPSHOT_RESOURCES, *(resource for plural, resource in extra.items() if plural not in known))


def snapshot_from_lists(
    of: ListObjects, plugins: Sequence[DeschedulerPlugin], now_s: float | None = None
) -> ClusterSnapshot:
    """Build the snapshot. Without a time, that of the newest NodeMetric counts: what was fresh when stored is
    fresh.
    """
    metrics = of(NODE_METRICS)
    if now_s is None:
        now_s = max((m.status.update_time.timestamp() for m in metrics if m.status.update_time is not None), default=0)
    return ClusterSnapshot(
        now_s=now_s,
        nodes={node.metadata.name: node for node in of(NODES)},
        pods=of(PODS),
        metrics={metric.metadata.name: metric for metric in metrics},
        jobs=of(POD_MIGRATION_JOBS),
        workloads=listed_workloads(of),
        others={resource.plural: of(resource) for plugin in plugins for resource in plugin.extra_resources},
    )


def listed_workloads(of: ListObjects) -> dict[str, Workload]:
    """Return the workloads by the uid that pods name as their controller; a Deployment stands for its ReplicaSets."""
    found: dict[str, Workload] = {}
    deployments = {one.metadata.uid: one for one in of(DEPLOYMENTS)}
    members: dict[str, list[str]] = {}
    lone: list[tuple[str, Any]] = []
    for one in of(REPLICA_SETS):
        owner = _deployment_uid(one)
        if owner in deployments:
            members.setdefault(owner, []).append(one.metadata.uid)
        else:
            lone.append((REPLICA_SETS.kind, one))
    for owner, uids in members.items():
        found.update(dict.fromkeys(uids, _build_workload(DEPLOYMENT, deployments[owner], uids)))
    for resource in (STATEFUL_SETS, REPLICATION_CONTROLLERS):
        lone += [(resource.kind, one) for one in of(resource)]
    for kind, one in lone:
        found[one.metadata.uid] = _build_workload(kind, one, [one.metadata.uid])
    return found


def _deployment_uid(obj: Object) -> str:
    owners = obj.metadata.owner_references
    return next((owner.uid for owner in owners if owner.controller and owner.kind == DEPLOYMENT), "")


def _build_workload(kind: str, obj: Any, controllers: Sequence[str]) -> Workload:
    replicas = obj.spec.replicas
    return Workload(
        kind=kind,
        namespace=obj.metadata.namespace,
        name=obj.metadata.name,
        uid=obj.metadata.uid,
        replicas=1 if replicas is None else replicas,  # left out means one
        controller_uids=frozenset(controllers),
    )
