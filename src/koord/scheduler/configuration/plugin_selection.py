"""Select the plugins of one profile at each extension point, with order, weight and arguments, or say what is wrong.

The points that files may enable each known plugin at are listed here.

What a configuration names and this program does not have is refused, or left out on request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koord.api.config.component import PluginConfig, PluginEntry, PluginSet, expand_multi_point
from koord.api.config.field_error import FieldError
from koord.api.config.scheduler import configuration
from koord.api.config.scheduler.configuration import (
    SCHEDULER_PLUGIN_CATALOG,
    KubeSchedulerProfile,
    SchedulerPlugins,
    typed_args,
)
from koord.api.koordinator.protocol import SCHEDULER
from koord.scheduler.framework.extension_points import EXTENSION_POINTS, ExtensionPoint, overrides
from koord.scheduler.framework.plugin import MAX_SCORE, Plugin
from koord.scheduler.plugins.registry import REGISTRY, PluginFactory

# Where files may enable these plugins, because Kubernetes 1.35 and Koordinator have them there. Ours may need no
# method at such a point (there is nothing to prepare, say): then enabling it there is right and calls nothing.
KUBERNETES_POINTS: Mapping[str, tuple[str, ...]] = {
    "SchedulingGates": ("pre_enqueue",),
    "PrioritySort": ("queue_sort",),
    "NodeUnschedulable": ("filter",),
    "NodeName": ("filter",),
    "TaintToleration": ("filter", "pre_score", "score"),
    "NodeAffinity": ("pre_filter", "filter", "pre_score", "score"),
    "NodePorts": ("pre_filter", "filter"),
    "NodeResourcesFit": ("pre_filter", "filter", "pre_score", "score"),
    "VolumeRestrictions": ("pre_filter", "filter"),
    "NodeVolumeLimits": ("pre_filter", "filter"),
    "VolumeBinding": ("pre_filter", "filter", "reserve", "pre_bind", "pre_score", "score"),
    "VolumeZone": ("pre_filter", "filter"),
    "PodTopologySpread": ("pre_filter", "filter", "pre_score", "score"),
    "InterPodAffinity": ("pre_filter", "filter", "pre_score", "score"),
    "DynamicResources": ("pre_enqueue", "pre_filter", "filter", "post_filter", "reserve", "pre_bind", "score"),
    "DefaultPreemption": ("post_filter", "pre_enqueue"),
    "NodeResourcesBalancedAllocation": ("pre_score", "score"),
    "ImageLocality": ("score",),
    "DefaultBinder": ("bind",),
}
KOORDINATOR_POINTS: Mapping[str, tuple[str, ...]] = {
    "LoadAwareScheduling": ("pre_filter", "filter", "score", "reserve"),
    "NodeNUMAResource": ("pre_filter", "filter", "pre_score", "score", "reserve", "pre_bind"),
    "DeviceShare": ("pre_filter", "filter", "pre_score", "score", "reserve", "pre_bind"),
    "Reservation": ("pre_filter", "filter", "post_filter", "pre_score", "score", "reserve", "pre_bind", "bind"),
    "Coscheduling": (
        *("pre_enqueue", "pre_filter", "post_filter", "pre_score", "score", "reserve", "permit", "pre_bind"),
        "post_bind",
    ),
    "ElasticQuota": ("pre_filter", "post_filter", "reserve"),
    "DefaultPreBind": ("pre_bind",),
    "NodeResourcesFitPlus": ("pre_score", "score"),
    "ScarceResourceAvoidance": ("pre_score", "score"),
    "SchedulingHint": ("pre_filter",),
}
KNOWN_POINTS: Mapping[str, tuple[str, ...]] = {**KUBERNETES_POINTS, **KOORDINATOR_POINTS}


def plugin_set_at(point: ExtensionPoint, plugins: SchedulerPlugins) -> PluginSet:
    found: PluginSet = getattr(plugins, point.name)
    return found


def may_enable_at(point: ExtensionPoint, plugin: Plugin) -> bool:
    """Return whether files may enable the plugin at the point: it takes part there, or is known to."""
    return any(overrides(plugin, m) for m in point.methods) or point.name in KNOWN_POINTS.get(plugin.name, ())


def plugin_config_of(profile: KubeSchedulerProfile, name: str) -> PluginConfig | None:
    return next((entry for entry in profile.plugin_config if entry.name == name), None)


def plugin_args(profile: KubeSchedulerProfile, name: str) -> Any:
    """Return a plugin's arguments, typed and complete where their type is known; else as in the file, None for none."""
    entry = plugin_config_of(profile, name)
    if name not in SCHEDULER_PLUGIN_CATALOG:
        return entry.args if entry is not None and entry.args else None
    args = typed_args(name, entry.args if entry is not None else None)
    if isinstance(args, list):
        raise ValueError("; ".join(map(str, args)))
    return args


_INT32_LIMIT = 1 << 31
_MAX_TOTAL_SCORE = (1 << 63) - 1  # what the sum of all weighted scores of a node may come to


class PluginSelection(msgspec.Struct, frozen=True):
    """Hold the plugin names by extension point, and the weights. Not every plugin of a point is called there."""

    points: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, int]


def enabled_plugins(plugins: SchedulerPlugins) -> dict[str, str]:
    """Return every plugin that is enabled somewhere, with the path of its first mention."""
    found: dict[str, str] = {}
    for path, held in _plugin_sets(plugins):
        for index, plugin in enumerate(held.enabled):
            found.setdefault(plugin.name, f"{path}.enabled[{index}].name")
    return found


def select_plugins(
    profile: KubeSchedulerProfile, path: str, made: Mapping[str, Plugin]
) -> PluginSelection | list[FieldError]:
    """Select the plugins of a profile, or return its errors; `made` has every plugin that the profile enables."""
    plugins = profile.plugins or SchedulerPlugins()
    here = f"{path}.plugins"
    errors = _enabled_twice(plugins, here) + _misplaced(plugins, here, made) + _weights_out_of_range(plugins, here)
    if errors:
        return errors
    points = {point.name: _plugins_at(point, plugins, made) for point in EXTENSION_POINTS}
    name = profile.scheduler_name
    if len(points["queue_sort"]) != 1:
        rule = f'only one queue sort plugin required for profile with scheduler name "{name}"'
        found = list(points["queue_sort"])
        errors.append(FieldError(f"{here}.queueSort", found, f"{rule}, but got {len(found)}"))
    if not points["bind"]:
        rule = f'at least one bind plugin is needed for profile with scheduler name "{name}", such as DefaultBinder'
        errors.append(FieldError(f"{here}.bind", [], rule))
    weights = _weights(plugins, made)
    if _overflows(list(weights.values())):
        rule = "total score of Score plugins could overflow: weights must be positive and their sum within bounds"
        errors.append(FieldError(f"{here}.score", weights, rule))
    return errors or PluginSelection(points, weights)


def _plugin_sets(plugins: SchedulerPlugins) -> list[tuple[str, PluginSet]]:
    return [
        ("multiPoint", plugins.multi_point),
        *((point.path, plugin_set_at(point, plugins)) for point in EXTENSION_POINTS),
    ]


def _plugins_at(point: ExtensionPoint, plugins: SchedulerPlugins, made: Mapping[str, Plugin]) -> tuple[str, ...]:
    found = expand_multi_point(
        plugins.multi_point, plugin_set_at(point, plugins), lambda name: may_enable_at(point, made[name])
    )
    return tuple(plugin.name for plugin in found)


def _enabled_twice(plugins: SchedulerPlugins, path: str) -> list[FieldError]:
    errors = []
    for where, held in _plugin_sets(plugins):
        seen: set[str] = set()
        for index, plugin in enumerate(held.enabled):
            if plugin.name in seen:
                rule = "is enabled twice: a plugin can be enabled once at a point"
                errors.append(FieldError(f"{path}.{where}.enabled[{index}].name", plugin.name, rule))
            seen.add(plugin.name)
    return errors


def _misplaced(plugins: SchedulerPlugins, path: str, made: Mapping[str, Plugin]) -> list[FieldError]:
    errors = []
    for point in EXTENSION_POINTS:
        for index, plugin in enumerate(plugin_set_at(point, plugins).enabled):
            if not may_enable_at(point, made[plugin.name]):
                has = ", ".join(p.path for p in EXTENSION_POINTS if may_enable_at(p, made[plugin.name])) or "none"
                rule = f'plugin "{plugin.name}" does not extend {point.interface} plugin; its points are: {has}'
                errors.append(FieldError(f"{path}.{point.path}.enabled[{index}].name", plugin.name, rule))
    return errors


def _weights_out_of_range(plugins: SchedulerPlugins, path: str) -> list[FieldError]:
    return [
        FieldError(
            f"{path}.{where}.enabled[{index}].weight",
            plugin.weight,
            f"must be from {-_INT32_LIMIT} to {_INT32_LIMIT - 1}",
        )
        for where, held in _plugin_sets(plugins)
        for index, plugin in enumerate(held.enabled)
        if plugin.weight is not None and not -_INT32_LIMIT <= plugin.weight < _INT32_LIMIT
    ]


def _weights(plugins: SchedulerPlugins, made: Mapping[str, Plugin]) -> dict[str, int]:
    """Return the weights: the one at score wins over multiPoint's, even when left out there; none and 0 mean 1."""
    (score,) = (point for point in EXTENSION_POINTS if point.name == "score")
    weights: dict[str, int] = {}
    for plugin in (*plugins.score.enabled, *plugins.multi_point.enabled):
        if may_enable_at(score, made[plugin.name]):
            weights.setdefault(plugin.name, plugin.weight or 1)
    return weights


def _overflows(weights: list[int]) -> bool:
    """Return whether Kubernetes would refuse the weights.

    It adds up in 64 bits and refuses once the sum so far is negative or too large for the next weight.
    """
    total = 0
    for weight in weights:
        if total < 0 or weight * MAX_SCORE > _MAX_TOTAL_SCORE - total:
            return True
        total += weight * MAX_SCORE
    return False


_DEFAULT_PARALLELISM = 16
_OWN_PLUGINS = KOORDINATOR_POINTS.keys() - {configuration.DEFAULT_PRE_BIND}  # which every profile gets


def unsupported_settings(
    config: configuration.KubeSchedulerConfiguration, *, scores_storage_capacity: bool = False
) -> list[FieldError]:
    """Return an error for each setting that needs a feature gate which is off: none is ignored silently."""
    if scores_storage_capacity:
        return []
    rule = "must be left out, or the feature gate StorageCapacityScoring switched on"
    return [
        FieldError(f"profiles[{i}].pluginConfig[{k}].args.shape", entry.args["shape"], rule)
        for i, profile in enumerate(config.profiles)
        for k, entry in enumerate(profile.plugin_config)
        if entry.name == "VolumeBinding" and entry.args.get("shape")
    ]


def unknown_plugins(
    profile: configuration.KubeSchedulerProfile, path: str, factories: Mapping[str, PluginFactory]
) -> list[FieldError]:
    """Return one error per unknown plugin name, at its first mention."""
    plugins = profile.plugins or configuration.SchedulerPlugins()
    met: set[str] = set()
    errors = []
    # Of two mentions the one at a point is told: Kubernetes looks at multiPoint last.
    for interface, where, held in (
        *((point.interface, point.path, plugin_set_at(point, plugins)) for point in EXTENSION_POINTS),
        (EXTENSION_POINTS[0].interface, "multiPoint", plugins.multi_point),
    ):
        for index, plugin in enumerate(held.enabled):
            if plugin.name in factories or plugin.name in met:
                continue
            met.add(plugin.name)
            rule = f'{interface} "{plugin.name}" does not exist{_why_unknown(plugin.name, factories)}'
            errors.append(FieldError(f"{path}.plugins.{where}.enabled[{index}].name", plugin.name, rule))
    return errors


def profiles_without_koordinator(config: configuration.KubeSchedulerConfiguration) -> list[str]:
    """Return a sentence for each profile that has Koordinator's name and none of its plugins."""
    return [
        f"profile {SCHEDULER} enables none of Koordinator's plugins: a profile starts from Kubernetes' defaults; "
        "koord-scheduler --write-config-to=FILE without --config writes one that has them"
        for profile in config.profiles
        if profile.scheduler_name == SCHEDULER
        and not _OWN_PLUGINS & enabled_plugins(profile.plugins or configuration.SchedulerPlugins()).keys()
    ]


def settings_without_effect(config: configuration.KubeSchedulerConfiguration) -> list[str]:
    """Return a sentence for each setting that is stated and changes nothing, because there is nothing for it to do."""
    said = []
    stated = [config.percentage_of_nodes_to_score, *(p.percentage_of_nodes_to_score for p in config.profiles)]
    if any(percent not in (None, 0, 100) for percent in stated):
        said.append(
            "percentageOfNodesToScore changes nothing: all nodes are always filtered and scored, as equal pods share "
            "the results"
        )
    if config.parallelism not in (None, _DEFAULT_PARALLELISM):
        said.append("parallelism changes nothing: nodes are evaluated in columns by one thread")
    return said


def _why_unknown(name: str, factories: Mapping[str, PluginFactory]) -> str:
    if name in KNOWN_POINTS:
        whose = "Koordinator" if name in KOORDINATOR_POINTS else "Kubernetes"
        return f": it is a plugin of {whose} that this version of koord does not have yet"
    if name in configuration.REMOVED_PLUGINS:
        return ": Kubernetes removed it"
    return f"; known are {', '.join(sorted(factories))}"


def without_unsupported_plugins(
    config: configuration.KubeSchedulerConfiguration, factories: Mapping[str, PluginFactory] = REGISTRY
) -> tuple[configuration.KubeSchedulerConfiguration, tuple[str, ...]]:
    """Return the configuration without Kubernetes' and Koordinator's plugins that `factories` lacks, and their names.

    Defaults are filled in on the way, since those may name such plugins too. Whoever runs the result has to tell the
    user which names were left out. Other unknown names stay, and are refused like any mistake.
    """
    whole = configuration.defaulted(config)
    left_out = frozenset(
        name
        for profile in whole.profiles
        for name in enabled_plugins(profile.plugins or configuration.SchedulerPlugins())
        if name in KNOWN_POINTS and name not in factories
    )
    profiles = tuple(
        msgspec.structs.replace(
            profile,
            plugins=_reduced(profile.plugins or configuration.SchedulerPlugins(), left_out),
            plugin_config=tuple(entry for entry in profile.plugin_config if entry.name not in left_out),
        )
        for profile in whole.profiles
    )
    return msgspec.structs.replace(whole, profiles=profiles), tuple(sorted(left_out))


def _reduced(plugins: configuration.SchedulerPlugins, left_out: frozenset[str]) -> configuration.SchedulerPlugins:
    """Remove the plugins, and disable defaults by name where they come from, so that they are not filled in again."""
    sets = {field: getattr(plugins, field) for field in configuration.SchedulerPlugins.__struct_fields__}
    kept = {field: _without(held, left_out) for field, held in sets.items()}
    kept["multi_point"] = _disabling(
        kept["multi_point"], left_out & {plugin.name for plugin in configuration.DEFAULT_MULTI_POINT.enabled}
    )
    kept["pre_bind"] = _disabling(kept["pre_bind"], left_out & {configuration.DEFAULT_PRE_BIND})
    return configuration.SchedulerPlugins(**kept)


def _without(held: PluginSet, left_out: frozenset[str]) -> PluginSet:
    return msgspec.structs.replace(held, enabled=tuple(p for p in held.enabled if p.name not in left_out))


def _disabling(held: PluginSet, names: frozenset[str]) -> PluginSet:
    added = tuple(PluginEntry(name=name) for name in sorted(names) if not held.disables(name))
    return msgspec.structs.replace(held, disabled=(*held.disabled, *added))
