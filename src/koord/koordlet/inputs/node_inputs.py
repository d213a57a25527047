"""The inputs of the strategies from outside the machine: the Node, its effective NodeSLO, its pods and its kubelet."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import cpu_codecs, node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.resource_name import CPU
from koord.api.koordinator.slo import NodeSLOSpec
from koord.api.kubernetes import pod_resources
from koord.api.kubernetes.node import Node
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.values.cpuset import EMPTY, CPUSet, CPUSetError


class NodeProperties(msgspec.Struct, frozen=True, kw_only=True):
    """NodeProperties is all that decisions need of a Node, computed once per change. CPU is in milli-cores,
    all else in units.
    """

    name: str
    capacity: Mapping[str, int] = {}
    allocatable: Mapping[str, int] = {}
    origin_allocatable: Mapping[str, int] = {}  # batch resources before other orchestrators took their share
    reservation_milli: int = 0  # of its annotation
    reserved_cpus: CPUSet = EMPTY  # named in its annotation
    exclusive_cpus: CPUSet = EMPTY  # of system QoS
    system_cpus: CPUSet = EMPTY  # of SYSTEM pods, exclusive or not
    normalization_ratio: float = 1.0
    has_normalization_ratio: bool = False  # by its annotation; without one the ratio is 1


class KubeletCpuManager(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the kubelet's configuration that strategies need; the defaults apply where it did not answer.

    `assigned` is the CPUs that it bound, by pod uid, then by container, as CPU lists. While `known` is False neither
    the kubelet nor its state file told whether it binds CPUs.
    """

    cpu_manager_policy: str = "none"
    assigned: Mapping[str, Mapping[str, str]] = {}
    known: bool = True

    @property
    def is_static(self) -> bool:
        return self.cpu_manager_policy == "static"


class NodeInputs(msgspec.Struct, frozen=True, kw_only=True):
    """NodeInputs holds what is known of the node at one moment.

    `slo` is laid over the built-in defaults already; it is None until a NodeSLO was seen, and a deleted NodeSLO counts
    as an empty one, so that everything is restored. `node` is None until a Node was seen, and stays the last one seen.
    """

    node: NodeProperties | None = None
    slo: NodeSLOSpec | None = None
    pods: tuple[PodMeta, ...] = ()
    pods_known: bool = True  # False until they were listed once: nothing is decided for a node that may not be empty
    third_party: tuple[PodMeta, ...] = ()  # containers of other orchestrators on this node
    starting: tuple[PodMeta, ...] = ()  # which the runtime told of, and the list does not have yet; without their specs
    kubelet: KubeletCpuManager = KubeletCpuManager()
    # Mount point by a pod's uid and the name of one of its volumes, for disk limits of volumes.
    mounts: Mapping[tuple[str, str], str] = {}
    # An earlier process wrote files, from a Node and a NodeSLO that were not both seen again yet: its values stay.
    earlier_writes: bool = False
    safe_mode: bool = False  # decide and report, but write and evict nothing
    mps_daemons: Mapping[int, str] = {}  # what is wrong with a card's MPS daemon, "" for nothing, by minor


def node_properties(node: Node, before: NodeProperties | None = None) -> NodeProperties:
    """Compute the properties. A ratio of CPU normalization that cannot be used leaves the one that was known before,
    and so do CPUs of SYSTEM pods.
    """
    annotations = node.metadata.annotations
    milli, reserved = _reservation(annotations)
    ratio = cpu_codecs.parse_cpu_normalization_ratio(annotations)
    if isinstance(ratio, MalformedAnnotation):
        ratio = before.normalization_ratio if before is not None and before.has_normalization_ratio else None
    return NodeProperties(
        name=node.metadata.name,
        capacity=pod_resources.resource_amounts(node.status.capacity),
        allocatable=pod_resources.resource_amounts(node.status.allocatable),
        origin_allocatable=_origin_allocatable(annotations),
        reservation_milli=milli,
        reserved_cpus=reserved,
        exclusive_cpus=_exclusive(annotations),
        system_cpus=_system_cpus(annotations, before),
        normalization_ratio=max(ratio or 1.0, 1.0),
        has_normalization_ratio=ratio is not None,
    )


def _reservation(annotations: Mapping[str, str]) -> tuple[int, CPUSet]:
    """Return the reserved milli-cores and CPUs of the annotation; named CPUs take precedence over an amount."""
    found = node_codecs.parse_node_reservation(annotations)
    if found is None or isinstance(found, MalformedAnnotation):
        return 0, EMPTY
    cpus = CPUSet.parse_or_empty(found.reserved_cpus)
    return (len(cpus) * 1000, cpus) if cpus else (pod_resources.resource_amounts(found.resources).get(CPU, 0), EMPTY)


def _origin_allocatable(annotations: Mapping[str, str]) -> dict[str, int]:
    found = node_codecs.parse_origin_allocatable(annotations)
    return (
        {}
        if found is None or isinstance(found, MalformedAnnotation)
        else pod_resources.resource_amounts(found.resources)
    )


def _exclusive(annotations: Mapping[str, str]) -> CPUSet:
    found = cpu_codecs.parse_system_qos_resource(annotations)
    if found is None or isinstance(found, MalformedAnnotation) or not found.is_exclusive:
        return EMPTY
    return CPUSet.parse_or_empty(found.cpuset)


def _system_cpus(annotations: Mapping[str, str], before: NodeProperties | None) -> CPUSet:
    known = EMPTY if before is None else before.system_cpus
    found = cpu_codecs.parse_system_qos_resource(annotations)
    if found is None or isinstance(found, MalformedAnnotation):
        return EMPTY if found is None else known
    try:
        return CPUSet.parse(found.cpuset)
    except CPUSetError:
        return known
