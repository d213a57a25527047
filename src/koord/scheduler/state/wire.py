"""Model the parts of a Pod that placement can depend on; nothing else is decoded, because fifty thousand are held.

Also normalises what is read differently from how it is written: deprecated resource names, and a scheduler chosen by a
label. A Reservation takes part as a reserve pod of the same form.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from koord.api import builtin
from koord.api.affinity import Affinity, Toleration, TopologySpreadConstraint
from koord.api.container import ContainerPort, ResourceRequirements
from koord.api.meta import Object
from koord.api.part import Part, ResourceList
from koord.api.pod import PodCondition, PodResourceClaim, PodResourceClaimStatus, PodSchedulingGate
from koord.api.resource import Resource
from koord.api.volume import Volume


class Container(Part, frozen=True, kw_only=True):
    name: str = ""
    image: str = ""
    ports: tuple[ContainerPort, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class PodSpec(Part, frozen=True, kw_only=True):
    """Hold the spec fields that placement reads; pods of one template differ only in their node and scheduling gates.

    """

    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: ResourceList | None = None
    volumes: tuple[Volume, ...] = ()
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    host_network: bool = False
    termination_grace_period_seconds: int | None = None


class ContainerStatus(Part, frozen=True, kw_only=True):
    """Hold what a resize in progress has admitted and what runs now; nothing else of a container's status matters
    here.
    """

    name: str = ""
    allocated_resources: ResourceList | None = None
    resources: ResourceRequirements | None = None


class PodStatus(Part, frozen=True, kw_only=True):
    phase: str = ""
    nominated_node_name: str = ""
    conditions: tuple[PodCondition, ...] = ()
    start_time: datetime | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()


class Pod(Object, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    shape: Any = None  # not on the wire: put there by `Shapes.interned`, and alive as long as a pod has it


PODS: Resource[Pod] = builtin.PODS.viewed(Pod)


def is_terminal(pod: Pod) -> bool:
    """Return whether the pod has ended: it holds nothing, wherever it is."""
    return pod.status.phase in ("Succeeded", "Failed")


def signature(value: Any) -> bytes:
    """Encode a value so that equal values give equal bytes and equal specs can share what is derived from them."""
    return msgspec.msgpack.encode(value, order="deterministic")
