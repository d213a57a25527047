"""This module holds scheduling.koordinator.sh/v1alpha1 Device: the GPUs, network cards and FPGAs of one node."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from koord.api.kubernetes.meta import Condition, Object
from koord.api.model import Submodel
from koord.api.schema_markers import REQUIRED, Int32, ResourceList, SchemaRule, never_omitted

GPU = "gpu"
RDMA = "rdma"
FPGA = "fpga"
HEALTHY = "Healthy"  # the condition type


class DeviceTopology(Submodel, frozen=True, kw_only=True):
    socket_id: Annotated[Int32, REQUIRED] = field(default_factory=lambda: 0, name="socketID")
    node_id: Annotated[Int32, REQUIRED] = field(default_factory=lambda: 0, name="nodeID")
    pcie_id: Annotated[str, REQUIRED] = field(default_factory=lambda: "", name="pcieID")
    bus_id: str = field(default="", name="busID")


class VirtualFunction(Submodel, frozen=True, kw_only=True):
    minor: Annotated[Int32, REQUIRED] = never_omitted(0)
    bus_id: str = field(default="", name="busID")


class VirtualFunctionGroup(Submodel, frozen=True, kw_only=True):
    labels: dict[str, str] = {}
    vfs: tuple[VirtualFunction, ...] = ()


class DeviceInfo(Submodel, frozen=True, kw_only=True):
    type: str = ""
    labels: dict[str, str] = {}
    id: str = ""  # UUID of a GPU, PCI bus id of an RDMA card
    minor: Int32 | None = None
    module_id: Int32 | None = field(default=None, name="moduleID")
    health: Annotated[bool, SchemaRule(required=True, default=False)] = never_omitted(False)
    resources: ResourceList = {}
    topology: DeviceTopology | None = None
    vf_groups: tuple[VirtualFunctionGroup, ...] = ()
    conditions: tuple[Condition, ...] = ()


class DeviceSpec(Submodel, frozen=True, kw_only=True):
    devices: tuple[DeviceInfo, ...] = ()


class DeviceAllocationItem(Submodel, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uuid: str = ""
    minors: tuple[Int32, ...] = ()


class DeviceAllocation(Submodel, frozen=True, kw_only=True):
    type: str = ""
    entries: tuple[DeviceAllocationItem, ...] = ()


class DeviceStatus(Submodel, frozen=True, kw_only=True):
    allocations: tuple[DeviceAllocation, ...] = ()


class Device(Object, frozen=True, kw_only=True):
    """The devices of one node, named as the node. There is no status subresource: status travels in the object."""

    spec: DeviceSpec = DeviceSpec()
    status: DeviceStatus = DeviceStatus()
