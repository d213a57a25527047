"""The inputs of the strategies from outside the machine: the Node, its effective NodeSLO, its pods and its kubelet."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api import pod_resources
from koord.api.annotations import cpu_normalization, node_reservation, system_qos
from koord.api.annotations.codec import Malformed
from koord.api.node import Node
from koord.api.resource_name import CPU
from koord.api.slo import NodeSLOSpec
from koord.koordlet.pod import PodView
from koord.koordlet.strategies.slo import effective
from koord.values.cpuset import EMPTY, CPUSet, CPUSetError


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a Node that decisions need, computed once per change. CPU is in milli-cores, all else in
    units.
    """

    name: str
    capacity: Mapping[str, int] = {}
    allocatable: Mapping[str, int] = {}
    reservation_milli: int = 0  # of its annotation
    reserved_cpus: CPUSet = EMPTY  # named in its annotation
    exclusive_cpus: CPUSet = EMPTY  # of system QoS
    normalization_ratio: float = 1.0


class Kubelet(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the kubelet's configuration that strategies need; the defaults apply where it did not answer."""

    cpu_manager_policy: str = "none"

    @property
    def is_static(self) -> bool:
        return self.cpu_manager_policy == "static"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the node at one moment.

    `slo` is laid over the built-in defaults already; it is None until a NodeSLO was seen, and a deleted NodeSLO counts
    as an empty one, so that everything is restored. `node` is None until a Node was seen, and stays the last one seen.
    """

    node: NodeFacts | None = None
    slo: NodeSLOSpec | None = None
    pods: tuple[PodView, ...] = ()
    pods_known: bool = True  # False until they were listed once: nothing is decided for a node that may not be empty
    kubelet: Kubelet = Kubelet()
    # Mount point by a pod's uid and the name of one of its volumes, for disk limits of volumes.
    mounts: Mapping[tuple[str, str], str] = {}
    safe_mode: bool = False  # decide and report, but write and evict nothing


def node_facts(node: Node) -> NodeFacts:
    """Compute the properties of a Node that decisions need."""
    annotations = node.metadata.annotations
    milli, reserved = _reservation(annotations)
    ratio = cpu_normalization.parse_ratio(annotations)
    return NodeFacts(
        name=node.metadata.name,
        capacity=pod_resources.amounts(node.status.capacity),
        allocatable=pod_resources.amounts(node.status.allocatable),
        reservation_milli=milli,
        reserved_cpus=reserved,
        exclusive_cpus=_exclusive(annotations),
        normalization_ratio=ratio if isinstance(ratio, float) and ratio > 1 else 1.0,
    )


def slo_facts(spec: NodeSLOSpec | None) -> NodeSLOSpec:
    """Return the effective NodeSLO of a spec that was seen; None stands for a NodeSLO that was deleted since."""
    return effective(NodeSLOSpec() if spec is None else spec)


def _reservation(annotations: Mapping[str, str]) -> tuple[int, CPUSet]:
    """Return the reserved milli-cores and CPUs of the annotation; named CPUs take precedence over an amount."""
    found = node_reservation.parse(annotations)
    if found is None or isinstance(found, Malformed):
        return 0, EMPTY
    cpus = _cpus(found.reserved_cpus)
    return (len(cpus) * 1000, cpus) if cpus else (pod_resources.amounts(found.resources).get(CPU, 0), EMPTY)


def _exclusive(annotations: Mapping[str, str]) -> CPUSet:
    found = system_qos.parse(annotations)
    if found is None or isinstance(found, Malformed) or not found.is_exclusive:
        return EMPTY
    return _cpus(found.cpuset)


def _cpus(text: str) -> CPUSet:
    try:
        return CPUSet.parse(text)
    except CPUSetError:
        return EMPTY
