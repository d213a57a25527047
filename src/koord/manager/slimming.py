"""Informer transforms for a process where only the manager reads pods and NodeMetrics: a tenth of their bytes.

Pods of one template share their containers. Inside `koord up` other components read the same caches, and
nothing
is cut.
"""

from __future__ import annotations

import functools

import msgspec

from koord.api.builtin import PODS
from koord.api.container import Container
from koord.api.custom import NODE_METRICS
from koord.api.model import decode, encode
from koord.api.part import Part
from koord.api.pod import Pod, PodSpec, PodStatus
from koord.api.slo import NodeMetric
from koord.kube.informers import Informers
from koord.manager.controllers.colocation_profile.controller import ColocationProfileController
from koord.manager.world import Settings

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class _Make(Part, frozen=True, kw_only=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


def slim(informers: Informers, settings: Settings) -> None:
    """Register the transforms before anyone else requests these kinds. The profile controller needs whole pods."""
    if not settings.gate(ColocationProfileController.gate):
        informers.of(PODS, transform=slim_pod)
    informers.of(NODE_METRICS, transform=slim_metric)


def slim_pod(pod: Pod) -> Pod:
    meta, spec, status = pod.metadata, pod.spec, pod.status
    if _LAST_APPLIED in meta.annotations:
        kept = {key: value for key, value in meta.annotations.items() if key != _LAST_APPLIED}
        meta = msgspec.structs.replace(meta, annotations=kept)
    make = _make(encode(_Make(containers=_bare(spec.containers), init_containers=_bare(spec.init_containers))))
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


def slim_metric(metric: NodeMetric) -> NodeMetric:
    """Keep the usage of pods; that of the node, with its percentiles, is most of a report and is read elsewhere."""
    return msgspec.structs.replace(metric, status=msgspec.structs.replace(metric.status, node_metric=None))


def _bare(containers: tuple[Container, ...]) -> tuple[Container, ...]:
    return tuple(
        Container(name=one.name, resources=one.resources, restart_policy=one.restart_policy) for one in containers
    )


@functools.lru_cache(maxsize=8192)
def _make(raw: bytes) -> _Make:
    return decode(raw, _Make)
