"""This module plans a dry run: which plugins it asks, by what configuration, and the notes for its reader."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import msgspec

from koord.api.config.descheduler import shipped
from koord.api.config.descheduler.configuration import DeschedulerConfiguration, Plugins, Profile, defaulted
from koord.api.config.plugin_set import Plugin, PluginConfig, PluginSet
from koord.descheduler.assembly import Assembly, assemble
from koord.descheduler.plugins.registry import ENTRY_POINTS, registered

POINTS = ("deschedule", "balance")
AT_ONCE = {"timeout": "1m", "consecutiveAbnormalities": 1, "consecutiveNormalities": 1}


class Plan(msgspec.Struct, frozen=True):
    assembly: Assembly
    notes: list[str]


def planned(given: DeschedulerConfiguration, *, plugin: str = "", certain: bool = True) -> Plan | str:
    """Plan a dry run. `plugin` alone is asked, if named: with the arguments that the configuration has for it,
    whether or not it is enabled.
    """
    notes: list[str] = []
    config = defaulted(given)
    if plugin:
        chosen = _only(config, plugin, notes)
        if isinstance(chosen, str):
            return chosen
        config = chosen
    running = _names(config)
    if not running:
        notes.append(
            "The configuration enables no plugin that moves pods. Name one with --plugin, for example LowNodeLoad."
        )
    if shipped.LOW_NODE_LOAD in running:
        if certain:
            config = _certain(config)
            notes.append(
                "Every full node counts as certain. A running descheduler waits until a node was too full in several "
                "rounds in a row (anomalyCondition); --no-certain shows what a first round would do."
            )
        else:
            notes.append("This is a first round: no node can be known for long enough, unless one mark is enough.")
    made = _assembled(config)
    return made if isinstance(made, str) else Plan(made, [*notes, *_paused(made)])


def _assembled(config: DeschedulerConfiguration) -> Assembly | str:
    made = assemble(config, registered(entry_points(group=ENTRY_POINTS)))
    return "; ".join(map(str, made)) if isinstance(made, list) else made


def _names(config: DeschedulerConfiguration) -> set[str]:
    return {
        one.name
        for profile in config.profiles
        for point in POINTS
        for one in getattr(profile.plugins or Plugins(), point).enabled
    }


def _only(config: DeschedulerConfiguration, plugin: str, notes: list[str]) -> DeschedulerConfiguration | str:
    """Leave out the other plugins that propose; filters and evictors stay."""
    if plugin in _names(config):
        return _profiles(config, tuple(_limited(profile, plugin) for profile in config.profiles))
    notes.append(f"{plugin} is not enabled in the configuration: this is what it would do if it were.")
    first, *rest = (_limited(profile, plugin) for profile in config.profiles)
    configured = any(one.name == plugin and one.args for one in first.plugin_config)
    if not configured and plugin == shipped.LOW_NODE_LOAD:
        others = tuple(one for one in first.plugin_config if one.name != plugin)
        args = shipped.low_node_load()
        first = msgspec.structs.replace(first, plugin_config=(*others, PluginConfig(name=plugin, args=args)))
        low, high = ", ".join(f"{k} {v}" for k, v in shipped.LOW.items()), _percents(shipped.HIGH)
        notes.append(f"It has no arguments: thresholds are those that are shipped, {low} % and {high} %.")
    wrong = ""
    for point in POINTS:
        plugins = msgspec.structs.replace(
            first.plugins or Plugins(), **{point: PluginSet(enabled=(Plugin(name=plugin),))}
        )
        tried = _profiles(config, (msgspec.structs.replace(first, plugins=plugins), *rest))
        made = _assembled(tried)
        if not isinstance(made, str):
            return tried
        if "does not extend" not in made:
            wrong = wrong or made
    return wrong or f"{plugin} neither deschedules nor balances"


def _percents(amounts: dict[str, int]) -> str:
    return ", ".join(f"{name} {percent}" for name, percent in amounts.items())


def _limited(profile: Profile, plugin: str) -> Profile:
    given = profile.plugins or Plugins()
    kept = {
        point: PluginSet(enabled=tuple(one for one in getattr(given, point).enabled if one.name == plugin))
        for point in POINTS
    }
    limited: Profile = msgspec.structs.replace(profile, plugins=msgspec.structs.replace(given, **kept))
    return limited


def _certain(config: DeschedulerConfiguration) -> DeschedulerConfiguration:
    def sure(profile: Profile) -> Profile:
        entries = tuple(
            msgspec.structs.replace(one, args=_at_once(one.args)) if one.name == shipped.LOW_NODE_LOAD else one
            for one in profile.plugin_config
        )
        changed: Profile = msgspec.structs.replace(profile, plugin_config=entries)
        return changed

    return _profiles(config, tuple(map(sure, config.profiles)))


def _at_once(args: dict[str, Any]) -> dict[str, Any]:
    changed = {**args, "anomalyCondition": AT_ONCE}
    if args.get("nodePools"):
        changed["nodePools"] = [{**pool, "anomalyCondition": AT_ONCE} for pool in args["nodePools"]]
    return changed


def _profiles(config: DeschedulerConfiguration, profiles: tuple[Profile, ...]) -> DeschedulerConfiguration:
    changed: DeschedulerConfiguration = msgspec.structs.replace(config, profiles=profiles)
    return changed


def _paused(assembly: Assembly) -> list[str]:
    running = {one.name for profile in assembly.profiles for one in (*profile.deschedule, *profile.balance)}
    return [
        f"{entry.name} is paused by its arguments and proposes nothing."
        for profile in assembly.config.profiles
        for entry in profile.plugin_config
        if entry.name in running and (entry.args or {}).get("paused")
    ]
