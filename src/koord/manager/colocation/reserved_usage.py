"""This module computes what is taken on a node before anything is lent: reserved by kubelet or operator, and used or
requested by pods.

The sums are made once for the whole node and, where its NUMA zones are known, once more for each zone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.qos_class import BATCH, FREE, LSE
from koord.manager.colocation.models import NO_COMPUTE, ComputeResources, PodShare
from koord.manager.colocation.node_metric import PodKey, PodSample
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.quantity import Quantity
from koord.values.resources import CPU, MEMORY

RECLAIMED_CLASSES = (BATCH, FREE)  # these pods run on reclaimed resources and do not reduce them


class NodeReserved(msgspec.Struct, frozen=True, kw_only=True):
    kubelet: ComputeResources = NO_COMPUTE  # capacity less allocatable
    annotated: ComputeResources = NO_COMPUTE
    ignored: str = ""  # why the annotation has no effect

    @property
    def total(self) -> ComputeResources:
        return self.kubelet.maximum(self.annotated)


class HighPriorityConsumption(msgspec.Struct, frozen=True, kw_only=True):
    """The consumption of the pods that rank above batch and free."""

    used: ComputeResources = NO_COMPUTE
    requested: ComputeResources = NO_COMPUTE
    larger: ComputeResources = NO_COMPUTE  # the larger of usage and request, pod by pod
    estimated: tuple[PodKey, ...] = ()  # pods without a sample, whose request stands for their usage
    dangling: tuple[PodKey, ...] = ()  # samples of pods that are not there (any more)


def node_reserved(
    capacity: ComputeResources, allocatable: ComputeResources, annotations: Mapping[str, str]
) -> NodeReserved:
    kubelet = (capacity - allocatable).floor_zero()
    given = node_codecs.parse_node_reservation(annotations)
    if given is None:
        return NodeReserved(kubelet=kubelet)
    if isinstance(given, MalformedAnnotation):
        return NodeReserved(kubelet=kubelet, ignored=str(given))
    wanted = {name: given.resources[name] for name in (CPU, MEMORY) if name in given.resources}
    if given.reserved_cpus:
        try:
            wanted[CPU] = len(CPUSet.parse(given.reserved_cpus))
        except CPUSetError as error:
            return NodeReserved(kubelet=kubelet, ignored=f"reservedCPUs: {error}")
    return NodeReserved(kubelet=kubelet, annotated=ComputeResources.parse(wanted))


def node_consumption(pods: Sequence[PodShare], samples: Mapping[PodKey, PodSample]) -> HighPriorityConsumption:
    """Sum the consumption of the node. A pod without a sample counts its request as used, but not in the larger-of-both
    sum.

    That is upstream's number; the sum over zones includes it in both.
    """
    used, requested, larger = _ComputeSum(), _ComputeSum(), _ComputeSum()
    estimated: list[PodKey] = []
    unseen = dict(samples)
    for pod in pods:
        key = (pod.namespace, pod.name)
        sample = unseen.pop(key, None)
        if pod.priority_class in RECLAIMED_CLASSES:
            continue
        request = pod.request
        requested.add(request)
        if sample is None:
            used.add(request)
            estimated.append(key)
            continue
        used.add(ComputeResources(request.cpu, sample.usage.memory) if pod.qos == LSE else sample.usage)
        larger.add(request.maximum(sample.usage))
    dangling = tuple(key for key, sample in unseen.items() if sample.priority not in RECLAIMED_CLASSES)
    for key in dangling:
        used.add(unseen[key].usage)
        larger.add(unseen[key].usage)
    return HighPriorityConsumption(
        used=used.total(),
        requested=requested.total(),
        larger=larger.total(),
        estimated=tuple(estimated),
        dangling=dangling,
    )


def zone_consumption(
    pods: Sequence[PodShare], samples: Mapping[PodKey, PodSample], zones: int
) -> tuple[HighPriorityConsumption, ...]:
    """Sum per zone: a pod counts in the zones that it was given, and equally in all when it was given none."""
    used, requested, larger = (tuple(_ComputeSum() for _ in range(zones)) for _ in range(3))
    unseen = dict(samples)
    for pod in pods:
        sample = unseen.pop((pod.namespace, pod.name), None)
        if pod.priority_class in RECLAIMED_CLASSES:
            continue
        places = [zone for zone in pod.zones if 0 <= zone < zones] or range(zones)
        request = pod.request.split(len(places))
        usage = request if sample is None else sample.usage.split(len(places))
        counted = ComputeResources(request.cpu, usage.memory) if pod.qos == LSE else usage
        both = request.maximum(usage)
        for zone in places:
            requested[zone].add(request)
            used[zone].add(counted)
            larger[zone].add(both)
    for sample in unseen.values():
        if sample.priority in RECLAIMED_CLASSES:
            continue
        usage = sample.usage.split(zones)
        for zone in range(zones):
            used[zone].add(usage)
            larger[zone].add(usage)
    return tuple(
        HighPriorityConsumption(used=used[z].total(), requested=requested[z].total(), larger=larger[z].total())
        for z in range(zones)
    )


class _ComputeSum:
    """Adds up without an object for every intermediate sum."""

    __slots__ = ("_cpu", "_memory")

    def __init__(self) -> None:
        self._cpu: Quantity = NO_COMPUTE.cpu
        self._memory: Quantity = NO_COMPUTE.memory

    def add(self, amount: ComputeResources) -> None:
        self._cpu += amount.cpu
        self._memory += amount.memory

    def total(self) -> ComputeResources:
        return ComputeResources(self._cpu, self._memory)
