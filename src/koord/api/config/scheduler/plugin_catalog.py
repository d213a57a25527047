"""This module is the catalog of plugins whose arguments have a known shape: their model, defaults and validation."""

from __future__ import annotations

from typing import Any

from koord.api.config.field_error import FieldError
from koord.api.config.plugin_set import PluginArgsKind
from koord.api.config.scheduler import in_tree_args, koordinator_args
from koord.api.config.scheduler.in_tree_args import API_VERSION, SchedulerPluginArgs

SCHEDULER_PLUGIN_CATALOG: dict[str, PluginArgsKind[Any]] = {
    "NodeResourcesFit": PluginArgsKind(
        in_tree_args.NodeResourcesFitArgs, in_tree_args.defaulted_fit, in_tree_args.validate_fit
    ),
    "NodeResourcesBalancedAllocation": PluginArgsKind(
        in_tree_args.NodeResourcesBalancedAllocationArgs,
        in_tree_args.defaulted_balanced,
        in_tree_args.validate_balanced,
    ),
    "InterPodAffinity": PluginArgsKind(
        in_tree_args.InterPodAffinityArgs,
        in_tree_args.defaulted_inter_pod_affinity,
        in_tree_args.validate_inter_pod_affinity,
    ),
    "PodTopologySpread": PluginArgsKind(
        in_tree_args.PodTopologySpreadArgs, in_tree_args.defaulted_spread, in_tree_args.validate_spread
    ),
    "DefaultPreemption": PluginArgsKind(
        in_tree_args.DefaultPreemptionArgs, in_tree_args.defaulted_preemption, in_tree_args.validate_preemption
    ),
    "NodeAffinity": PluginArgsKind(in_tree_args.NodeAffinityArgs),
    "VolumeBinding": PluginArgsKind(
        in_tree_args.VolumeBindingArgs, in_tree_args.defaulted_volume_binding, in_tree_args.validate_volume_binding
    ),
    "DynamicResources": PluginArgsKind(
        in_tree_args.DynamicResourcesArgs,
        in_tree_args.defaulted_dynamic_resources,
        in_tree_args.validate_dynamic_resources,
    ),
    "LoadAwareScheduling": PluginArgsKind(
        koordinator_args.LoadAwareSchedulingArgs,
        koordinator_args.defaulted_load_aware,
        koordinator_args.validate_load_aware,
    ),
    "NodeNUMAResource": PluginArgsKind(
        koordinator_args.NodeNUMAResourceArgs, koordinator_args.defaulted_numa, koordinator_args.validate_numa
    ),
    "Reservation": PluginArgsKind(
        koordinator_args.ReservationArgs, koordinator_args.defaulted_reservation, koordinator_args.validate_reservation
    ),
    "ElasticQuota": PluginArgsKind(
        koordinator_args.ElasticQuotaArgs,
        koordinator_args.defaulted_elastic_quota,
        koordinator_args.validate_elastic_quota,
    ),
    "Coscheduling": PluginArgsKind(
        koordinator_args.CoschedulingArgs,
        koordinator_args.defaulted_coscheduling,
        koordinator_args.validate_coscheduling,
    ),
    "DeviceShare": PluginArgsKind(
        koordinator_args.DeviceShareArgs,
        koordinator_args.defaulted_device_share,
        koordinator_args.validate_device_share,
    ),
    "NodeResourcesFitPlus": PluginArgsKind(koordinator_args.NodeResourcesFitPlusArgs),
    "ScarceResourceAvoidance": PluginArgsKind(koordinator_args.ScarceResourceAvoidanceArgs),
    "SchedulingHint": PluginArgsKind(
        koordinator_args.SchedulingHintArgs,
        koordinator_args.defaulted_scheduling_hint,
        koordinator_args.validate_scheduling_hint,
    ),
}


def typed_args(plugin: str, raw: dict[str, Any] | None) -> SchedulerPluginArgs | list[FieldError]:
    """Return the defaulted, validated arguments of a plugin in the catalog, or all that is wrong with them."""
    args: SchedulerPluginArgs | list[FieldError]
    args = SCHEDULER_PLUGIN_CATALOG[plugin].typed(plugin, raw, API_VERSION)
    return args
