"""Refuse, or leave out on request, what a configuration names and this program does not have."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.config.field_error import FieldError
from koord.api.config.plugin_set import PluginEntry, PluginSet
from koord.api.config.scheduler import configuration
from koord.api.koordinator.protocol import SCHEDULER
from koord.scheduler.configuration import plugin_selection
from koord.scheduler.framework.extension_points import EXTENSION_POINTS
from koord.scheduler.plugins.registry import REGISTRY, PluginFactory

_DEFAULT_PARALLELISM = 16
_OWN_PLUGINS = plugin_selection.KOORDINATOR_POINTS.keys() - {configuration.DEFAULT_PRE_BIND}  # which every profile gets


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
        *((point.interface, point.path, plugin_selection.plugin_set_at(point, plugins)) for point in EXTENSION_POINTS),
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
        and not _OWN_PLUGINS
        & plugin_selection.enabled_plugins(profile.plugins or configuration.SchedulerPlugins()).keys()
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
    if name in plugin_selection.KNOWN_POINTS:
        whose = "Koordinator" if name in plugin_selection.KOORDINATOR_POINTS else "Kubernetes"
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
        for name in plugin_selection.enabled_plugins(profile.plugins or configuration.SchedulerPlugins())
        if name in plugin_selection.KNOWN_POINTS and name not in factories
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
