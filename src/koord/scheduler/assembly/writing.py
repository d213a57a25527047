"""Write the effective configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from koord.api.config.component import ClientConnection, LeaderElection
from koord.api.config.plugin_set import PluginSet
from koord.api.config.scheduler.args import API_VERSION, PluginArgs
from koord.api.config.scheduler.configuration import KIND, KubeSchedulerConfiguration, Plugins, Profile
from koord.api.config.scheduler.extender import Extender
from koord.api.model import to_dict
from koord.scheduler.assembly.args import plugin_args
from koord.scheduler.assembly.assembly import Assembly
from koord.scheduler.assembly.roster import named
from koord.values import duration

# Fields that hold durations: whatever was given, Go writes 90s as 1m30s.
_DURATIONS = frozenset(
    (
        "leaseDuration",
        "renewDeadline",
        "retryPeriod",
        "httpTimeout",
        "filterTimeout",
        "defaultTimeout",
        "delayEvictTime",
        "revokePodInterval",
        "quotaSnapshotUpdateInterval",
    )
)
# Arguments that are written even when they say nothing.
_ALWAYS: Mapping[str, Mapping[str, Any]] = {"InterPodAffinity": {"ignorePreferredTermsOfExistingPods": False}}


def written(assembly: Assembly) -> str:
    """Return the effective configuration as YAML, as kube-scheduler's `--write-config-to` writes it."""
    return yaml.safe_dump(effective(assembly), default_flow_style=False, sort_keys=True)


def effective(assembly: Assembly) -> dict[str, Any]:
    """Return the effective configuration as plain data."""
    return tree_of(assembly.config)


def tree_of(config: KubeSchedulerConfiguration) -> dict[str, Any]:
    """Convert a defaulted, valid configuration to plain data."""
    tree: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "clientConnection": _all_fields(config.client_connection),
        "leaderElection": _all_fields(config.leader_election),
        "enableProfiling": config.enable_profiling,
        "enableContentionProfiling": config.enable_contention_profiling,
        "parallelism": config.parallelism,
        "percentageOfNodesToScore": config.percentage_of_nodes_to_score,
        "podInitialBackoffSeconds": config.pod_initial_backoff_seconds,
        "podMaxBackoffSeconds": config.pod_max_backoff_seconds,
        "profiles": [_profile(profile) for profile in config.profiles],
    }
    if config.delay_cache_until_active:
        tree["delayCacheUntilActive"] = True
    if config.extenders:
        tree["extenders"] = [_extender(extender) for extender in config.extenders]
    plain = _plain(tree)
    assert isinstance(plain, dict)
    return plain


def _profile(profile: Profile) -> dict[str, Any]:
    plugins = profile.plugins or Plugins()
    tree: dict[str, Any] = {
        "schedulerName": profile.scheduler_name,
        "plugins": {field.encode_name: _set(getattr(plugins, field.name)) for field in msgspec.structs.fields(Plugins)},
    }
    if profile.percentage_of_nodes_to_score is not None:
        tree["percentageOfNodesToScore"] = profile.percentage_of_nodes_to_score
    args = [{"name": name, "args": _args(profile, name)} for name in sorted(named(plugins))]
    if any(entry["args"] for entry in args):
        tree["pluginConfig"] = [entry for entry in args if entry["args"]]
    return tree


def _args(profile: Profile, name: str) -> Any:
    args = plugin_args(profile, name)
    if not isinstance(args, PluginArgs):
        return args
    return {**_ALWAYS.get(name, {}), **to_dict(args), "apiVersion": API_VERSION, "kind": f"{name}Args"}


def _set(held: PluginSet) -> dict[str, Any]:
    tree = {}
    if held.enabled:
        tree["enabled"] = [{"name": plugin.name, "weight": plugin.weight or 0} for plugin in held.enabled]
    if held.disabled:
        tree["disabled"] = [{"name": plugin.name, "weight": 0} for plugin in held.disabled]
    return tree


def _extender(extender: Extender) -> dict[str, Any]:
    tree = to_dict(extender)
    if extender.tls_config is not None:
        tree.setdefault("tlsConfig", {})
    return tree


def _all_fields(value: ClientConnection | LeaderElection) -> dict[str, Any]:
    return {field.encode_name: getattr(value, field.name) for field in msgspec.structs.fields(value)}


def _plain(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if key in _DURATIONS and isinstance(value, str):
        return duration.text(duration.parse(value))
    return int(value) if isinstance(value, float) and value.is_integer() else value
