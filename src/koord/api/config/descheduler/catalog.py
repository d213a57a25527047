"""This module is the catalog of Koordinator's own descheduler plugins: the model of their arguments, defaults
and validation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.config.descheduler import bin_pack, custom_priority, fragmentation, low_node_load, migration
from koord.api.config.descheduler.args import API_VERSION, PluginArgs
from koord.api.config.document import load
from koord.api.config.field_error import FieldError


class ArgsKind(msgspec.Struct, frozen=True):
    model: type[PluginArgs]
    defaulted: Callable[[Any], PluginArgs]
    validate: Callable[[Any], list[FieldError]]


CATALOG: dict[str, ArgsKind] = {
    "MigrationController": ArgsKind(migration.MigrationControllerArgs, migration.defaulted, migration.validate),
    "LowNodeLoad": ArgsKind(low_node_load.LowNodeLoadArgs, low_node_load.defaulted, low_node_load.validate),
    "CustomPriority": ArgsKind(custom_priority.CustomPriorityArgs, custom_priority.defaulted, custom_priority.validate),
    "FragmentationAware": ArgsKind(
        fragmentation.FragmentationAwareArgs, fragmentation.defaulted, fragmentation.validate
    ),
    "ScaleDownBinPack": ArgsKind(bin_pack.ScaleDownBinPackArgs, bin_pack.defaulted, bin_pack.validate),
}

# Kubernetes' own descheduler plugins, whose arguments stay plain here.
IMPORTED = (
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


def typed_args(plugin: str, raw: dict[str, Any] | None) -> PluginArgs | list[FieldError]:
    """Return the defaulted, validated arguments of a plugin in the catalog, or all that is wrong with them."""
    known = CATALOG[plugin]
    document = raw or {}
    errors = [
        FieldError(
            field, document[field], f"args for plugin {plugin} were not of type {plugin}Args: must be {wanted!r}"
        )
        for field, wanted in (("apiVersion", API_VERSION), ("kind", f"{plugin}Args"))
        if document.get(field, wanted) != wanted
    ]
    given = load(document, known.model)
    if isinstance(given, list):
        return errors + given
    args = known.defaulted(given)
    return (errors + known.validate(args)) or args
