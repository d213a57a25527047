"""This module is the catalog of plugins whose arguments have a known shape: their model, defaults and
validation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.config.decode import decode_strict
from koord.api.config.field_error import FieldError
from koord.api.config.scheduler import in_tree_args, koordinator_args
from koord.api.config.scheduler.plugin_args import API_VERSION, SchedulerPluginArgs


def _accept_anything(_: Any) -> list[FieldError]:
    return []


class SchedulerArgsKind(msgspec.Struct, frozen=True):
    model: type[SchedulerPluginArgs]
    defaulted: Callable[[Any], SchedulerPluginArgs]
    validate: Callable[[Any], list[FieldError]] = _accept_anything


SCHEDULER_PLUGIN_CATALOG: dict[str, SchedulerArgsKind] = {
    "NodeResourcesFit": SchedulerArgsKind(
        in_tree_args.NodeResourcesFitArgs, in_tree_args.defaulted_fit, in_tree_args.validate_fit
    ),
    "NodeResourcesBalancedAllocation": SchedulerArgsKind(
        in_tree_args.NodeResourcesBalancedAllocationArgs,
        in_tree_args.defaulted_balanced,
        in_tree_args.validate_balanced,
    ),
    "InterPodAffinity": SchedulerArgsKind(
        in_tree_args.InterPodAffinityArgs,
        in_tree_args.defaulted_inter_pod_affinity,
        in_tree_args.validate_inter_pod_affinity,
    ),
    "PodTopologySpread": SchedulerArgsKind(
        in_tree_args.PodTopologySpreadArgs, in_tree_args.defaulted_spread, in_tree_args.validate_spread
    ),
    "DefaultPreemption": SchedulerArgsKind(
        in_tree_args.DefaultPreemptionArgs, in_tree_args.defaulted_preemption, in_tree_args.validate_preemption
    ),
    "NodeAffinity": SchedulerArgsKind(in_tree_args.NodeAffinityArgs, in_tree_args.defaulted_node_affinity),
    "VolumeBinding": SchedulerArgsKind(
        in_tree_args.VolumeBindingArgs, in_tree_args.defaulted_volume_binding, in_tree_args.validate_volume_binding
    ),
    "DynamicResources": SchedulerArgsKind(
        in_tree_args.DynamicResourcesArgs,
        in_tree_args.defaulted_dynamic_resources,
        in_tree_args.validate_dynamic_resources,
    ),
    "LoadAwareScheduling": SchedulerArgsKind(
        koordinator_args.LoadAwareSchedulingArgs,
        koordinator_args.defaulted_load_aware,
        koordinator_args.validate_load_aware,
    ),
    "NodeNUMAResource": SchedulerArgsKind(
        koordinator_args.NodeNUMAResourceArgs, koordinator_args.defaulted_numa, koordinator_args.validate_numa
    ),
    "Reservation": SchedulerArgsKind(
        koordinator_args.ReservationArgs, koordinator_args.defaulted_reservation, koordinator_args.validate_reservation
    ),
    "ElasticQuota": SchedulerArgsKind(
        koordinator_args.ElasticQuotaArgs,
        koordinator_args.defaulted_elastic_quota,
        koordinator_args.validate_elastic_quota,
    ),
    "Coscheduling": SchedulerArgsKind(
        koordinator_args.CoschedulingArgs,
        koordinator_args.defaulted_coscheduling,
        koordinator_args.validate_coscheduling,
    ),
    "DeviceShare": SchedulerArgsKind(
        koordinator_args.DeviceShareArgs,
        koordinator_args.defaulted_device_share,
        koordinator_args.validate_device_share,
    ),
    "NodeResourcesFitPlus": SchedulerArgsKind(
        koordinator_args.NodeResourcesFitPlusArgs, koordinator_args.defaulted_fit_plus
    ),
    "ScarceResourceAvoidance": SchedulerArgsKind(
        koordinator_args.ScarceResourceAvoidanceArgs, koordinator_args.defaulted_scarce_resource
    ),
    "SchedulingHint": SchedulerArgsKind(
        koordinator_args.SchedulingHintArgs,
        koordinator_args.defaulted_scheduling_hint,
        koordinator_args.validate_scheduling_hint,
    ),
}


def typed_args(plugin: str, raw: dict[str, Any] | None) -> SchedulerPluginArgs | list[FieldError]:
    """Return the defaulted, validated arguments of a plugin in the catalog, or all that is wrong with them."""
    known = SCHEDULER_PLUGIN_CATALOG[plugin]
    document = raw or {}
    errors = _type_header_errors(plugin, document)
    given = decode_strict(document, known.model)
    if isinstance(given, list):
        return errors + given
    args = known.defaulted(given)
    errors += known.validate(args)
    return errors or args


def _type_header_errors(plugin: str, document: dict[str, Any]) -> list[FieldError]:
    errors = []
    for field, wanted in (("apiVersion", API_VERSION), ("kind", f"{plugin}Args")):
        stated = document.get(field, wanted)
        if stated != wanted:
            errors.append(FieldError(field, stated, f"must be {wanted!r}"))
    return errors
