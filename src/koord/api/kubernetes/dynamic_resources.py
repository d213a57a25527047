"""This module holds resource.k8s.io/v1, dynamic resource allocation, as far as a scheduler reads it."""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from koord.api.kubernetes.affinity import NodeSelector
from koord.api.kubernetes.meta import Condition, Object
from koord.api.model import QuantityText, RawTemplate, ResourceList, Submodel


class CelDeviceSelector(Submodel, frozen=True, kw_only=True):
    """CelDeviceSelector is CELDeviceSelector: an expression that is true for the devices that are meant."""

    expression: str = ""


class DeviceSelectorTerm(Submodel, frozen=True, kw_only=True):
    """DeviceSelectorTerm is DeviceSelector of resource.k8s.io, which has one kind of selector so far."""

    cel: CelDeviceSelector | None = None


class DeviceToleration(Submodel, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class DeviceTaint(Submodel, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class ExactDeviceRequest(Submodel, frozen=True, kw_only=True):
    device_class_name: str = ""
    selectors: tuple[DeviceSelectorTerm, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: RawTemplate | None = None  # of devices that several claims share


class DeviceSubRequest(Submodel, frozen=True, kw_only=True):
    """DeviceSubRequest is one of the alternatives of a request; it has a name and no access as an administrator."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelectorTerm, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: RawTemplate | None = None


class DeviceRequest(Submodel, frozen=True, kw_only=True):
    """DeviceRequest is either one exact request or a list of alternatives in order of preference."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(Submodel, frozen=True, kw_only=True):
    """DeviceConstraint relates the devices of the named requests, or of all; it has one of the two attributes."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(Submodel, frozen=True, kw_only=True):
    requests: tuple[str, ...] = ()
    opaque: RawTemplate | None = None


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


class DeviceAllocationConfiguration(Submodel, frozen=True, kw_only=True):
    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: RawTemplate | None = None


class DeviceAllocationResult(Submodel, frozen=True, kw_only=True):
    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


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
    opaque: RawTemplate | None = None


class DeviceClassSpec(Submodel, frozen=True, kw_only=True):
    selectors: tuple[DeviceSelectorTerm, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()


class DeviceClass(Object, frozen=True, kw_only=True):
    spec: DeviceClassSpec = DeviceClassSpec()


class ResourcePool(Submodel, frozen=True, kw_only=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class DeviceAttribute(Submodel, frozen=True, kw_only=True):
    """DeviceAttribute has exactly one value. Two attributes are equal where type and value are."""

    int_value: int | None = field(default=None, name="int")
    bool_value: bool | None = field(default=None, name="bool")
    string_value: str | None = field(default=None, name="string")
    version_value: str | None = field(default=None, name="version")


class DeviceCapacity(Submodel, frozen=True, kw_only=True):
    value: QuantityText = "0"


class DeviceCounter(Submodel, frozen=True, kw_only=True):
    """DeviceCounter is Counter: how much of something a set has, or a device takes."""

    value: QuantityText = "0"


class CounterSet(Submodel, frozen=True, kw_only=True):
    name: str = ""
    counters: dict[str, DeviceCounter] = {}


class DeviceCounterConsumption(Submodel, frozen=True, kw_only=True):
    counter_set: str = ""
    counters: dict[str, DeviceCounter] = {}


class SliceDevice(Submodel, frozen=True, kw_only=True):
    """SliceDevice is Device of resource.k8s.io; that name is Koordinator's object here."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    allow_multiple_allocations: bool | None = None
    binding_conditions: tuple[str, ...] = ()


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
