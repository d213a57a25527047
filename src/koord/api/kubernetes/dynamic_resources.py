"""This module holds resource.k8s.io/v1, dynamic resource allocation, as far as a scheduler reads claims."""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from koord.api.kubernetes.affinity import NodeSelector
from koord.api.kubernetes.meta import Condition, Object
from koord.api.model import RawTemplate, ResourceList, Submodel


class DeviceToleration(Submodel, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class DeviceSubRequest(Submodel, frozen=True, kw_only=True):
    name: str = ""
    device_class_name: str = ""


class ExactDeviceRequest(Submodel, frozen=True, kw_only=True):
    device_class_name: str = ""
    count: int = 0


class DeviceRequest(Submodel, frozen=True, kw_only=True):
    """DeviceRequest is either one exact request or a list of alternatives in order of preference."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceClaim(Submodel, frozen=True, kw_only=True):
    requests: tuple[DeviceRequest, ...] = ()


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


class DeviceClass(Object, frozen=True, kw_only=True):
    """DeviceClass is known by its name alone: koord allocates no devices of claims."""


class ResourceSlice(Object, frozen=True, kw_only=True):
    """ResourceSlice is served and not read: koord allocates no devices of claims."""
