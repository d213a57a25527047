"""This module holds core/v1 Pod with its containers, its template, and its binding. Aggregated requests are in
koord.api.kubernetes.pod_resources.

Mounts, security profiles and probe handlers are left out: only a real kubelet acts on them.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from koord.api.kubernetes.affinity import Affinity, Toleration, TopologySpreadConstraint
from koord.api.kubernetes.meta import Object, ObjectMeta
from koord.api.kubernetes.volume import Volume
from koord.api.model import NamedReference, ObjectReference, ResourceList, Submodel


class ContainerPort(Submodel, frozen=True, kw_only=True):
    name: str = ""
    host_port: int = 0
    container_port: int = 0
    protocol: str = ""
    host_ip: str = field(default="", name="hostIP")


class ObjectFieldSelector(Submodel, frozen=True, kw_only=True):
    api_version: str = ""
    field_path: str = ""


class ResourceFieldSelector(Submodel, frozen=True, kw_only=True):
    container_name: str = ""
    resource: str = ""
    divisor: str | int | float = ""


class KeySelector(Submodel, frozen=True, kw_only=True):
    """KeySelector names one key of a ConfigMap or Secret."""

    name: str = ""
    key: str = ""
    optional: bool = False


class EnvVarSource(Submodel, frozen=True, kw_only=True):
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None


class EnvVar(Submodel, frozen=True, kw_only=True):
    name: str = ""
    value: str = ""
    value_from: EnvVarSource | None = None


class EnvSource(Submodel, frozen=True, kw_only=True):
    name: str = ""
    optional: bool = False


class EnvFromSource(Submodel, frozen=True, kw_only=True):
    prefix: str = ""
    config_map_ref: EnvSource | None = None
    secret_ref: EnvSource | None = None


class ContainerResourceClaim(Submodel, frozen=True, kw_only=True):
    """ContainerResourceClaim is core/v1's ResourceClaim: the name of an entry in the pod's resourceClaims."""

    name: str = ""
    request: str = ""


class ResourceRequirements(Submodel, frozen=True, kw_only=True):
    limits: ResourceList = {}
    requests: ResourceList = {}
    claims: tuple[ContainerResourceClaim, ...] = ()


class ContainerResizePolicy(Submodel, frozen=True, kw_only=True):
    resource_name: str = ""
    restart_policy: str = ""  # NotRequired, RestartContainer


class Probe(Submodel, frozen=True, kw_only=True):
    initial_delay_seconds: int = 0
    timeout_seconds: int = 0
    period_seconds: int = 0
    success_threshold: int = 0
    failure_threshold: int = 0
    termination_grace_period_seconds: int | None = None


class SecurityContext(Submodel, frozen=True, kw_only=True):
    privileged: bool | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None


class Container(Submodel, frozen=True, kw_only=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: tuple[ContainerResizePolicy, ...] = ()
    restart_policy: str | None = None  # Always on an init container makes it a sidecar
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    security_context: SecurityContext | None = None


class EphemeralContainer(Submodel, frozen=True, kw_only=True):
    """EphemeralContainer may not request resources or ports, so it never counts for placement."""

    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    target_container_name: str = ""


class ContainerStateWaiting(Submodel, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class ContainerStateRunning(Submodel, frozen=True, kw_only=True):
    started_at: datetime | None = None


class ContainerStateTerminated(Submodel, frozen=True, kw_only=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    container_id: str = field(default="", name="containerID")


class ContainerState(Submodel, frozen=True, kw_only=True):
    """ContainerState has at most one state set; none means waiting."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ResourceHealth(Submodel, frozen=True, kw_only=True):
    resource_id: str = field(default="", name="resourceID")
    health: str = ""


class ResourceStatus(Submodel, frozen=True, kw_only=True):
    name: str = ""
    resources: tuple[ResourceHealth, ...] = ()


class ContainerStatus(Submodel, frozen=True, kw_only=True):
    name: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = field(default="", name="imageID")
    container_id: str = field(default="", name="containerID")
    started: bool | None = None
    # What the node admitted, and what runs now: both matter while a resize is under way.
    allocated_resources: ResourceList | None = None
    resources: ResourceRequirements | None = None
    allocated_resources_status: tuple[ResourceStatus, ...] = ()


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
