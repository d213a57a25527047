"""This module holds core/v1 Node (its capacity, its taints, what its kubelet reports) and coordination.k8s.io/v1 Lease,
used for node heartbeats and leader election.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from koord.api.kubernetes.affinity import Taint
from koord.api.kubernetes.meta import Object
from koord.api.model import ResourceList, Submodel


class NodeSpec(Submodel, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    pod_cidr: str = field(default="", name="podCIDR")
    pod_cidrs: tuple[str, ...] = field(default=(), name="podCIDRs")
    provider_id: str = field(default="", name="providerID")


class NodeCondition(Submodel, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    last_heartbeat_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class NodeAddress(Submodel, frozen=True, kw_only=True):
    type: str = ""
    address: str = ""


class DaemonEndpoint(Submodel, frozen=True, kw_only=True):
    # The one field of the API whose wire name is written with a capital.
    port: int = field(default=0, name="Port")


class NodeDaemonEndpoints(Submodel, frozen=True, kw_only=True):
    kubelet_endpoint: DaemonEndpoint = DaemonEndpoint()


class NodeSwapStatus(Submodel, frozen=True, kw_only=True):
    capacity: int | None = None


class NodeSystemInfo(Submodel, frozen=True, kw_only=True):
    machine_id: str = field(default="", name="machineID")
    system_uuid: str = field(default="", name="systemUUID")
    boot_id: str = field(default="", name="bootID")
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    operating_system: str = ""
    architecture: str = ""
    swap: NodeSwapStatus | None = None


class ContainerImage(Submodel, frozen=True, kw_only=True):
    names: tuple[str, ...] = ()
    size_bytes: int = 0


class AttachedVolume(Submodel, frozen=True, kw_only=True):
    name: str = ""
    device_path: str = ""


class NodeRuntimeHandlerFeatures(Submodel, frozen=True, kw_only=True):
    recursive_read_only_mounts: bool | None = None
    user_namespaces: bool | None = None


class NodeRuntimeHandler(Submodel, frozen=True, kw_only=True):
    name: str = ""
    features: NodeRuntimeHandlerFeatures | None = None


class NodeStatus(Submodel, frozen=True, kw_only=True):
    capacity: ResourceList = {}
    allocatable: ResourceList = {}
    phase: str = ""
    conditions: tuple[NodeCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    daemon_endpoints: NodeDaemonEndpoints = NodeDaemonEndpoints()
    node_info: NodeSystemInfo = NodeSystemInfo()
    images: tuple[ContainerImage, ...] = ()
    volumes_in_use: tuple[str, ...] = ()
    volumes_attached: tuple[AttachedVolume, ...] = ()
    runtime_handlers: tuple[NodeRuntimeHandler, ...] = ()
    declared_features: tuple[str, ...] = ()


class Node(Object, frozen=True, kw_only=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(Submodel, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True, kw_only=True):
    spec: LeaseSpec = LeaseSpec()
