"""This module is the catalog of Koordinator's own descheduler plugins: the model of their arguments, defaults
and validation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.config.decode import decode_strict
from koord.api.config.descheduler import low_node_load_args, migration_args, plugin_args
from koord.api.config.descheduler.plugin_args import API_VERSION, DeschedulerPluginArgs
from koord.api.config.field_error import FieldError


class DeschedulerArgsKind(msgspec.Struct, frozen=True):
    model: type[DeschedulerPluginArgs]
    defaulted: Callable[[Any], DeschedulerPluginArgs]
    validate: Callable[[Any], list[FieldError]]


DESCHEDULER_PLUGIN_CATALOG: dict[str, DeschedulerArgsKind] = {
    "MigrationController": DeschedulerArgsKind(
        migration_args.MigrationControllerArgs, migration_args.defaulted, migration_args.validate
    ),
    "LowNodeLoad": DeschedulerArgsKind(
        low_node_load_args.LowNodeLoadArgs, low_node_load_args.defaulted, low_node_load_args.validate
    ),
    "CustomPriority": DeschedulerArgsKind(
        plugin_args.CustomPriorityArgs, plugin_args.defaulted_custom_priority, plugin_args.validate_custom_priority
    ),
    "FragmentationAware": DeschedulerArgsKind(
        plugin_args.FragmentationAwareArgs, plugin_args.defaulted_fragmentation, plugin_args.validate_fragmentation
    ),
    "ScaleDownBinPack": DeschedulerArgsKind(
        plugin_args.ScaleDownBinPackArgs, plugin_args.defaulted_bin_pack, plugin_args.validate_bin_pack
    ),
}

# Kubernetes' own descheduler plugins, whose arguments stay plain here.
UPSTREAM_PLUGINS = (
    "DefaultEvictor",
    "HighNodeUtilization",
    "LowNodeUtilization",
    "PodLifeTime",
    "RemoveFailedPods",
    "RemoveDuplicates",
    "RemovePodsHavingTooManyRestarts",
    "RemovePodsViolatingInterPodAntiAffinity",
    "RemovePodsViolatingNodeAffinity",
    "RemovePodsViolatingNodeTaints",
    "RemovePodsViolatingTopologySpreadConstraint",
)


def typed_args(plugin: str, raw: dict[str, Any] | None) -> DeschedulerPluginArgs | list[FieldError]:
    """Return the defaulted, validated arguments of a plugin in the catalog, or all that is wrong with them."""
    known = DESCHEDULER_PLUGIN_CATALOG[plugin]
    document = raw or {}
    errors = [
        FieldError(
            field, document[field], f"args for plugin {plugin} were not of type {plugin}Args: must be {wanted!r}"
        )
        for field, wanted in (("apiVersion", API_VERSION), ("kind", f"{plugin}Args"))
        if document.get(field, wanted) != wanted
    ]
    given = decode_strict(document, known.model)
    if isinstance(given, list):
        return errors + given
    args = known.defaulted(given)
    return (errors + known.validate(args)) or args
