"""This module is the catalog of plugins whose arguments have a known shape: their model, defaults and
validation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.config.document import load
from koord.api.config.field_error import FieldError
from koord.api.config.scheduler import (
    coscheduling,
    device_share,
    elastic_quota,
    fit_plus,
    in_tree,
    load_aware,
    numa,
    reservation,
    scarce_resource,
    scheduling_hint,
)
from koord.api.config.scheduler.args import API_VERSION, PluginArgs


def _any(_: Any) -> list[FieldError]:
    return []


class ArgsKind(msgspec.Struct, frozen=True):
    model: type[PluginArgs]
    defaulted: Callable[[Any], PluginArgs]
    validate: Callable[[Any], list[FieldError]] = _any


CATALOG: dict[str, ArgsKind] = {
    "NodeResourcesFit": ArgsKind(in_tree.NodeResourcesFitArgs, in_tree.defaulted_fit, in_tree.validate_fit),
    "NodeResourcesBalancedAllocation": ArgsKind(
        in_tree.NodeResourcesBalancedAllocationArgs, in_tree.defaulted_balanced, in_tree.validate_balanced
    ),
    "InterPodAffinity": ArgsKind(
        in_tree.InterPodAffinityArgs, in_tree.defaulted_inter_pod_affinity, in_tree.validate_inter_pod_affinity
    ),
    "PodTopologySpread": ArgsKind(in_tree.PodTopologySpreadArgs, in_tree.defaulted_spread, in_tree.validate_spread),
    "DefaultPreemption": ArgsKind(
        in_tree.DefaultPreemptionArgs, in_tree.defaulted_preemption, in_tree.validate_preemption
    ),
    "NodeAffinity": ArgsKind(in_tree.NodeAffinityArgs, in_tree.defaulted_node_affinity),
    "VolumeBinding": ArgsKind(
        in_tree.VolumeBindingArgs, in_tree.defaulted_volume_binding, in_tree.validate_volume_binding
    ),
    "DynamicResources": ArgsKind(
        in_tree.DynamicResourcesArgs, in_tree.defaulted_dynamic_resources, in_tree.validate_dynamic_resources
    ),
    "LoadAwareScheduling": ArgsKind(load_aware.LoadAwareSchedulingArgs, load_aware.defaulted, load_aware.validate),
    "NodeNUMAResource": ArgsKind(numa.NodeNUMAResourceArgs, numa.defaulted, numa.validate),
    "Reservation": ArgsKind(reservation.ReservationArgs, reservation.defaulted, reservation.validate),
    "ElasticQuota": ArgsKind(elastic_quota.ElasticQuotaArgs, elastic_quota.defaulted, elastic_quota.validate),
    "Coscheduling": ArgsKind(coscheduling.CoschedulingArgs, coscheduling.defaulted, coscheduling.validate),
    "DeviceShare": ArgsKind(device_share.DeviceShareArgs, device_share.defaulted, device_share.validate),
    "NodeResourcesFitPlus": ArgsKind(fit_plus.NodeResourcesFitPlusArgs, fit_plus.defaulted),
    "ScarceResourceAvoidance": ArgsKind(scarce_resource.ScarceResourceAvoidanceArgs, scarce_resource.defaulted),
    "SchedulingHint": ArgsKind(scheduling_hint.SchedulingHintArgs, scheduling_hint.defaulted, scheduling_hint.validate),
}


def typed_args(plugin: str, raw: dict[str, Any] | None) -> PluginArgs | list[FieldError]:
    """Return the defaulted, validated arguments of a plugin in the catalog, or all that is wrong with them."""
    known = CATALOG[plugin]
    document = raw or {}
    errors = _header(plugin, document)
    given = load(document, known.model)
    if isinstance(given, list):
        return errors + given
    args = known.defaulted(given)
    errors += known.validate(args)
    return errors or args


def _header(plugin: str, document: dict[str, Any]) -> list[FieldError]:
    errors = []
    for field, wanted in (("apiVersion", API_VERSION), ("kind", f"{plugin}Args")):
        stated = document.get(field, wanted)
        if stated != wanted:
            errors.append(FieldError(field, stated, f"must be {wanted!r}"))
    return errors
