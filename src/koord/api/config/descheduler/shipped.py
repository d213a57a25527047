"""This module is the configuration that Koordinator ships: migrations are carried out, and no plugin proposes
any yet.
"""

from __future__ import annotations

from typing import Any

from koord.api.config.component import LeaderElection
from koord.api.config.descheduler.args import API_VERSION
from koord.api.config.descheduler.configuration import KIND, DeschedulerConfiguration, Plugins, Profile
from koord.api.config.plugin_set import ALL, Plugin, PluginConfig, PluginSet, enabled
from koord.api.protocol import DESCHEDULER_NAME, NAMESPACE

INTERVAL = "10s"
LOW_NODE_LOAD, MIGRATION_CONTROLLER = "LowNodeLoad", "MigrationController"
# Below the first a node takes pods, above the second it gives some away: percent of what it really uses.
LOW, HIGH = {"cpu": 45, "memory": 55}, {"cpu": 75, "memory": 80}


def configuration(namespace: str = NAMESPACE) -> DeschedulerConfiguration:
    """Return the configuration as a file would have it, before defaults. LowNodeLoad has arguments, so that
    enabling it is one line.
    """
    only = PluginSet(enabled=enabled(MIGRATION_CONTROLLER).enabled, disabled=(Plugin(name=ALL),))
    return DeschedulerConfiguration(
        api_version=API_VERSION,
        kind=KIND,
        leader_election=LeaderElection(
            leader_elect=True,
            resource_lock="leases",
            resource_name=DESCHEDULER_NAME,
            resource_namespace=namespace,
        ),
        descheduling_interval=INTERVAL,
        profiles=(
            Profile(
                name=DESCHEDULER_NAME,
                plugins=Plugins(evict=only, filter=only),
                plugin_config=(
                    PluginConfig(name=MIGRATION_CONTROLLER, args=_migration(namespace)),
                    PluginConfig(name=LOW_NODE_LOAD, args=low_node_load(namespace)),
                ),
            ),
        ),
    )


def low_node_load(namespace: str = NAMESPACE) -> dict[str, Any]:
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
