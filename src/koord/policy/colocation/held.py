"""What is taken on a node before anything is lent: reserved by kubelet or operator, and used or requested by
pods.

The sums are made once for the whole node and, where its NUMA zones are known, once more for each zone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.api.annotations import node_reservation
from koord.api.annotations.codec import Malformed
from koord.api.qos_class import BATCH, FREE, LSE
from koord.policy.colocation.amount import NOTHING, Compute
from koord.policy.colocation.sample import Key, PodSample
from koord.policy.colocation.wire import PodShare
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.quantity import Quantity
from koord.values.resources import CPU, MEMORY

LENT_TO = (BATCH, FREE)  # these pods run on reclaimed resources and do not reduce them


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    kubelet: Compute = NOTHING  # capacity less allocatable
    annotated: Compute = NOTHING
    ignored: str = ""  # why the annotation has no effect

    @property
    def total(self) -> Compute:
        return self.kubelet.larger(self.annotated)


class Consumption(msgspec.Struct, frozen=True, kw_only=True):
    """The consumption of the pods that rank above batch and free."""

    used: Compute = NOTHING
    requested: Compute = NOTHING
    larger: Compute = NOTHING  # the larger of usage and request, pod by pod
    estimated: tuple[Key, ...] = ()  # pods without a sample, whose request stands for their usage
    dangling: tuple[Key, ...] = ()  # samples of pods that are not there (any more)


def reserved(capacity: Compute, allocatable: Compute, annotations: Mapping[str, str]) -> Reserved:
    kubelet = (capacity - allocatable).floored()
    given = node_reservation.parse(annotations)
    if given is None:
        return Reserved(kubelet=kubelet)
    if isinstance(given, Malformed):
        return Reserved(kubelet=kubelet, ignored=str(given))
    wanted = {name: given.resources[name] for name in (CPU, MEMORY) if name in given.resources}
    if given.reserved_cpus:
        try:
            wanted[CPU] = len(CPUSet.parse(given.reserved_cpus))
        except CPUSetError as error:
            return Reserved(kubelet=kubelet, ignored=f"reservedCPUs: {error}")
    return Reserved(kubelet=kubelet, annotated=Compute.of(wanted))


def of_node(pods: Sequence[PodShare], samples: Mapping[Key, PodSample]) -> Consumption:
    """Sum the consumption of the node. A pod without a sample counts its request as used, but not in the
    larger-of-both sum.

    That is upstream's number; the sum over zones includes it in both.
    """
    used, requested, larger = _Sum(), _Sum(), _Sum()
    estimated: list[Key] = []
    unseen = dict(samples)
    for pod in pods:
        key = (pod.namespace, pod.name)
        sample = unseen.pop(key, None)
        if pod.priority_class in LENT_TO:
            continue
        request = pod.request
        requested.add(request)
        if sample is None:
            used.add(request)
            estimated.append(key)
            continue
        used.add(Compute(request.cpu, sample.usage.memory) if pod.qos == LSE else sample.usage)
        larger.add(request.larger(sample.usage))
    dangling = tuple(key for key, sample in unseen.items() if sample.priority not in LENT_TO)
    for key in dangling:
        used.add(unseen[key].usage)
        larger.add(unseen[key].usage)
    return Consumption(
        used=used.total(),
        requested=requested.total(),
        larger=larger.total(),
        estimated=tuple(estimated),
        dangling=dangling,
    )


def of_zones(pods: Sequence[PodShare], samples: Mapping[Key, PodSample], zones: int) -> tuple[Consumption, ...]:
    """Sum per zone: a pod counts in the zones that it was given, and equally in all when it was given none."""
    used, requested, larger = (tuple(_Sum() for _ in range(zones)) for _ in range(3))
    unseen = dict(samples)
    for pod in pods:
        sample = unseen.pop((pod.namespace, pod.name), None)
        if pod.priority_class in LENT_TO:
            continue
        places = [zone for zone in pod.zones if 0 <= zone < zones] or range(zones)
        request = pod.request.split(len(places))
        usage = request if sample is None else sample.usage.split(len(places))
        counted = Compute(request.cpu, usage.memory) if pod.qos == LSE else usage
        both = request.larger(usage)
        for zone in places:
            requested[zone].add(request)
            used[zone].add(counted)
            larger[zone].add(both)
    for sample in unseen.values():
        if sample.priority in LENT_TO:
            continue
        usage = sample.usage.split(zones)
        for zone in range(zones):
            used[zone].add(usage)
            larger[zone].add(usage)
    return tuple(
        Consumption(used=used[z].total(), requested=requested[z].total(), larger=larger[z].total())
        for z in range(zones)
    )


class _Sum:
    """Adds up without an object for every intermediate sum."""

    __slots__ = ("_cpu", "_memory")

    def __init__(self) -> None:
        self._cpu: Quantity = NOTHING.cpu
        self._memory: Quantity = NOTHING.memory

    def add(self, amount: Compute) -> None:
        self._cpu += amount.cpu
        self._memory += amount.memory

    def total(self) -> Compute:
        return Compute(self._cpu, self._memory)
