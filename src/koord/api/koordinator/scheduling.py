"""This module holds scheduling.koordinator.sh/v1alpha1: Device (the GPUs, network cards and FPGAs of one node),
Reservation, PodMigrationJob and others.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import field

from koord.api.kubernetes.affinity import Taint
from koord.api.kubernetes.meta import Condition, DeleteOptions, LabelSelector, Object, OwnerReference
from koord.api.kubernetes.pod import PodTemplateSpec
from koord.api.model import ObjectReference, RawTemplate, Submodel
from koord.api.schema_markers import (
    NULLABLE,
    REQUIRED,
    SCHEMALESS,
    Duration,
    Int32,
    ResourceList,
    SchemaRule,
    never_omitted,
)

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


PENDING = "Pending"
RUNNING = "Running"
AVAILABLE = "Available"
WAITING = "Waiting"
SUCCEEDED = "Succeeded"
FAILED = "Failed"
ABORTED = "Aborted"

ALIGNED = "Aligned"
RESTRICTED = "Restricted"
PRE_ALLOCATION_DEFAULT = "Default"
PRE_ALLOCATION_CLUSTER = "Cluster"

RESERVATION_FIRST = "ReservationFirst"
EVICT_DIRECTLY = "EvictDirectly"


class ReservationControllerReference(OwnerReference, frozen=True, kw_only=True):
    namespace: str = ""


class ReservationOwner(Submodel, frozen=True, kw_only=True):
    """Properties of one owner must all match; one owner of several is enough."""

    object: ObjectReference | None = None
    controller: ReservationControllerReference | None = None
    label_selector: LabelSelector | None = None


class PreAllocationPolicy(Submodel, frozen=True, kw_only=True):
    mode: Annotated[str, SchemaRule(enum=(PRE_ALLOCATION_DEFAULT, PRE_ALLOCATION_CLUSTER), default="Default")] = ""
    enable_multiple: bool = False


class ReservationSpec(Submodel, frozen=True, kw_only=True):
    template: Annotated[PodTemplateSpec, REQUIRED, SCHEMALESS] | None = None
    owners: Annotated[tuple[ReservationOwner, ...], SchemaRule(required=True, min_items=1)] = never_omitted(())
    ttl: Annotated[Duration, SchemaRule(default="24h")] | None = None
    expires: Annotated[datetime, NULLABLE] | None = None
    pre_allocation: bool = False
    pre_allocation_policy: PreAllocationPolicy | None = None
    allocate_once: Annotated[bool, SchemaRule(default=True)] | None = None
    allocate_policy: Annotated[str, SchemaRule(enum=(ALIGNED, RESTRICTED))] = ""
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class ReservationCondition(Submodel, frozen=True, kw_only=True):
    type: str = ""  # Scheduled, Ready
    status: str = ""
    reason: str = ""
    message: str = ""
    last_probe_time: Annotated[datetime, NULLABLE] | None = None
    last_transition_time: Annotated[datetime, NULLABLE] | None = None


class ReservationStatus(Submodel, frozen=True, kw_only=True):
    phase: Annotated[str, SchemaRule(default=PENDING)] = ""
    conditions: tuple[ReservationCondition, ...] = ()
    current_owners: tuple[ObjectReference, ...] = ()
    node_name: str = ""
    allocatable: ResourceList = {}
    allocated: ResourceList = {}


class Reservation(Object, frozen=True, kw_only=True):
    """Capacity held for owners that are yet to come, scheduled as if it were a pod."""

    spec: ReservationSpec = ReservationSpec()
    status: ReservationStatus = ReservationStatus()


class PreemptionOptions(Submodel, frozen=True, kw_only=True):
    """Reserved: upstream has no fields here yet."""


class ReservationOptions(Submodel, frozen=True, kw_only=True):
    reservation_ref: ObjectReference | None = None
    template: Annotated[RawTemplate, SCHEMALESS] | None = None  # metadata and spec of the Reservation to make
    preemption_options: PreemptionOptions | None = None


class PodMigrationJobSpec(Submodel, frozen=True, kw_only=True):
    """Without a ttl, or with 0, a job never times out."""

    paused: bool = False
    ttl: Duration | None = None
    mode: str = ""  # empty: the default of whoever carries it out
    pod_ref: Annotated[ObjectReference, REQUIRED] | None = None
    reservation_options: ReservationOptions | None = None
    delete_options: DeleteOptions | None = None


class PreemptedReservation(Submodel, frozen=True, kw_only=True):
    namespace: str = ""
    name: str = ""
    node_name: str = ""
    phase: str = ""
    preempted_pod_ref: ObjectReference | None = None
    pods_ref: tuple[ObjectReference, ...] = ()


class PodMigrationJobCondition(Submodel, frozen=True, kw_only=True):
    type: Annotated[str, REQUIRED] = never_omitted("")
    status: Annotated[str, REQUIRED] = never_omitted("")
    last_probe_time: Annotated[datetime, NULLABLE] | None = None
    last_transition_time: Annotated[datetime, NULLABLE] | None = None
    reason: str = ""
    message: str = ""


class PodMigrationJobStatus(Submodel, frozen=True, kw_only=True):
    phase: str = ""
    status: str = ""  # the last step
    reason: str = ""
    message: str = ""
    node_name: str = ""
    pod_ref: ObjectReference | None = None  # the new pod
    preempted_pods_ref: tuple[ObjectReference, ...] = ()
    preempted_pods_reservation: tuple[PreemptedReservation, ...] = ()  # singular on the wire, though a list
    conditions: tuple[PodMigrationJobCondition, ...] = ()


class PodMigrationJob(Object, frozen=True, kw_only=True):
    """Move one pod: reserve its new place first, then evict, or evict at once."""

    spec: PodMigrationJobSpec = PodMigrationJobSpec()
    status: PodMigrationJobStatus = PodMigrationJobStatus()


class NetworkTopologyLayer(Submodel, frozen=True, kw_only=True):
    topology_layer: Annotated[str, REQUIRED] = never_omitted("")
    parent_topology_layer: str = ""
    label_key: tuple[str, ...] = ()  # any of these node labels names the domain


class ClusterNetworkTopologySpec(Submodel, frozen=True, kw_only=True):
    network_topology_spec: Annotated[tuple[NetworkTopologyLayer, ...], REQUIRED] = never_omitted(())


class TopologyInfo(Submodel, frozen=True, kw_only=True):
    topology_layer: Annotated[str, REQUIRED] = never_omitted("")
    topology_name: Annotated[str, REQUIRED] = never_omitted("")


class TopologyDetail(Submodel, frozen=True, kw_only=True):
    topology_info: Annotated[TopologyInfo, REQUIRED] = never_omitted(TopologyInfo())
    parent_topology_info: TopologyInfo | None = None
    child_topology_layer: str = ""
    child_topology_names: tuple[str, ...] = ()
    node_num: Annotated[Int32, REQUIRED] = never_omitted(0)


class ClusterNetworkTopologyStatus(Submodel, frozen=True, kw_only=True):
    detail_status: tuple[TopologyDetail, ...] = ()


class ClusterNetworkTopology(Object, frozen=True, kw_only=True):
    """The layers of the cluster's network and the node labels that tell them apart. One object, named default."""

    spec: ClusterNetworkTopologySpec = ClusterNetworkTopologySpec()
    status: ClusterNetworkTopologyStatus = ClusterNetworkTopologyStatus()


class ScheduleExplanationSpec(Submodel, frozen=True, kw_only=True):
    question_object_key: str = ""
    question_object_template: Annotated[PodTemplateSpec, SCHEMALESS] | None = None
    ttl: Annotated[Duration, SchemaRule(default="24h")] | None = None


class SchedulingResult(Submodel, frozen=True, kw_only=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""
    node_name: str = ""


class NodeFailedDetail(Submodel, frozen=True, kw_only=True):
    failed_plugin: str = ""
    reason: str = ""
    preempt_might_help: bool = False
    failed_nodes: tuple[str, ...] = ()


class ExplainedAttempt(Submodel, frozen=True, kw_only=True):
    """One dry run, with or without preemption."""

    schedulable: bool = False
    failed_message: str = ""
    feasible_scheduling_result: tuple[SchedulingResult, ...] = ()
    node_failed_details: tuple[NodeFailedDetail, ...] = ()


class PossibleVictim(Submodel, frozen=True, kw_only=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""
    is_nominated_pod: bool = False


class NodePossibleVictim(Submodel, frozen=True, kw_only=True):
    node_name: str = ""
    possible_victims: tuple[PossibleVictim, ...] = ()


class DetailedExplanation(Submodel, frozen=True, kw_only=True):
    topology_domain: str = ""
    schedulable: bool = False
    schedulable_after_preemption: bool = False
    failed_message: str = ""
    schedule_explanation: ExplainedAttempt | None = None
    preempt_explanation: ExplainedAttempt | None = None
    node_possible_victims: tuple[NodePossibleVictim, ...] = ()


class ScheduleExplanationStatus(Submodel, frozen=True, kw_only=True):
    schedulable: bool = False
    schedulable_after_preemption: bool = False
    failed_message: str = ""
    last_update_time: Annotated[datetime, NULLABLE] | None = None
    detailed_explanation: tuple[DetailedExplanation, ...] = ()


class ScheduleExplanation(Object, frozen=True, kw_only=True):
    """A question about a pending object and the scheduler's answer, by topology domain."""

    spec: ScheduleExplanationSpec = ScheduleExplanationSpec()
    status: ScheduleExplanationStatus = ScheduleExplanationStatus()
