"""This module holds the small kinds of core/v1.

Pods, nodes and volumes are large enough to have modules of their own.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from koord.api.kubernetes.meta import Object
from koord.api.model import (
    IntOrString,
    LegacyCondition,
    NamedReference,
    ObjectReference,
    RawTemplate,
    ResourceList,
    Submodel,
)


class NamespaceSpec(Submodel, frozen=True, kw_only=True):
    finalizers: tuple[str, ...] = ()


class NamespaceStatus(Submodel, frozen=True, kw_only=True):
    phase: str = ""
    conditions: tuple[LegacyCondition, ...] = ()


class Namespace(Object, frozen=True, kw_only=True):
    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class ConfigMap(Object, frozen=True, kw_only=True):
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}  # base64
    immutable: bool | None = None


class Secret(Object, frozen=True, kw_only=True):
    type: str = ""
    data: dict[str, str] = {}  # base64
    immutable: bool | None = None


class ServicePort(Submodel, frozen=True, kw_only=True):
    name: str = ""
    protocol: str = ""
    port: int = 0
    target_port: IntOrString = 0
    node_port: int = 0


class ServiceSpec(Submodel, frozen=True, kw_only=True):
    selector: dict[str, str] = {}
    ports: tuple[ServicePort, ...] = ()
    type: str = ""
    cluster_ip: str = field(default="", name="clusterIP")


class Service(Object, frozen=True, kw_only=True):
    spec: ServiceSpec = ServiceSpec()


class ReplicationControllerSpec(Submodel, frozen=True, kw_only=True):
    replicas: int | None = None
    min_ready_seconds: int = 0
    selector: dict[str, str] = {}
    template: RawTemplate | None = None


class ReplicationControllerStatus(Submodel, frozen=True, kw_only=True):
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    observed_generation: int = 0
    conditions: tuple[LegacyCondition, ...] = ()


class ReplicationController(Object, frozen=True, kw_only=True):
    spec: ReplicationControllerSpec = ReplicationControllerSpec()
    status: ReplicationControllerStatus = ReplicationControllerStatus()


class PodTemplate(Object, frozen=True, kw_only=True):
    template: RawTemplate = {}


class EventSource(Submodel, frozen=True, kw_only=True):
    component: str = ""
    host: str = ""


class EventSeries(Submodel, frozen=True, kw_only=True):
    count: int = 0
    last_observed_time: datetime | None = None


class Event(Object, frozen=True, kw_only=True):
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    action: str = ""
    count: int = 0
    source: EventSource = EventSource()
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: EventSeries | None = None
    related: ObjectReference | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


class ScopedResourceSelectorRequirement(Submodel, frozen=True, kw_only=True):
    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class ScopeSelector(Submodel, frozen=True, kw_only=True):
    match_expressions: tuple[ScopedResourceSelectorRequirement, ...] = ()


class ResourceQuotaSpec(Submodel, frozen=True, kw_only=True):
    hard: ResourceList = {}
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Submodel, frozen=True, kw_only=True):
    hard: ResourceList = {}
    used: ResourceList = {}


class ResourceQuota(Object, frozen=True, kw_only=True):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class LimitRangeItem(Submodel, frozen=True, kw_only=True):
    type: str = ""
    max: ResourceList = {}
    min: ResourceList = {}
    default: ResourceList = {}
    default_request: ResourceList = {}
    max_limit_request_ratio: ResourceList = {}


class LimitRangeSpec(Submodel, frozen=True, kw_only=True):
    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(Object, frozen=True, kw_only=True):
    spec: LimitRangeSpec = LimitRangeSpec()


class ServiceAccount(Object, frozen=True, kw_only=True):
    automount_service_account_token: bool | None = None
    image_pull_secrets: tuple[NamedReference, ...] = ()
