"""This module is the catalog of Koordinator's own descheduler plugins: model, defaults and validation."""

from __future__ import annotations

from typing import Any

from koord.api.config.descheduler import low_node_load_args, migration_args, plugin_args
from koord.api.config.descheduler.plugin_args import API_VERSION, DeschedulerPluginArgs
from koord.api.config.field_error import FieldError
from koord.api.config.plugin_set import PluginArgsKind

DESCHEDULER_PLUGIN_CATALOG: dict[str, PluginArgsKind[Any]] = {
    "MigrationController": PluginArgsKind(
        migration_args.MigrationControllerArgs, migration_args.defaulted, migration_args.validate
    ),
    "LowNodeLoad": PluginArgsKind(
        low_node_load_args.LowNodeLoadArgs, low_node_load_args.defaulted, low_node_load_args.validate
    ),
    "CustomPriority": PluginArgsKind(
        plugin_args.CustomPriorityArgs, plugin_args.defaulted_custom_priority, plugin_args.validate_custom_priority
    ),
    "FragmentationAware": PluginArgsKind(
        plugin_args.FragmentationAwareArgs, plugin_args.defaulted_fragmentation, plugin_args.validate_fragmentation
    ),
    "ScaleDownBinPack": PluginArgsKind(
        plugin_args.ScaleDownBinPackArgs, plugin_args.defaulted_bin_pack, plugin_args.validate_bin_pack
    ),
}


def typed_args(plugin: str, raw: dict[str, Any] | None) -> DeschedulerPluginArgs | list[FieldError]:
    """Return the defaulted, validated arguments of a plugin in the catalog, or all that is wrong with them."""
    args: DeschedulerPluginArgs | list[FieldError]
    args = DESCHEDULER_PLUGIN_CATALOG[plugin].typed(
        plugin, raw, API_VERSION, f"args for plugin {plugin} were not of type {plugin}Args: "
    )
    return args
