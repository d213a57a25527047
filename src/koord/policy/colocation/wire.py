"""The parts of nodes, pods, NodeMetrics, topologies and Devices that co-location reads; nothing else is kept
in memory.

A thousand nodes with their pods pass through here every minute, so objects are transformed once, when
they arrive, and a pod is reduced to the few amounts that are read of it each time.
"""

from __future__ import annotations

from datetime import datetime
from typing import cast

from koord.api import builtin, custom
from koord.api import pod as api_pod
from koord.api.annotations import resource_status
from koord.api.annotations.codec import Malformed
from koord.api.container import ResourceRequirements
from koord.api.meta import Object, ObjectMeta
from koord.api.part import Part, ResourceList
from koord.api.pod_qos import qos_class
from koord.api.pod_resources import pod_requests
from koord.api.protocol import A_CPU_BASIC_INFO
from koord.api.resource import Resource
from koord.api.topology import Zone
from koord.policy.colocation.amount import Compute
from koord.policy.qos.classes import priority_class_with_default, qos_with_default
from koord.values.quantity import Quantity
from koord.values.resources import CPU, MEMORY


class NodeStatus(Part, frozen=True, kw_only=True):
    capacity: ResourceList = {}
    allocatable: ResourceList = {}


class Node(Object, frozen=True, kw_only=True):
    status: NodeStatus = NodeStatus()


class Container(Part, frozen=True, kw_only=True):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class PodSpec(Part, frozen=True, kw_only=True):
    node_name: str = ""
    priority: int | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: ResourceList | None = None


class PodStatus(Part, frozen=True, kw_only=True):
    phase: str = ""
    qos_class: str = ""


class PodShare(Part, frozen=True, kw_only=True):
    """The part of its node that a pod holds."""

    namespace: str
    name: str
    priority_class: str  # with default
    qos: str  # with default
    request: Compute
    zones: tuple[int, ...] = ()  # NUMA nodes that the scheduler gave it


class Pod(Object, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    share: PodShare | None = None  # not on the wire: worked out by `slim_pod`


class Usage(Part, frozen=True, kw_only=True):
    resources: ResourceList = {}


class NodeUsage(Part, frozen=True, kw_only=True):
    node_usage: Usage = Usage()
    system_usage: Usage = Usage()


class PodUsage(Part, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    pod_usage: Usage = Usage()
    priority: str = ""


class ApplicationUsage(Part, frozen=True, kw_only=True):
    name: str = ""
    usage: Usage = Usage()
    priority: str = ""


class Predicted(Part, frozen=True, kw_only=True):
    resource: Usage = Usage()


class MetricStatus(Part, frozen=True, kw_only=True):
    update_time: datetime | None = None
    node_metric: NodeUsage | None = None
    pods_metric: tuple[PodUsage, ...] = ()
    host_application_metric: tuple[ApplicationUsage, ...] = ()
    prod_reclaimable_metric: Predicted | None = None


class NodeMetric(Object, frozen=True, kw_only=True):
    status: MetricStatus = MetricStatus()


class Topology(Object, frozen=True, kw_only=True):
    zones: tuple[Zone, ...] = ()


class DeviceInfo(Part, frozen=True, kw_only=True):
    type: str = ""
    health: bool = False
    resources: ResourceList = {}


class DeviceSpec(Part, frozen=True, kw_only=True):
    devices: tuple[DeviceInfo, ...] = ()


class Device(Object, frozen=True, kw_only=True):
    spec: DeviceSpec = DeviceSpec()


NODES: Resource[Node] = builtin.NODES.viewed(Node)
PODS: Resource[Pod] = builtin.PODS.viewed(Pod)
NODE_METRICS: Resource[NodeMetric] = custom.NODE_METRICS.viewed(NodeMetric)
TOPOLOGIES: Resource[Topology] = custom.NODE_RESOURCE_TOPOLOGIES.viewed(Topology)
DEVICES: Resource[Device] = custom.DEVICES.viewed(Device)

_HOLDING = ("Running", "Pending")


def slim_pod(pod: Pod) -> Pod | None:
    """Reduce a pod; None for one that holds nothing: not scheduled yet, or ended."""
    if not pod.spec.node_name or pod.status.phase not in _HOLDING:
        return None
    meta = pod.metadata
    return Pod(
        metadata=_name_of(meta),
        spec=PodSpec(node_name=pod.spec.node_name),
        share=share_of(pod),
    )


def share_of(pod: Pod) -> PodShare:
    meta, spec = pod.metadata, cast(api_pod.PodSpec, pod.spec)
    kube_qos = pod.status.qos_class or qos_class(spec)
    asked = pod_requests(spec)
    return PodShare(
        namespace=meta.namespace,
        name=meta.name,
        priority_class=priority_class_with_default(meta.labels, spec.priority, kube_qos),
        qos=qos_with_default(meta.labels, kube_qos),
        request=Compute(Quantity.from_milli(asked.get(CPU, 0)), Quantity.from_value(asked.get(MEMORY, 0))),
        zones=_zones(meta.annotations),
    )


def slim_node(node: Node) -> Node:
    meta = node.metadata
    kept = ObjectMeta(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels=meta.labels,
        annotations=meta.annotations,
    )
    return Node(metadata=kept, status=node.status)


def slim_metric(metric: NodeMetric) -> NodeMetric:
    return NodeMetric(metadata=_name_of(metric.metadata), status=metric.status)


def slim_topology(topology: Topology) -> Topology:
    """Reduce a topology: the CPU topology in its other annotations is larger than all the rest."""
    meta = topology.metadata
    info = meta.annotations.get(A_CPU_BASIC_INFO)
    kept = ObjectMeta(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        annotations={} if info is None else {A_CPU_BASIC_INFO: info},
    )
    return Topology(metadata=kept, zones=topology.zones)


def slim_device(device: Device) -> Device:
    meta = device.metadata
    kept = ObjectMeta(name=meta.name, uid=meta.uid, resource_version=meta.resource_version, labels=meta.labels)
    return Device(metadata=kept, spec=device.spec)


def _name_of(meta: ObjectMeta) -> ObjectMeta:
    return ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version)


def _zones(annotations: dict[str, str]) -> tuple[int, ...]:
    given = resource_status.parse(annotations)
    if given is None or isinstance(given, Malformed):
        return ()
    return tuple(sorted({share.node for share in given.numa_node_resources}))
