"""Informer transforms for a process where only the manager reads pods and NodeMetrics: a tenth of their bytes.

Pods of one template share their containers. Inside `koord up` other components read the same caches, and nothing is
cut.
"""

from __future__ import annotations

import functools

import msgspec

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Container, Pod, PodSpec, PodStatus
from koord.api.model import Submodel, decode, encode
from koord.kube.informer.factory import InformerFactory
from koord.manager.controllers.colocation_profile import ColocationProfileController
from koord.manager.reconcile_loop import ManagerSettings

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class _SharedContainers(Submodel, frozen=True, kw_only=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


def register_transforms(informers: InformerFactory, settings: ManagerSettings) -> None:
    """Register the transforms before anyone else requests these kinds. The profile controller needs whole pods."""
    if not settings.is_gate_enabled(ColocationProfileController.gate):
        informers.for_resource(PODS, transform=trim_pod)
    informers.for_resource(NODE_METRICS, transform=trim_node_metric)


def trim_pod(pod: Pod) -> Pod:
    meta, spec, status = pod.metadata, pod.spec, pod.status
    if _LAST_APPLIED in meta.annotations:
        kept = {key: value for key, value in meta.annotations.items() if key != _LAST_APPLIED}
        meta = msgspec.structs.replace(meta, annotations=kept)
    make = _shared_containers(
        encode(
            _SharedContainers(
                containers=_trim_containers(spec.containers), init_containers=_trim_containers(spec.init_containers)
            )
        )
    )
    return Pod(
        metadata=meta,
        spec=PodSpec(
            node_name=spec.node_name,
            scheduler_name=spec.scheduler_name,
            priority=spec.priority,
            priority_class_name=spec.priority_class_name,
            containers=make.containers,
            init_containers=make.init_containers,
            resources=spec.resources,
            overhead=spec.overhead,
        ),
        status=PodStatus(phase=status.phase, qos_class=status.qos_class),
    )


def trim_node_metric(metric: NodeMetric) -> NodeMetric:
    """Keep the usage of pods; that of the node, with its percentiles, is most of a report and is read elsewhere."""
    return msgspec.structs.replace(metric, status=msgspec.structs.replace(metric.status, node_metric=None))


def _trim_containers(containers: tuple[Container, ...]) -> tuple[Container, ...]:
    return tuple(
        Container(name=one.name, resources=one.resources, restart_policy=one.restart_policy) for one in containers
    )


@functools.lru_cache(maxsize=8192)
def _shared_containers(raw: bytes) -> _SharedContainers:
    return decode(raw, _SharedContainers)
