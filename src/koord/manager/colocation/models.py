"""The parts of nodes, pods, NodeMetrics, topologies and Devices that co-location reads; nothing else is kept in memory.

A thousand nodes with their pods pass through here every minute, so objects are transformed once, when they arrive, and
a pod is reduced to the few amounts that are read of it each time. CPU and memory are side by side: the two compute
resources that co-location divides, exact to the last written digit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import cast

import msgspec

from koord.api.annotations import cpu_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator import custom_kinds
from koord.api.koordinator.protocol import A_CPU_BASIC_INFO
from koord.api.koordinator.sigs_scheduling import Zone
from koord.api.koordinator.slo import ReportedPodUsage, ReportedUsage
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes import pod as api_pod
from koord.api.kubernetes.meta import Object, ObjectMeta
from koord.api.kubernetes.pod import ResourceRequirements
from koord.api.kubernetes.pod_resources import compute_qos_class, pod_requests
from koord.api.kubernetes.resource import Resource
from koord.api.model import QuantityText, ResourceList, Submodel
from koord.policy.qos import priority_class_with_default, qos_with_default
from koord.values.quantity import ZERO, Quantity
from koord.values.resources import CPU, MEMORY


class ComputeResources(msgspec.Struct, frozen=True, gc=False):
    cpu: Quantity = ZERO
    memory: Quantity = ZERO

    @staticmethod
    def parse(listed: Mapping[str, QuantityText]) -> ComputeResources:
        """Parse a resource list; what it does not name is zero. Raises QuantityError."""
        return ComputeResources(_parse_or_zero(listed.get(CPU)), _parse_or_zero(listed.get(MEMORY)))

    def __add__(self, other: ComputeResources) -> ComputeResources:
        return ComputeResources(self.cpu + other.cpu, self.memory + other.memory)

    def __sub__(self, other: ComputeResources) -> ComputeResources:
        return ComputeResources(self.cpu - other.cpu, self.memory - other.memory)

    def maximum(self, other: ComputeResources) -> ComputeResources:
        return ComputeResources(
            self.cpu if self.cpu > other.cpu else other.cpu, self.memory if self.memory > other.memory else other.memory
        )

    def floor_zero(self) -> ComputeResources:
        return ComputeResources(floor_zero(self.cpu), floor_zero(self.memory))

    def fraction(self, cpu_ratio: float, memory_ratio: float) -> ComputeResources:
        """Return a fraction of each, in whole milli-cores and whole bytes."""
        return ComputeResources(cpu_fraction(self.cpu, cpu_ratio), memory_fraction(self.memory, memory_ratio))

    def split(self, parts: int) -> ComputeResources:
        """Return one of `parts` equal parts, rounded up to thousandths, of memory too."""
        return ComputeResources(_equal_part(self.cpu, parts), _equal_part(self.memory, parts))

    def is_negative(self) -> bool:
        return self.cpu.sign() < 0 or self.memory.sign() < 0


NO_COMPUTE = ComputeResources()


def floor_zero(amount: Quantity) -> Quantity:
    return amount if amount.sign() > 0 else Quantity(0, 0, amount.format)


# A ratio is a float and is multiplied as one, because the numbers on the wire show it: 35 percent of 90G is one byte
# short of 31.5G.


def cpu_fraction(amount: Quantity, ratio: float) -> Quantity:
    return Quantity.from_milli(int(amount.milli_value() * ratio), amount.format)


def memory_fraction(amount: Quantity, ratio: float) -> Quantity:
    return Quantity.from_value(int(amount.value() * ratio), amount.format)


def round_up_to_integer(amount: Quantity) -> Quantity:
    """Round up to an integer, which is all that an extended resource may be."""
    value = Quantity.from_value(amount.value(), amount.format)
    return amount if value == amount else value


def differs_by_more_than(old: Quantity | None, new: Quantity | None, threshold: float) -> bool:
    """Return whether the change exceeds the threshold's fraction of the old amount; appearing and going always does."""
    if old is None or new is None:
        return (old is None) != (new is None)
    before = old.milli_value()
    return abs(new.milli_value() - before) > before * threshold


def amplify_cpu(cpu: Quantity, ratio: float | None) -> Quantity:
    """Return milli-cores on CPUs `ratio` times as fast as the reference; a ratio of 1 or less changes nothing."""
    if ratio is None or ratio <= 1.0:
        return cpu
    return round_up_to_integer(Quantity.from_milli(int(cpu.milli_value() * ratio), cpu.format))


def _parse_or_zero(text: QuantityText | None) -> Quantity:
    return ZERO if text is None else Quantity.parse(text)


def _equal_part(amount: Quantity, parts: int) -> Quantity:
    return Quantity.from_milli(-(-amount.milli_value() // parts), amount.format)


class ColocationNodeStatus(Submodel, frozen=True, kw_only=True):
    capacity: ResourceList = {}
    allocatable: ResourceList = {}


class ColocationNode(Object, frozen=True, kw_only=True):
    status: ColocationNodeStatus = ColocationNodeStatus()


class ColocationContainer(Submodel, frozen=True, kw_only=True):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class ColocationPodSpec(Submodel, frozen=True, kw_only=True):
    node_name: str = ""
    priority: int | None = None
    containers: tuple[ColocationContainer, ...] = ()
    init_containers: tuple[ColocationContainer, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: ResourceList | None = None


class ColocationPodStatus(Submodel, frozen=True, kw_only=True):
    phase: str = ""
    qos_class: str = ""


class PodShare(Submodel, frozen=True, kw_only=True):
    namespace: str
    name: str
    priority_class: str  # with default
    qos: str  # with default
    request: ComputeResources
    zones: tuple[int, ...] = ()  # NUMA nodes that the scheduler gave it


class ColocationPod(Object, frozen=True, kw_only=True):
    spec: ColocationPodSpec = ColocationPodSpec()
    status: ColocationPodStatus = ColocationPodStatus()
    share: PodShare | None = None  # not on the wire: worked out by `transform_pod`


class ColocationNodeUsage(Submodel, frozen=True, kw_only=True):
    node_usage: ReportedUsage = ReportedUsage()
    system_usage: ReportedUsage = ReportedUsage()


class HostApplicationUsage(Submodel, frozen=True, kw_only=True):
    name: str = ""
    usage: ReportedUsage = ReportedUsage()
    priority: str = ""


class ProdReclaimableMetric(Submodel, frozen=True, kw_only=True):
    resource: ReportedUsage = ReportedUsage()


class ColocationMetricStatus(Submodel, frozen=True, kw_only=True):
    update_time: datetime | None = None
    node_metric: ColocationNodeUsage | None = None
    pods_metric: tuple[ReportedPodUsage, ...] = ()
    host_application_metric: tuple[HostApplicationUsage, ...] = ()
    prod_reclaimable_metric: ProdReclaimableMetric | None = None


class ColocationNodeMetric(Object, frozen=True, kw_only=True):
    status: ColocationMetricStatus = ColocationMetricStatus()


class ColocationTopology(Object, frozen=True, kw_only=True):
    zones: tuple[Zone, ...] = ()


class ColocationDeviceInfo(Submodel, frozen=True, kw_only=True):
    type: str = ""
    health: bool = False
    resources: ResourceList = {}


class ColocationDeviceSpec(Submodel, frozen=True, kw_only=True):
    devices: tuple[ColocationDeviceInfo, ...] = ()


class ColocationDevice(Object, frozen=True, kw_only=True):
    spec: ColocationDeviceSpec = ColocationDeviceSpec()


NODES: Resource[ColocationNode] = builtin_kinds.NODES.with_model(ColocationNode)
PODS: Resource[ColocationPod] = builtin_kinds.PODS.with_model(ColocationPod)
NODE_METRICS: Resource[ColocationNodeMetric] = custom_kinds.NODE_METRICS.with_model(ColocationNodeMetric)
TOPOLOGIES: Resource[ColocationTopology] = custom_kinds.NODE_RESOURCE_TOPOLOGIES.with_model(ColocationTopology)
DEVICES: Resource[ColocationDevice] = custom_kinds.DEVICES.with_model(ColocationDevice)

_HOLDING_PHASES = ("Running", "Pending")


def transform_pod(pod: ColocationPod) -> ColocationPod | None:
    """Reduce a pod; None for one that holds nothing: not scheduled yet, or ended."""
    if not pod.spec.node_name or pod.status.phase not in _HOLDING_PHASES:
        return None
    meta = pod.metadata
    return ColocationPod(
        metadata=_identity_of(meta), spec=ColocationPodSpec(node_name=pod.spec.node_name), share=pod_share_of(pod)
    )


def pod_share_of(pod: ColocationPod) -> PodShare:
    meta, spec = pod.metadata, cast(api_pod.PodSpec, pod.spec)
    kube_qos = pod.status.qos_class or compute_qos_class(spec)
    asked = pod_requests(spec)
    return PodShare(
        namespace=meta.namespace,
        name=meta.name,
        priority_class=priority_class_with_default(meta.labels, spec.priority, kube_qos),
        qos=qos_with_default(meta.labels, kube_qos),
        request=ComputeResources(Quantity.from_milli(asked.get(CPU, 0)), Quantity.from_value(asked.get(MEMORY, 0))),
        zones=_numa_nodes_of(meta.annotations),
    )


def transform_node(node: ColocationNode) -> ColocationNode:
    meta = node.metadata
    kept = ObjectMeta(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels=meta.labels,
        annotations=meta.annotations,
    )
    return ColocationNode(metadata=kept, status=node.status)


def transform_metric(metric: ColocationNodeMetric) -> ColocationNodeMetric:
    return ColocationNodeMetric(metadata=_identity_of(metric.metadata), status=metric.status)


def transform_topology(topology: ColocationTopology) -> ColocationTopology:
    """Reduce a topology: the CPU topology in its other annotations is larger than all the rest."""
    meta = topology.metadata
    info = meta.annotations.get(A_CPU_BASIC_INFO)
    kept = ObjectMeta(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        annotations={} if info is None else {A_CPU_BASIC_INFO: info},
    )
    return ColocationTopology(metadata=kept, zones=topology.zones)


def transform_device(device: ColocationDevice) -> ColocationDevice:
    meta = device.metadata
    kept = ObjectMeta(name=meta.name, uid=meta.uid, resource_version=meta.resource_version, labels=meta.labels)
    return ColocationDevice(metadata=kept, spec=device.spec)


def _identity_of(meta: ObjectMeta) -> ObjectMeta:
    return ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version)


def _numa_nodes_of(annotations: dict[str, str]) -> tuple[int, ...]:
    given = cpu_codecs.parse_resource_status(annotations)
    if given is None or isinstance(given, MalformedAnnotation):
        return ()
    return tuple(sorted({share.node for share in given.numa_node_resources}))
