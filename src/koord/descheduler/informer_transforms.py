"""Informer transforms for a process where only the descheduler reads pods and NodeMetrics.

Containers are cut to what decisions read, and pods of one template share them. Inside `koord up` other components read
the same caches, and nothing is cut.
"""

from __future__ import annotations

import functools

import msgspec

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Container, ContainerStatus, Pod, PodSpec, PodStatus
from koord.api.kubernetes.volume import Volume
from koord.api.model import Submodel, decode, encode
from koord.kube.informer.factory import InformerFactory

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
