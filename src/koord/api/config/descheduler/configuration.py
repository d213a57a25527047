"""This module holds DeschedulerConfiguration (profiles, their plugins by extension point, and the process around them),
and the one that Koordinator ships: migrations are carried out, and no plugin proposes any yet.
"""

from __future__ import annotations

import ipaddress
from typing import Any

import msgspec

from koord.api.config import component, field_error
from koord.api.config.component import (
    ALL_PLUGINS,
    PluginArgsKind,
    PluginConfig,
    PluginEntry,
    PluginSet,
    enable_plugins,
    merge_plugin_sets,
    validate_plugin_configs,
)
from koord.api.config.descheduler import plugin_args
from koord.api.config.descheduler.plugin_args import API_VERSION, DeschedulerPluginArgs
from koord.api.koordinator.protocol import DESCHEDULER_NAME, NAMESPACE
from koord.api.kubernetes.meta import LabelSelector
from koord.api.model import Model
from koord.api.schema_markers import Duration

KIND = "DeschedulerConfiguration"
DESCHEDULER_PORT = 10251
DESCHEDULER_SECURE_PORT = 10258

DESCHEDULER_PLUGIN_CATALOG: dict[str, PluginArgsKind[Any]] = {
    "MigrationController": PluginArgsKind(
        plugin_args.MigrationControllerArgs, plugin_args.defaulted_migration, plugin_args.validate_migration
    ),
    "LowNodeLoad": PluginArgsKind(plugin_args.LowNodeLoadArgs, plugin_args.defaulted, plugin_args.validate),
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


def typed_args(plugin: str, raw: dict[str, Any] | None) -> DeschedulerPluginArgs | list[field_error.FieldError]:
    """Return the defaulted, validated arguments of a plugin in the catalog, or all that is wrong with them."""
    args: DeschedulerPluginArgs | list[field_error.FieldError]
    args = DESCHEDULER_PLUGIN_CATALOG[plugin].typed(
        plugin, raw, API_VERSION, f"args for plugin {plugin} were not of type {plugin}Args: "
    )
    return args


class DeschedulerPlugins(Model, frozen=True, kw_only=True):
    deschedule: PluginSet = PluginSet()
    balance: PluginSet = PluginSet()
    evict: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()


class DeschedulerProfile(Model, frozen=True, kw_only=True):
    name: str = ""
    plugins: DeschedulerPlugins | None = None
    plugin_config: tuple[PluginConfig, ...] = ()
    node_selector: LabelSelector | None = None


class DeschedulerConfiguration(Model, frozen=True, kw_only=True):
    """DeschedulerConfiguration is the descheduler's configuration file. An interval of 0 runs once and stops."""

    api_version: str = ""
    kind: str = ""
    leader_election: component.LeaderElectionConfiguration = component.LeaderElectionConfiguration()
    client_connection: component.ClientConnectionConfiguration = component.ClientConnectionConfiguration()
    enable_profiling: bool | None = None
    enable_contention_profiling: bool | None = None
    healthz_bind_address: str | None = None
    metrics_bind_address: str | None = None
    descheduling_interval: Duration = ""
    dry_run: bool = False
    node_selector: LabelSelector | None = None
    max_no_of_pods_to_evict_per_node: int | None = None
    max_no_of_pods_to_evict_per_namespace: int | None = None
    max_no_of_pods_to_evict_total: int | None = None
    profiles: tuple[DeschedulerProfile, ...] = ()


DEFAULT_PLUGINS = DeschedulerPlugins(
    evict=enable_plugins("MigrationController"), filter=enable_plugins("MigrationController")
)


def defaulted(given: DeschedulerConfiguration) -> DeschedulerConfiguration:
    profiles = given.profiles or (DeschedulerProfile(),)
    if len(profiles) == 1 and not profiles[0].name:
        profiles = (msgspec.structs.replace(profiles[0], name=DESCHEDULER_NAME),)
    profiling = True if given.enable_profiling is None else given.enable_profiling
    contention = given.enable_contention_profiling
    return msgspec.structs.replace(
        given,
        api_version=API_VERSION,
        kind=KIND,
        leader_election=component.defaulted_election(given.leader_election, DESCHEDULER_NAME, NAMESPACE),
        client_connection=component.defaulted_client(given.client_connection),
        enable_profiling=profiling,
        enable_contention_profiling=profiling if contention is None else contention,
        healthz_bind_address=complete_bind_address(given.healthz_bind_address),
        metrics_bind_address=complete_bind_address(given.metrics_bind_address),
        descheduling_interval=given.descheduling_interval or "0s",
        profiles=tuple(_defaulted_profile(p) for p in profiles),
    )


def complete_bind_address(given: str | None) -> str:
    """Complete an address with all interfaces and the usual port, where the text omits them."""
    if given is None:
        return f"0.0.0.0:{DESCHEDULER_PORT}"
    try:
        address = ipaddress.ip_address(given)
    except ValueError:
        return f"0.0.0.0{given}" if given.startswith(":") else given
    return f"[{given}]:{DESCHEDULER_PORT}" if address.version == 6 else f"{given}:{DESCHEDULER_PORT}"


def _defaulted_profile(profile: DeschedulerProfile) -> DeschedulerProfile:
    """Merge a profile's plugins over the defaults, and add an empty config for our enabled plugins that have none."""
    given = profile.plugins or DeschedulerPlugins()
    plugins = DeschedulerPlugins(
        deschedule=_merged(DEFAULT_PLUGINS.deschedule, given.deschedule),
        balance=_merged(DEFAULT_PLUGINS.balance, given.balance),
        evict=_merged(DEFAULT_PLUGINS.evict, given.evict),
        filter=_merged(DEFAULT_PLUGINS.filter, given.filter),
    )
    configured = {config.name for config in profile.plugin_config}
    points = (plugins.deschedule, plugins.balance, plugins.evict, plugins.filter)
    missing = dict.fromkeys(
        p.name for s in points for p in s.enabled if p.name in DESCHEDULER_PLUGIN_CATALOG and p.name not in configured
    )
    filled = (*profile.plugin_config, *(PluginConfig(name=name) for name in missing))
    return msgspec.structs.replace(profile, plugins=plugins, plugin_config=filled)


def _merged(defaults: PluginSet, custom: PluginSet) -> PluginSet:
    """Merge as the scheduler does; nothing is left to be disabled afterwards."""
    return PluginSet(enabled=merge_plugin_sets(defaults, custom).enabled)


def validate(config: DeschedulerConfiguration) -> list[field_error.FieldError]:
    """Validate a defaulted configuration: arguments of all known plugins, not only the evictor's as upstream."""
    errors = component.validate_election(config.leader_election) + component.validate_client(config.client_connection)
    errors += field_error.duration_errors("deschedulingInterval", config.descheduling_interval)
    errors += field_error.selector_errors("nodeSelector", config.node_selector)
    errors += field_error.range_errors("maxNoOfPodsToEvictPerNode", config.max_no_of_pods_to_evict_per_node, low=0)
    errors += field_error.range_errors(
        "maxNoOfPodsToEvictPerNamespace", config.max_no_of_pods_to_evict_per_namespace, low=0
    )
    errors += field_error.range_errors("maxNoOfPodsToEvictTotal", config.max_no_of_pods_to_evict_total, low=0)
    errors += _address_errors("healthzBindAddress", config.healthz_bind_address)
    errors += _address_errors("metricsBindAddress", config.metrics_bind_address)
    if not config.profiles:
        errors.append(field_error.required_error("profiles"))
    errors += field_error.duplicate_errors("profiles", (profile.name for profile in config.profiles if profile.name))
    for index, profile in enumerate(config.profiles):
        errors += _profile_errors(profile, f"profiles[{index}]")
    return errors


def _profile_errors(profile: DeschedulerProfile, path: str) -> list[field_error.FieldError]:
    errors = [] if profile.name else [field_error.required_error(f"{path}.name")]
    errors += field_error.selector_errors(f"{path}.nodeSelector", profile.node_selector)
    errors += validate_plugin_configs(profile.plugin_config, f"{path}.pluginConfig")
    evictors = [plugin.name for plugin in (profile.plugins or DeschedulerPlugins()).evict.enabled]
    if len(evictors) != 1:
        rule = "only one evict plugin can be enabled" if evictors else "no evict plugin is enabled"
        errors.append(field_error.FieldError(f"{path}.plugins.evict.enabled", evictors, rule))
    for index, config in enumerate(profile.plugin_config):
        if config.name in DESCHEDULER_PLUGIN_CATALOG:
            args = typed_args(config.name, config.args)
            wrong = args if isinstance(args, list) else []
            here = f"{path}.pluginConfig[{index}].args"
            errors += [field_error.FieldError(f"{here}.{e.field}", e.value, e.rule) for e in wrong]
    return errors


def _address_errors(field: str, given: str | None) -> list[field_error.FieldError]:
    if given and not given.startswith(":") and component.parse_bind_address(given) is not None:
        return []
    return [field_error.FieldError(field, given, "must be host:port")]


SHIPPED_INTERVAL = "10s"
LOW_NODE_LOAD, MIGRATION_CONTROLLER = "LowNodeLoad", "MigrationController"
# Below the first a node takes pods, above the second it gives some away: percent of what it really uses.
SHIPPED_LOW_THRESHOLDS, SHIPPED_HIGH_THRESHOLDS = {"cpu": 45, "memory": 55}, {"cpu": 75, "memory": 80}


def shipped_configuration(namespace: str = NAMESPACE) -> DeschedulerConfiguration:
    """Return the configuration as in a file, before defaults. LowNodeLoad has arguments: enabling it is one line."""
    only = PluginSet(enabled=enable_plugins(MIGRATION_CONTROLLER).enabled, disabled=(PluginEntry(name=ALL_PLUGINS),))
    return DeschedulerConfiguration(
        api_version=API_VERSION,
        kind=KIND,
        leader_election=component.LeaderElectionConfiguration(
            leader_elect=True, resource_lock="leases", resource_name=DESCHEDULER_NAME, resource_namespace=namespace
        ),
        descheduling_interval=SHIPPED_INTERVAL,
        profiles=(
            DeschedulerProfile(
                name=DESCHEDULER_NAME,
                plugins=DeschedulerPlugins(evict=only, filter=only),
                plugin_config=(
                    PluginConfig(name=MIGRATION_CONTROLLER, args=_migration(namespace)),
                    PluginConfig(name=LOW_NODE_LOAD, args=shipped_low_node_load_args(namespace)),
                ),
            ),
        ),
    )


def shipped_low_node_load_args(namespace: str = NAMESPACE) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "LowNodeLoadArgs",
        "evictableNamespaces": {"exclude": _system(namespace)},
        "lowThresholds": dict(SHIPPED_LOW_THRESHOLDS),
        "highThresholds": dict(SHIPPED_HIGH_THRESHOLDS),
    }


def _migration(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "MigrationControllerArgs",
        "evictionPolicy": "Eviction",
        "evictQPS": "10",
        "evictBurst": 1,
        "namespaces": {"exclude": _system(namespace)},
    }


def _system(namespace: str) -> list[str]:
    return ["kube-system", namespace]
