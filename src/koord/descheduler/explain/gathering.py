"""Builds a snapshot for one round from listed or stored objects, as the informers would have shown them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from koord.api.builtin import DEPLOYMENTS, NODES, REPLICA_SETS, REPLICATION_CONTROLLERS, STATEFUL_SETS
from koord.api.custom import NODE_METRICS, POD_MIGRATION_JOBS
from koord.api.meta import Object
from koord.api.resource import Resource
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.snapshot import Snapshot, Workload
from koord.descheduler.wire import PODS

KINDS: tuple[Resource[Any], ...] = (
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
Listed = Callable[[Resource[Any]], Sequence[Any]]


def wanted(plugins: Iterable[Plugin]) -> tuple[Resource[Any], ...]:
    """Return every resource that these plugins read."""
    extra = {resource.plural: resource for plugin in plugins for resource in plugin.reads}
    known = {resource.plural for resource in KINDS}
    return (*KINDS, *(resource for plural, resource in extra.items() if plural not in known))


def gathered(of: Listed, plugins: Sequence[Plugin], now_s: float | None = None) -> Snapshot:
    """Build the snapshot. Without a time, that of the newest NodeMetric counts: what was fresh when stored is
    fresh.
    """
    metrics = of(NODE_METRICS)
    if now_s is None:
        now_s = max((m.status.update_time.timestamp() for m in metrics if m.status.update_time is not None), default=0)
    return Snapshot(
        now_s=now_s,
        nodes={node.metadata.name: node for node in of(NODES)},
        pods=of(PODS),
        metrics={metric.metadata.name: metric for metric in metrics},
        jobs=of(POD_MIGRATION_JOBS),
        workloads=workloads(of),
        others={resource.plural: of(resource) for plugin in plugins for resource in plugin.reads},
    )


def workloads(of: Listed) -> dict[str, Workload]:
    """Return the workloads by the uid that pods name as their controller; a Deployment stands for its ReplicaSets."""
    found: dict[str, Workload] = {}
    deployments = {one.metadata.uid: one for one in of(DEPLOYMENTS)}
    members: dict[str, list[str]] = {}
    lone: list[tuple[str, Any]] = []
    for one in of(REPLICA_SETS):
        owner = _deployment_of(one)
        if owner in deployments:
            members.setdefault(owner, []).append(one.metadata.uid)
        else:
            lone.append((REPLICA_SETS.kind, one))
    for owner, uids in members.items():
        found.update(dict.fromkeys(uids, _workload(DEPLOYMENT, deployments[owner], uids)))
    for resource in (STATEFUL_SETS, REPLICATION_CONTROLLERS):
        lone += [(resource.kind, one) for one in of(resource)]
    for kind, one in lone:
        found[one.metadata.uid] = _workload(kind, one, [one.metadata.uid])
    return found


def _deployment_of(obj: Object) -> str:
    owners = obj.metadata.owner_references
    return next((owner.uid for owner in owners if owner.controller and owner.kind == DEPLOYMENT), "")


def _workload(kind: str, obj: Any, controllers: Sequence[str]) -> Workload:
    replicas = obj.spec.replicas
    return Workload(
        kind=kind,
        namespace=obj.metadata.namespace,
        name=obj.metadata.name,
        uid=obj.metadata.uid,
        replicas=1 if replicas is None else replicas,  # left out means one
        controllers=frozenset(controllers),
    )
