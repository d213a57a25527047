"""What the watch has shown, as a snapshot for one round. Nothing is ever listed for a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from koord.api.builtin import DEPLOYMENTS, NODES, REPLICA_SETS, REPLICATION_CONTROLLERS, STATEFUL_SETS
from koord.api.custom import NODE_METRICS, POD_MIGRATION_JOBS
from koord.api.meta import Object
from koord.api.resource import Resource
from koord.descheduler.snapshot import Snapshot, Workload
from koord.descheduler.wire import PODS
from koord.descheduler.world import World
from koord.kube.informer import Informer

DEPLOYMENT = "Deployment"


class View:
    """Asks for its kinds when it is made; whoever owns the informers starts them."""

    def __init__(self, world: World, extra: Iterable[Resource[Any]] = ()) -> None:
        of = world.informers.of
        self._clock = world.clock
        self.nodes = of(NODES)
        self.pods = of(PODS)
        self.metrics = of(NODE_METRICS)
        self.jobs = of(POD_MIGRATION_JOBS)
        self._deployments = of(DEPLOYMENTS)
        self._replica_sets = of(REPLICA_SETS)
        self._plain: tuple[Informer[Any], ...] = (of(STATEFUL_SETS), of(REPLICATION_CONTROLLERS))
        self._others: dict[str, Informer[Any]] = {resource.plural: of(resource) for resource in extra}

    def snapshot(self) -> Snapshot:
        return Snapshot(
            now_s=self._clock.time(),
            nodes={node.metadata.name: node for node in self.nodes.list()},
            pods=self.pods.list(),
            metrics={metric.metadata.name: metric for metric in self.metrics.list()},
            jobs=self.jobs.list(),
            workloads=self.workloads(),
            others={plural: informer.list() for plural, informer in self._others.items()},
        )

    def workloads(self) -> Mapping[str, Workload]:
        """By the uid that pods name as their controller. A ReplicaSet of a Deployment stands for the Deployment."""
        plain = [obj for informer in self._plain for obj in informer.list()]
        return workloads(self._deployments.list(), self._replica_sets.list(), plain)


def workloads(deployments: Iterable[Any], replica_sets: Iterable[Any], plain: Iterable[Any]) -> dict[str, Workload]:
    """`plain` are those that control their pods themselves, such as StatefulSets."""
    found: dict[str, Workload] = {}
    by_uid = {deployment.metadata.uid: deployment for deployment in deployments}
    sets: dict[str, list[str]] = {}
    lone: list[Any] = []
    for replica_set in replica_sets:
        owner = controller_of(replica_set)
        if owner is not None and owner.kind == DEPLOYMENT and owner.uid in by_uid:
            sets.setdefault(owner.uid, []).append(replica_set.metadata.uid)
        else:
            lone.append(replica_set)
    for uid, members in sets.items():
        workload = _workload(DEPLOYMENT, by_uid[uid], members)
        found.update(dict.fromkeys(members, workload))
    for obj in (*lone, *plain):
        found[obj.metadata.uid] = _workload(obj.kind, obj, [obj.metadata.uid])
    return found


def controller_of(obj: Object) -> Any:
    """The owner that controls it, or None."""
    return next((owner for owner in obj.metadata.owner_references if owner.controller), None)


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
