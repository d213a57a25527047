"""This module holds resource.k8s.io/v1, dynamic resource allocation, as far as a scheduler reads claims and
slices.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import field

from koord.api.kubernetes.affinity import NodeSelector
from koord.api.kubernetes.meta import Condition, Object
from koord.api.model import QuantityText, RawTemplate, ResourceList, Submodel


class CELDeviceSelector(Submodel, frozen=True, kw_only=True):
    expression: str = ""


class DeviceSelector(Submodel, frozen=True, kw_only=True):
    cel: CELDeviceSelector | None = None


class DeviceToleration(Submodel, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(Submodel, frozen=True, kw_only=True):
    requests: ResourceList = {}


class DeviceSubRequest(Submodel, frozen=True, kw_only=True):
    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""  # ExactCount, All
    count: int = 0
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class ExactDeviceRequest(Submodel, frozen=True, kw_only=True):
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(Submodel, frozen=True, kw_only=True):
    """DeviceRequest is either one exact request or a list of alternatives in order of preference."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(Submodel, frozen=True, kw_only=True):
    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueDeviceConfiguration(Submodel, frozen=True, kw_only=True):
    driver: str = ""
    parameters: dict[str, Any] | None = None


class DeviceClaimConfiguration(Submodel, frozen=True, kw_only=True):
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(Submodel, frozen=True, kw_only=True):
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()


class ResourceClaimSpec(Submodel, frozen=True, kw_only=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(Submodel, frozen=True, kw_only=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    share_id: str | None = field(default=None, name="shareID")
    consumed_capacity: ResourceList | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()


class DeviceAllocationResult(Submodel, frozen=True, kw_only=True):
    results: tuple[DeviceRequestAllocationResult, ...] = ()


class AllocationResult(Submodel, frozen=True, kw_only=True):
    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: datetime | None = None


class ResourceClaimConsumer(Submodel, frozen=True, kw_only=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class AllocatedDeviceStatus(Submodel, frozen=True, kw_only=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = field(default=None, name="shareID")
    conditions: tuple[Condition, ...] = ()


class ResourceClaimStatus(Submodel, frozen=True, kw_only=True):
    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumer, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class ResourceClaim(Object, frozen=True, kw_only=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplate(Object, frozen=True, kw_only=True):
    spec: RawTemplate = {}  # metadata and spec of the claims made from it


class DeviceClassConfiguration(Submodel, frozen=True, kw_only=True):
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(Submodel, frozen=True, kw_only=True):
    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(Object, frozen=True, kw_only=True):
    spec: DeviceClassSpec = DeviceClassSpec()


class ResourcePool(Submodel, frozen=True, kw_only=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class DeviceAttribute(Submodel, frozen=True, kw_only=True):
    """DeviceAttribute has exactly one value. The trailing underscore keeps a field from hiding the built-in type
    of that name.
    """

    int_: int | None = field(default=None, name="int")
    bool_: bool | None = field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class DeviceCapacity(Submodel, frozen=True, kw_only=True):
    value: QuantityText = 0


class DeviceCounter(Submodel, frozen=True, kw_only=True):
    value: QuantityText = 0


class CounterSet(Submodel, frozen=True, kw_only=True):
    name: str = ""
    counters: dict[str, DeviceCounter] = {}


class DeviceCounterConsumption(Submodel, frozen=True, kw_only=True):
    counter_set: str = ""
    counters: dict[str, DeviceCounter] = {}


class DeviceTaint(Submodel, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: datetime | None = None


class SliceDevice(Submodel, frozen=True, kw_only=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    allow_multiple_allocations: bool | None = None


class ResourceSliceSpec(Submodel, frozen=True, kw_only=True):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[SliceDevice, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Object, frozen=True, kw_only=True):
    spec: ResourceSliceSpec = ResourceSliceSpec()
