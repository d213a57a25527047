"""Apply feature gates to the factories of plugins."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.config.field_error import FieldError
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.scheduler.plugins.coscheduling import Coscheduling, coscheduling
from koord.scheduler.plugins.device_share import DeviceShare
from koord.scheduler.plugins.dynamic_resources import DynamicResources
from koord.scheduler.plugins.elastic_quota import ElasticQuota
from koord.scheduler.plugins.registry import Factory
from koord.scheduler.plugins.reservation import ReservationPlugin

_QUOTA_GATES = {
    "DisableDefaultQuota": "disable_default_quota",
    "MultiQuotaTree": "multi_quota_tree",
    "ElasticQuotaGuaranteeUsage": "guarantee_usage",
    "ElasticQuotaIgnorePodOverhead": "ignore_overhead",
}
_NO_CLAIMS = "DisableDynamicResourceAllocationInformer"
_BATCH = "EnableInlineBatchSchedule"
_DEVICE_GATES = {"DevicePluginAdaption": "adapts", "ResizePod": "resizes"}
_RESERVATION_GATES = {
    "OmitNodeLabelsForReservation": "omit_node_labels",
    "CleanExpiredReservationAllocated": "clean_owners",
}


def gated(factories: Mapping[str, Factory], gates: Mapping[str, bool]) -> Mapping[str, Factory]:
    """Return the factories with those replaced that a feature gate changes.

    Servers without resource claims would never answer a watch of them; vendors' device plugins read more.
    """
    changed: dict[str, Factory] = {}
    if gates.get(_NO_CLAIMS, False):
        changed[DynamicResources.name] = lambda args, handle: DynamicResources(None)
    quota = {keyword: gates.get(gate, False) for gate, keyword in _QUOTA_GATES.items()}
    if any(quota.values()):
        changed[ElasticQuota.name] = lambda args, handle: ElasticQuota(args, handle, **quota)
    if gates.get(_BATCH, False):
        changed[Coscheduling.name] = lambda args, handle: coscheduling(args, handle, batch=True)
    devices = {keyword: gates.get(gate, False) for gate, keyword in _DEVICE_GATES.items()}
    if any(devices.values()):
        changed[DeviceShare.name] = lambda args, handle: DeviceShare(args, handle, **devices)
    reservation = {keyword: gates.get(gate, False) for gate, keyword in _RESERVATION_GATES.items()}
    if any(reservation.values()):
        changed[ReservationPlugin.name] = lambda args, handle: ReservationPlugin(args, handle, **reservation)
    return {**factories, **changed}


def not_built(config: KubeSchedulerConfiguration) -> list[FieldError]:
    """Return an error for each valid setting that this version does not support: none is ignored silently.

    The shape belongs to StorageCapacityScoring, which is off by default in Kubernetes.
    """
    rule = "must be left out: this version of koord asks no extenders"
    errors = [FieldError("extenders", [e.url_prefix for e in config.extenders], rule)] if config.extenders else []
    rule = "must be left out: scoring by storage capacity (feature gate StorageCapacityScoring) is not built"
    return errors + [
        FieldError(f"profiles[{i}].pluginConfig[{k}].args.shape", entry.args["shape"], rule)
        for i, profile in enumerate(config.profiles)
        for k, entry in enumerate(profile.plugin_config)
        if entry.name == "VolumeBinding" and entry.args.get("shape")
    ]
