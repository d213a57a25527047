"""This module is the configuration that Koordinator ships: migrations are carried out, and no plugin proposes
any yet.
"""

from __future__ import annotations

from typing import Any

from koord.api.config.component import LeaderElectionConfiguration
from koord.api.config.descheduler.configuration import (
    KIND,
    DeschedulerConfiguration,
    DeschedulerPlugins,
    DeschedulerProfile,
)
from koord.api.config.descheduler.plugin_args import API_VERSION
from koord.api.config.plugin_set import ALL_PLUGINS, PluginConfig, PluginEntry, PluginSet, enable_plugins
from koord.api.koordinator.protocol import DESCHEDULER_NAME, NAMESPACE

INTERVAL = "10s"
LOW_NODE_LOAD, MIGRATION_CONTROLLER = "LowNodeLoad", "MigrationController"
# Below the first a node takes pods, above the second it gives some away: percent of what it really uses.
LOW, HIGH = {"cpu": 45, "memory": 55}, {"cpu": 75, "memory": 80}


def configuration(namespace: str = NAMESPACE) -> DeschedulerConfiguration:
    """Return the configuration as a file would have it, before defaults. LowNodeLoad has arguments, so that
    enabling it is one line.
    """
    only = PluginSet(enabled=enable_plugins(MIGRATION_CONTROLLER).enabled, disabled=(PluginEntry(name=ALL_PLUGINS),))
    return DeschedulerConfiguration(
        api_version=API_VERSION,
        kind=KIND,
        leader_election=LeaderElectionConfiguration(
            leader_elect=True,
            resource_lock="leases",
            resource_name=DESCHEDULER_NAME,
            resource_namespace=namespace,
        ),
        descheduling_interval=INTERVAL,
        profiles=(
            DeschedulerProfile(
                name=DESCHEDULER_NAME,
                plugins=DeschedulerPlugins(evict=only, filter=only),
                plugin_config=(
                    PluginConfig(name=MIGRATION_CONTROLLER, args=_migration(namespace)),
                    PluginConfig(name=LOW_NODE_LOAD, args=low_node_load_args(namespace)),
                ),
            ),
        ),
    )


def low_node_load_args(namespace: str = NAMESPACE) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "LowNodeLoadArgs",
        "evictableNamespaces": {"exclude": _system(namespace)},
        "lowThresholds": dict(LOW),
        "highThresholds": dict(HIGH),
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
