"""Apply feature gates to the factories of plugins."""

from __future__ import annotations

from collections.abc import Mapping

from koord.scheduler.plugins.coscheduling.network_plugin import new_coscheduling
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from koord.scheduler.plugins.dynamic_resources import DynamicResources
from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuotaPlugin
from koord.scheduler.plugins.registry import PluginFactory
from koord.scheduler.plugins.reservation.plugin import ReservationPlugin

_QUOTA_GATES = {
    "DisableDefaultQuota": "disable_default_quota",
    "MultiQuotaTree": "multi_quota_tree",
    "ElasticQuotaGuaranteeUsage": "guarantee_usage",
    "ElasticQuotaIgnorePodOverhead": "ignore_overhead",
    "ElasticQuotaIgnoreTerminatingPod": "ignore_terminating",
    "ElasticQuotaImmediateIgnoreTerminatingPod": "ignore_terminating_immediately",
}
_NO_RESOURCE_CLAIMS_GATE = "DisableDynamicResourceAllocationInformer"
_BATCH_GATE = "EnableInlineBatchSchedule"
_DEVICE_GATES = {"DevicePluginAdaption": "adapts", "ResizePod": "resizes"}
_RESERVATION_GATES = {
    "OmitNodeLabelsForReservation": "omit_node_labels",
    "CleanExpiredReservationAllocated": "clean_owners",
}


def apply_feature_gates(
    factories: Mapping[str, PluginFactory], gates: Mapping[str, bool]
) -> Mapping[str, PluginFactory]:
    """Return the factories with those replaced that a feature gate changes.

    Servers without resource claims would never answer a watch of them; vendors' device plugins read more.
    """
    changed: dict[str, PluginFactory] = {}
    if gates.get(_NO_RESOURCE_CLAIMS_GATE, False):
        changed[DynamicResources.name] = lambda args, handle: DynamicResources(None)
    quota = {keyword: gates.get(gate, False) for gate, keyword in _QUOTA_GATES.items()}
    if any(quota.values()):
        changed[ElasticQuotaPlugin.name] = lambda args, handle: ElasticQuotaPlugin(args, handle, **quota)
    if gates.get(_BATCH_GATE, False):
        changed[Coscheduling.name] = lambda args, handle: new_coscheduling(args, handle, batch=True)
    devices = {keyword: gates.get(gate, False) for gate, keyword in _DEVICE_GATES.items()}
    if any(devices.values()):
        changed[DeviceShare.name] = lambda args, handle: DeviceShare(args, handle, **devices)
    reservation = {keyword: gates.get(gate, False) for gate, keyword in _RESERVATION_GATES.items()}
    if any(reservation.values()):
        changed[ReservationPlugin.name] = lambda args, handle: ReservationPlugin(args, handle, **reservation)
    return {**factories, **changed}
