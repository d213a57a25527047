"""Collect what koord-scheduler may do on an API server from the parts that need it."""

from __future__ import annotations

from typing import Any

from koord.api.koordinator.protocol import SCHEDULER
from koord.api.kubernetes.rbac import RbacRule
from koord.kube.events.recorder import EventRecorder
from koord.kube.leader_election import lease_rules
from koord.kube.transport.delegated_auth import DelegatedAuth
from koord.scheduler.bind import Binder
from koord.scheduler.event_handlers import EventHandlers
from koord.scheduler.evictor import SchedulerEvictor
from koord.scheduler.plugins.coscheduling.controller import NetworkTopologyController, PodGroupController
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from koord.scheduler.plugins.device_share.request_cache import GpuTemplateWatcher
from koord.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from koord.scheduler.plugins.elastic_quota.controller import DefaultQuotaController, QuotaStatusController
from koord.scheduler.plugins.inter_pod_affinity.terms import NamespaceLister
from koord.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koord.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from koord.scheduler.plugins.reservation.controller import ReservationController
from koord.scheduler.plugins.reservation.plugin import ReservationPlugin
from koord.scheduler.plugins.volumes.node_volume_limits import NodeVolumeLimits
from koord.scheduler.plugins.volumes.pv_matcher import ProvisioningCheck
from koord.scheduler.plugins.volumes.volume_binder import VolumeBinder
from koord.scheduler.status_reporter import PodStatusWriter
from koord.scheduler.sync_barrier import SyncBarrier

# Every cluster with RBAC has these; they hold what the plugins of kube-scheduler need, in the cluster's own version.
BOUND_ROLES = ("system:kube-scheduler", "system:volume-scheduler")

_PARTS: tuple[Any, ...] = (
    EventRecorder,
    DelegatedAuth,
    EventHandlers,
    Binder,
    PodStatusWriter,
    SyncBarrier,
    SchedulerEvictor,
    NamespaceLister,
    VolumeBinder,
    NodeVolumeLimits,
    ProvisioningCheck,
    DynamicResources,
    LoadAwareScheduling,
    NodeNUMAResource,
    DeviceShare,
    GpuTemplateWatcher,
    NetworkTopologyController,
    PodGroupController,
    DefaultQuotaController,
    QuotaStatusController,
    ReservationPlugin,
    ReservationController,
)


def rbac_rules() -> tuple[RbacRule, ...]:
    """Return all RBAC rules that koord-scheduler may ever need, whatever its profiles."""
    return (*lease_rules(SCHEDULER), *(rule for part in _PARTS for rule in part.rights))
