"""Refuse, or leave out on request, what a configuration names and this program does not have."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.config.field_error import FieldError
from koord.api.config.plugin_set import Plugin, PluginSet
from koord.api.config.scheduler.configuration import (
    DEFAULT_MULTI_POINT,
    DEFAULT_PRE_BIND,
    REMOVED,
    KubeSchedulerConfiguration,
    Plugins,
    Profile,
    defaulted,
)
from koord.scheduler.assembly.point import KNOWN_POINTS, KOORDINATOR_POINTS, POINTS
from koord.scheduler.assembly.roster import named
from koord.scheduler.plugins.registry import REGISTRY, Factory


def missing(profile: Profile, path: str, factories: Mapping[str, Factory]) -> list[FieldError]:
    """Return one error per unknown plugin name, at its first mention."""
    plugins = profile.plugins or Plugins()
    met: set[str] = set()
    errors = []
    # Of two mentions the one at a point is told: Kubernetes looks at multiPoint last.
    for interface, where, held in (
        *((point.interface, point.path, point.set_of(plugins)) for point in POINTS),
        (POINTS[0].interface, "multiPoint", plugins.multi_point),
    ):
        for index, plugin in enumerate(held.enabled):
            if plugin.name in factories or plugin.name in met:
                continue
            met.add(plugin.name)
            rule = f'{interface} "{plugin.name}" does not exist{_why(plugin.name, factories)}'
            errors.append(FieldError(f"{path}.plugins.{where}.enabled[{index}].name", plugin.name, rule))
    return errors


def _why(name: str, factories: Mapping[str, Factory]) -> str:
    if name in KNOWN_POINTS:
        whose = "Koordinator" if name in KOORDINATOR_POINTS else "Kubernetes"
        return f": it is a plugin of {whose} that this version of koord does not have yet"
    if name in REMOVED:
        return ": Kubernetes removed it"
    return f"; known are {', '.join(sorted(factories))}"


def without_unbuilt(
    config: KubeSchedulerConfiguration, factories: Mapping[str, Factory] = REGISTRY
) -> tuple[KubeSchedulerConfiguration, tuple[str, ...]]:
    """Return the configuration without Kubernetes' and Koordinator's plugins that `factories` lacks, and their names.

    Defaults are filled in on the way, since those may name such plugins too. Whoever runs the result has to tell the user
    which names were left out. Other unknown names stay, and are refused like any mistake.
    """
    whole = defaulted(config)
    gone = frozenset(
        name
        for profile in whole.profiles
        for name in named(profile.plugins or Plugins())
        if name in KNOWN_POINTS and name not in factories
    )
    profiles = tuple(
        msgspec.structs.replace(
            profile,
            plugins=_reduced(profile.plugins or Plugins(), gone),
            plugin_config=tuple(entry for entry in profile.plugin_config if entry.name not in gone),
        )
        for profile in whole.profiles
    )
    return msgspec.structs.replace(whole, profiles=profiles), tuple(sorted(gone))


def _reduced(plugins: Plugins, gone: frozenset[str]) -> Plugins:
    """Remove the plugins, and disable defaults by name where they come from, so that they are not filled in again."""
    sets = {field: getattr(plugins, field) for field in Plugins.__struct_fields__}
    kept = {field: _without(held, gone) for field, held in sets.items()}
    kept["multi_point"] = _off(kept["multi_point"], gone & {plugin.name for plugin in DEFAULT_MULTI_POINT.enabled})
    kept["pre_bind"] = _off(kept["pre_bind"], gone & {DEFAULT_PRE_BIND})
    return Plugins(**kept)


def _without(held: PluginSet, gone: frozenset[str]) -> PluginSet:
    return msgspec.structs.replace(held, enabled=tuple(p for p in held.enabled if p.name not in gone))


def _off(held: PluginSet, names: frozenset[str]) -> PluginSet:
    added = tuple(Plugin(name=name) for name in sorted(names) if not held.disables(name))
    return msgspec.structs.replace(held, disabled=(*held.disabled, *added))
