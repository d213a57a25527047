"""This module plans a dry run: which plugins it asks, by what configuration, and the notes for its reader."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import msgspec

from koord.api.config.descheduler import configuration
from koord.api.config.descheduler.configuration import (
    DeschedulerConfiguration,
    DeschedulerPlugins,
    DeschedulerProfile,
    defaulted,
)
from koord.api.config.plugin_set import PluginConfig, PluginEntry, PluginSet
from koord.descheduler.configuration import DeschedulerSetup, build_setup
from koord.descheduler.plugins.registry import ENTRY_POINT_GROUP, load_registry

PROPOSING_POINTS = ("deschedule", "balance")
IMMEDIATE_ANOMALY_CONDITION = {"timeout": "1m", "consecutiveAbnormalities": 1, "consecutiveNormalities": 1}


class DryRunPlan(msgspec.Struct, frozen=True):
    assembly: DeschedulerSetup
    notes: list[str]


def plan_dry_run(given: DeschedulerConfiguration, *, plugin: str = "", certain: bool = True) -> DryRunPlan | str:
    """Plan a dry run. `plugin` alone is asked, if named: with the arguments that the configuration has for it,
    whether or not it is enabled.
    """
    notes: list[str] = []
    config = defaulted(given)
    if plugin:
        chosen = _limit_to_plugin(config, plugin, notes)
        if isinstance(chosen, str):
            return chosen
        config = chosen
    running = _enabled_plugin_names(config)
    if not running:
        notes.append(
            "The configuration enables no plugin that moves pods. Name one with --plugin, for example LowNodeLoad."
        )
    if configuration.LOW_NODE_LOAD in running:
        if certain:
            config = _without_anomaly_wait(config)
            notes.append(
                "Every full node counts as certain. A running descheduler waits until a node was too full in several "
                "rounds in a row (anomalyCondition); --no-certain shows what a first round would do."
            )
        else:
            notes.append("This is a first round: no node can be known for long enough, unless one mark is enough.")
    made = _assembled(config)
    return made if isinstance(made, str) else DryRunPlan(made, [*notes, *_paused_plugin_notes(made)])


def _assembled(config: DeschedulerConfiguration) -> DeschedulerSetup | str:
    made = build_setup(config, load_registry(entry_points(group=ENTRY_POINT_GROUP)).factories)
    return "; ".join(map(str, made)) if isinstance(made, list) else made


def _enabled_plugin_names(config: DeschedulerConfiguration) -> set[str]:
    return {
        one.name
        for profile in config.profiles
        for point in PROPOSING_POINTS
        for one in getattr(profile.plugins or DeschedulerPlugins(), point).enabled
    }


def _limit_to_plugin(config: DeschedulerConfiguration, plugin: str, notes: list[str]) -> DeschedulerConfiguration | str:
    """Leave out the other plugins that propose; filters and evictors stay."""
    if plugin in _enabled_plugin_names(config):
        return _with_profiles(config, tuple(_profile_with_plugin(profile, plugin) for profile in config.profiles))
    notes.append(f"{plugin} is not enabled in the configuration: this is what it would do if it were.")
    first, *rest = (_profile_with_plugin(profile, plugin) for profile in config.profiles)
    configured = any(one.name == plugin and one.args for one in first.plugin_config)
    if not configured and plugin == configuration.LOW_NODE_LOAD:
        others = tuple(one for one in first.plugin_config if one.name != plugin)
        args = configuration.shipped_low_node_load_args()
        first = msgspec.structs.replace(first, plugin_config=(*others, PluginConfig(name=plugin, args=args)))
        low, high = (
            ", ".join(f"{k} {v}" for k, v in configuration.SHIPPED_LOW_THRESHOLDS.items()),
            ", ".join(f"{name} {percent}" for name, percent in configuration.SHIPPED_HIGH_THRESHOLDS.items()),
        )
        notes.append(f"It has no arguments: thresholds are those that are shipped, {low} % and {high} %.")
    wrong = ""
    for point in PROPOSING_POINTS:
        plugins = msgspec.structs.replace(
            first.plugins or DeschedulerPlugins(), **{point: PluginSet(enabled=(PluginEntry(name=plugin),))}
        )
        tried = _with_profiles(config, (msgspec.structs.replace(first, plugins=plugins), *rest))
        made = _assembled(tried)
        if not isinstance(made, str):
            return tried
        if "does not extend" not in made:
            wrong = wrong or made
    return wrong or f"{plugin} neither deschedules nor balances"


def _profile_with_plugin(profile: DeschedulerProfile, plugin: str) -> DeschedulerProfile:
    given = profile.plugins or DeschedulerPlugins()
    kept = {
        point: PluginSet(enabled=tuple(one for one in getattr(given, point).enabled if one.name == plugin))
        for point in PROPOSING_POINTS
    }
    limited: DeschedulerProfile = msgspec.structs.replace(profile, plugins=msgspec.structs.replace(given, **kept))
    return limited


def _without_anomaly_wait(config: DeschedulerConfiguration) -> DeschedulerConfiguration:
    def sure(profile: DeschedulerProfile) -> DeschedulerProfile:
        entries = tuple(
            msgspec.structs.replace(one, args=_immediate_args(one.args))
            if one.name == configuration.LOW_NODE_LOAD
            else one
            for one in profile.plugin_config
        )
        changed: DeschedulerProfile = msgspec.structs.replace(profile, plugin_config=entries)
        return changed

    return _with_profiles(config, tuple(map(sure, config.profiles)))


def _immediate_args(args: dict[str, Any]) -> dict[str, Any]:
    changed = {**args, "anomalyCondition": IMMEDIATE_ANOMALY_CONDITION}
    if args.get("nodePools"):
        changed["nodePools"] = [{**pool, "anomalyCondition": IMMEDIATE_ANOMALY_CONDITION} for pool in args["nodePools"]]
    return changed


def _with_profiles(
    config: DeschedulerConfiguration, profiles: tuple[DeschedulerProfile, ...]
) -> DeschedulerConfiguration:
    changed: DeschedulerConfiguration = msgspec.structs.replace(config, profiles=profiles)
    return changed


def _paused_plugin_notes(assembly: DeschedulerSetup) -> list[str]:
    running = {one.name for profile in assembly.profiles for one in (*profile.deschedule, *profile.balance)}
    return [
        f"{entry.name} is paused by its arguments and proposes nothing."
        for profile in assembly.config.profiles
        for entry in profile.plugin_config
        if entry.name in running and (entry.args or {}).get("paused")
    ]
