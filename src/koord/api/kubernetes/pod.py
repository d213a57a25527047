"""This module holds core/v1 Pod, its template, and its binding. Aggregated requests are in koord.api.pod_resources."""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from koord.api.kubernetes.affinity import Affinity, Toleration, TopologySpreadConstraint
from koord.api.kubernetes.container import Container, ContainerStatus, EphemeralContainer, ResourceRequirements
from koord.api.kubernetes.meta import Object, ObjectMeta
from koord.api.kubernetes.volume import Volume
from koord.api.model import NamedReference, ObjectReference, ResourceList, Submodel


class PodSchedulingGate(Submodel, frozen=True, kw_only=True):
    name: str = ""


class PodReadinessGate(Submodel, frozen=True, kw_only=True):
    condition_type: str = ""


class PodResourceClaim(Submodel, frozen=True, kw_only=True):
    """PodResourceClaim has exactly one of the two sources set."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodOS(Submodel, frozen=True, kw_only=True):
    name: str = ""


class PodSecurityContext(Submodel, frozen=True, kw_only=True):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    fs_group: int | None = None


class WorkloadReference(Submodel, frozen=True, kw_only=True):
    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class PodSpec(Submodel, frozen=True, kw_only=True):
    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[EphemeralContainer, ...] = ()
    resources: ResourceRequirements | None = None  # pod-level
    overhead: ResourceList | None = None
    volumes: tuple[Volume, ...] = ()
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    readiness_gates: tuple[PodReadinessGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    runtime_class_name: str | None = None
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    service_account_name: str = ""
    host_network: bool = False
    host_pid: bool = field(default=False, name="hostPID")
    host_ipc: bool = field(default=False, name="hostIPC")
    host_users: bool | None = None
    share_process_namespace: bool | None = None
    hostname: str = ""
    subdomain: str = ""
    os: PodOS | None = None
    security_context: PodSecurityContext | None = None
    image_pull_secrets: tuple[NamedReference, ...] = ()
    workload_ref: WorkloadReference | None = None


class PodCondition(Submodel, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    observed_generation: int = 0
    last_probe_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class PodIP(Submodel, frozen=True, kw_only=True):
    ip: str = ""


class PodResourceClaimStatus(Submodel, frozen=True, kw_only=True):
    name: str = ""
    resource_claim_name: str | None = None


class ContainerExtendedResourceRequest(Submodel, frozen=True, kw_only=True):
    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class PodExtendedResourceClaimStatus(Submodel, frozen=True, kw_only=True):
    request_mappings: tuple[ContainerExtendedResourceRequest, ...] = ()
    resource_claim_name: str = ""


class PodStatus(Submodel, frozen=True, kw_only=True):
    phase: str = ""
    observed_generation: int = 0
    conditions: tuple[PodCondition, ...] = ()
    message: str = ""
    reason: str = ""
    nominated_node_name: str = ""
    host_ip: str = field(default="", name="hostIP")
    host_ips: tuple[PodIP, ...] = field(default=(), name="hostIPs")
    pod_ip: str = field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = field(default=(), name="podIPs")
    start_time: datetime | None = None
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    qos_class: str = ""
    resize: str = ""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    allocated_resources: ResourceList | None = None  # pod-level
    resources: ResourceRequirements | None = None


class Pod(Object, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodTemplateSpec(Submodel, frozen=True, kw_only=True):
    """PodTemplateSpec is a typed view of a RawTemplate: `convert(raw, PodTemplateSpec)`."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class Binding(Object, frozen=True, kw_only=True):
    target: ObjectReference = ObjectReference()
