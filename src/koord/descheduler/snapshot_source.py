"""Builds snapshots of the cluster: from informers for a round of the program, from lists for a dry run.

Informer transforms are for a process where only the descheduler reads pods and NodeMetrics: containers are cut to what
decisions read, and pods of one template share them. Inside `koord up` other components read
the same caches, and nothing is cut.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from koord.api.koordinator.custom_kinds import NODE_METRICS, POD_MIGRATION_JOBS
from koord.api.koordinator.scheduling import PodMigrationJob
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.pod import Container, ContainerStatus, Pod, PodSpec, PodStatus
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.kubernetes.resource import Resource
from koord.api.kubernetes.volume import Volume
from koord.api.model import Submodel, decode, encode
from koord.descheduler.context import DeschedulerContext
from koord.descheduler.framework.plugin import DeschedulerPlugin
from koord.descheduler.framework.snapshot import ClusterSnapshot, PodLookups, Workload, namespaced_name, owner_uids
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import Informer

K = TypeVar("K")
V = TypeVar("V")


class LookupMapping(Mapping[K, V], Generic[K, V]):
    """A read-only mapping over a lookup function. It is valid until the event loop runs other tasks."""

    def __init__(self, find: Callable[[K], V | None], keys: Callable[[], Sequence[K]]) -> None:
        self._find = find
        self._keys = keys

    def __getitem__(self, key: K) -> V:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())


def _pods_by_index(pods: Informer[Pod], index: str) -> Mapping[str, Sequence[Pod]]:
    return LookupMapping(lambda value: pods.by_index(index, value) or None, lambda: pods.index_values(index))


DEPLOYMENT = "Deployment"
_BY_UID, _BY_DEPLOYMENT = "descheduler-uid", "descheduler-owner"


class WorkloadIndex:
    """Looks up workloads by the uid that pods name as their controller."""

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("replicationcontrollers",), READ_VERBS),
        RbacRule("apps", ("deployments", "replicasets", "statefulsets"), READ_VERBS),
    )

    def __init__(self, informers: InformerFactory) -> None:
        self._deployments = informers.for_resource(builtin_kinds.DEPLOYMENTS)
        self._replica_sets = informers.for_resource(builtin_kinds.REPLICA_SETS)
        self._kinds: tuple[Informer[Any], ...] = (
            self._replica_sets,
            informers.for_resource(builtin_kinds.STATEFUL_SETS),
            informers.for_resource(builtin_kinds.REPLICATION_CONTROLLERS),
        )
        for informer in (self._deployments, *self._kinds):
            _ensure_index(informer, _BY_UID, lambda obj: [obj.metadata.uid])
        _ensure_index(self._replica_sets, _BY_DEPLOYMENT, _deployment_uids)

    def as_mapping(self) -> Mapping[str, Workload]:
        return LookupMapping(self.get, lambda: [uid for kind in self._kinds for uid in kind.index_values(_BY_UID)])

    def get(self, uid: str) -> Workload | None:
        obj = next((obj for kind in self._kinds for obj in kind.by_index(_BY_UID, uid)), None)
        if obj is None:
            return None
        for owner in _deployment_uids(obj):
            for deployment in self._deployments.by_index(_BY_UID, owner):
                members = [one.metadata.uid for one in self._replica_sets.by_index(_BY_DEPLOYMENT, owner)]
                return _build_workload(DEPLOYMENT, deployment, members)
        return _build_workload(obj.kind, obj, [uid])


def _ensure_index(informer: Informer[Any], name: str, key_fn: Any) -> None:
    if not informer.has_index(name):
        informer.add_index(name, key_fn)


def _deployment_uids(obj: Object) -> list[str]:
    return [o.uid for o in obj.metadata.owner_references if o.controller and o.kind == DEPLOYMENT]


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


_BY_NODE, _BY_OWNER = "descheduler-node", "descheduler-owner"


class SnapshotSource:
    """Builds snapshots from informers. It requests its kinds when it is built; their owner starts them."""

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("nodes", "pods"), READ_VERBS),
        RbacRule("slo.koordinator.sh", ("nodemetrics",), READ_VERBS),
        RbacRule("scheduling.koordinator.sh", ("podmigrationjobs",), READ_VERBS),
        *WorkloadIndex.rights,
    )

    def __init__(self, context: DeschedulerContext, extra: Iterable[Resource[Any]] = ()) -> None:
        of = context.informers.for_resource
        self._clock = context.clock
        self.nodes = of(builtin_kinds.NODES)
        self.pods = of(builtin_kinds.PODS)
        self.metrics = of(NODE_METRICS)
        self.jobs = of(POD_MIGRATION_JOBS)
        self.workloads = WorkloadIndex(context.informers)
        self._others: dict[str, Informer[Any]] = {resource.plural: of(resource) for resource in extra}
        _ensure_index(self.pods, _BY_NODE, lambda pod: [pod.spec.node_name])
        _ensure_index(self.pods, _BY_OWNER, owner_uids)
        pods = self.pods
        self._lookups = PodLookups(
            by_node=_pods_by_index(pods, _BY_NODE),
            by_owner=_pods_by_index(pods, _BY_OWNER),
            by_name=LookupMapping(lambda key: pods.get(*key), lambda: [namespaced_name(pod) for pod in pods.list()]),
        )

    def snapshot(self) -> ClusterSnapshot:
        """Return a snapshot for decisions that are made before other tasks run: pods stay in the informer's cache."""
        return ClusterSnapshot(
            now_s=self._clock.time(),
            nodes={node.metadata.name: node for node in self.nodes.list()},
            pods=self.pods.list(),
            metrics={metric.metadata.name: metric for metric in self.metrics.list()},
            jobs=self.jobs.list(),
            workloads=self.workloads.as_mapping(),
            others={plural: informer.list() for plural, informer in self._others.items()},
            lookups=self._lookups,
        )

    def snapshot_of_node(self, name: str) -> ClusterSnapshot:
        """Return a snapshot of one node and its pods."""
        node = self.nodes.get("", name)
        return ClusterSnapshot(
            now_s=self._clock.time(), nodes={} if node is None else {name: node}, lookups=self._lookups
        )

    def snapshot_for_jobs(self, jobs: Sequence[PodMigrationJob]) -> ClusterSnapshot:
        """Return a snapshot that is enough to arbitrate jobs, at a cost that does not grow with the cluster."""
        return ClusterSnapshot(
            now_s=self._clock.time(), jobs=jobs, workloads=self.workloads.as_mapping(), lookups=self._lookups
        )


SNAPSHOT_RESOURCES: tuple[Resource[Any], ...] = (
    builtin_kinds.NODES,
    builtin_kinds.PODS,
    NODE_METRICS,
    POD_MIGRATION_JOBS,
    builtin_kinds.DEPLOYMENTS,
    builtin_kinds.REPLICA_SETS,
    builtin_kinds.STATEFUL_SETS,
    builtin_kinds.REPLICATION_CONTROLLERS,
)
ListObjects = Callable[[Resource[Any]], Sequence[Any]]


def required_resources(plugins: Iterable[DeschedulerPlugin]) -> tuple[Resource[Any], ...]:
    """Return every resource that these plugins read."""
    extra = {resource.plural: resource for plugin in plugins for resource in plugin.extra_resources}
    known = {resource.plural for resource in SNAPSHOT_RESOURCES}
    return (*SNAPSHOT_RESOURCES, *(resource for plural, resource in extra.items() if plural not in known))


def snapshot_from_lists(
    of: ListObjects, plugins: Sequence[DeschedulerPlugin], now_s: float | None = None
) -> ClusterSnapshot:
    """Build the snapshot. Without a time, that of the newest NodeMetric counts: what was fresh when stored is fresh."""
    metrics = of(NODE_METRICS)
    if now_s is None:
        now_s = max((m.status.update_time.timestamp() for m in metrics if m.status.update_time is not None), default=0)
    return ClusterSnapshot(
        now_s=now_s,
        nodes={node.metadata.name: node for node in of(builtin_kinds.NODES)},
        pods=of(builtin_kinds.PODS),
        metrics={metric.metadata.name: metric for metric in metrics},
        jobs=of(POD_MIGRATION_JOBS),
        workloads=listed_workloads(of),
        others={resource.plural: of(resource) for plugin in plugins for resource in plugin.extra_resources},
    )


def listed_workloads(of: ListObjects) -> dict[str, Workload]:
    """Return the workloads by the uid that pods name as their controller; a Deployment stands for its ReplicaSets."""
    found: dict[str, Workload] = {}
    deployments = {one.metadata.uid: one for one in of(builtin_kinds.DEPLOYMENTS)}
    members: dict[str, list[str]] = {}
    lone: list[tuple[str, Any]] = []
    for one in of(builtin_kinds.REPLICA_SETS):
        known = [uid for uid in _deployment_uids(one) if uid in deployments]
        if known:
            members.setdefault(known[0], []).append(one.metadata.uid)
        else:
            lone.append((builtin_kinds.REPLICA_SETS.kind, one))
    for owner, uids in members.items():
        found.update(dict.fromkeys(uids, _build_workload(DEPLOYMENT, deployments[owner], uids)))
    for resource in (builtin_kinds.STATEFUL_SETS, builtin_kinds.REPLICATION_CONTROLLERS):
        lone += [(resource.kind, one) for one in of(resource)]
    for kind, one in lone:
        found[one.metadata.uid] = _build_workload(kind, one, [one.metadata.uid])
    return found


_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class _SharedPodParts(Submodel, frozen=True, kw_only=True):
    """The parts that pods of one workload have in common."""

    spec: PodSpec = PodSpec()
    labels: dict[str, str] = {}


def register_transforms(informers: InformerFactory) -> None:
    """Register the transforms; call it before anyone else requests these kinds."""
    informers.for_resource(PODS, transform=trim_pod)
    informers.for_resource(NODE_METRICS, transform=trim_node_metric)


def trim_pod(pod: Pod) -> Pod:
    """Trim a pod. Whoever needs the rest, such as the builder of a reservation, reads it from the server."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    annotations = {key: value for key, value in meta.annotations.items() if key != _LAST_APPLIED}
    shared = PodSpec(
        scheduler_name=spec.scheduler_name,
        priority=spec.priority,
        priority_class_name=spec.priority_class_name,
        containers=_trim_containers(spec.containers),
        init_containers=_trim_containers(spec.init_containers),
        resources=spec.resources,
        overhead=spec.overhead,
        volumes=_trim_volumes(spec.volumes),
        node_selector=spec.node_selector,
        affinity=spec.affinity,
        tolerations=spec.tolerations,
        topology_spread_constraints=spec.topology_spread_constraints,
        resource_claims=spec.resource_claims,
    )
    make = _shared_parts(encode(_SharedPodParts(spec=shared, labels=meta.labels)))
    return Pod(
        metadata=msgspec.structs.replace(meta, annotations=annotations, labels=make.labels),
        spec=msgspec.structs.replace(make.spec, node_name=spec.node_name),
        status=PodStatus(
            phase=status.phase,
            reason=status.reason,
            qos_class=status.qos_class,
            start_time=status.start_time,
            conditions=status.conditions,
            container_statuses=_trim_statuses(status.container_statuses),
            init_container_statuses=_trim_statuses(status.init_container_statuses),
            ephemeral_container_statuses=_trim_statuses(status.ephemeral_container_statuses),
            resources=status.resources,
            allocated_resources=status.allocated_resources,
        ),
    )


def trim_node_metric(metric: NodeMetric) -> NodeMetric:
    """Keep only the system usage of the node; averages and percentiles are read elsewhere."""
    node = metric.status.node_metric
    if node is not None:
        node = msgspec.structs.replace(node, aggregated_node_usages=(), aggregated_system_usages=(), numa_usages=())
    status = msgspec.structs.replace(metric.status, node_metric=node)
    return msgspec.structs.replace(metric, status=status)


def _trim_containers(containers: tuple[Container, ...]) -> tuple[Container, ...]:
    return tuple(
        Container(name=one.name, image=one.image, resources=one.resources, restart_policy=one.restart_policy)
        for one in containers
    )


def _trim_volumes(volumes: tuple[Volume, ...]) -> tuple[Volume, ...]:
    """Keep the volumes without their names, which differ for every pod where Kubernetes adds a volume."""
    kept = (v for v in volumes if v.host_path is not None or v.empty_dir is not None or v.persistent_volume_claim)
    return tuple(
        Volume(host_path=v.host_path, empty_dir=v.empty_dir, persistent_volume_claim=v.persistent_volume_claim)
        for v in kept
    )


def _trim_statuses(statuses: tuple[ContainerStatus, ...]) -> tuple[ContainerStatus, ...]:
    return tuple(
        ContainerStatus(
            name=one.name,
            restart_count=one.restart_count,
            state=one.state,
            resources=one.resources,
            allocated_resources=one.allocated_resources,
        )
        for one in statuses
    )


@functools.lru_cache(maxsize=8192)
def _shared_parts(raw: bytes) -> _SharedPodParts:
    return decode(raw, _SharedPodParts)
