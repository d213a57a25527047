"""Read a configuration file as strictly as kube-scheduler does, and write the effective configuration in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from koord.api.config import decode
from koord.api.config.component import ClientConnectionConfiguration, LeaderElectionConfiguration, PluginSet
from koord.api.config.field_error import FieldError
from koord.api.config.scheduler import configuration
from koord.api.config.scheduler.in_tree_args import API_VERSION, SchedulerPluginArgs
from koord.api.model import to_dict
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.plugin_selection import enabled_plugins, plugin_args
from koord.values import duration
from koord.values.yaml_text import YAML_ERRORS, JsonYamlLoader, malformed_yaml, yaml_limit_exceeded


def load_configuration(
    source: str | bytes | Mapping[str, Any],
) -> configuration.KubeSchedulerConfiguration | list[FieldError]:
    """Load a configuration from YAML or JSON text, or from parsed data. Only a file's first document counts."""
    read = source if isinstance(source, Mapping) else _parse_yaml(source)
    if isinstance(read, list):
        return read
    errors = [
        FieldError(field, read.get(field), f"must be {wanted!r}")
        for field, wanted in (("apiVersion", API_VERSION), ("kind", configuration.KIND))
        if read.get(field) != wanted
    ]
    return errors or decode.decode_strict(_with_integers(read), configuration.KubeSchedulerConfiguration)


def _parse_yaml(text: str | bytes) -> dict[str, Any] | list[FieldError]:
    if (malformed := yaml_limit_exceeded(text)) is not None:
        return [FieldError("", None, malformed.reason)]
    try:
        loader = JsonYamlLoader(text)
        node = loader.get_node() if loader.check_node() else None
        repeated = [] if node is None else _repeated_keys(node, "", set())
        if repeated:
            return repeated
        value = {} if node is None else loader.construct_document(node)
    except YAML_ERRORS as error:
        return [FieldError("", None, malformed_yaml(error).reason)]
    if not isinstance(value, dict):
        return [FieldError("", None, f"must be a map with apiVersion {API_VERSION!r} and kind {configuration.KIND!r}")]
    return value


def _repeated_keys(node: yaml.Node, path: str, met: set[int]) -> list[FieldError]:
    """Return an error for each key that a map has twice; `met` keeps aliases from being walked for ever."""
    if id(node) in met:
        return []
    met.add(id(node))
    errors: list[FieldError] = []
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            here = f"{path}.{name}" if path else name
            if name in seen:
                errors.append(FieldError(here, None, f"is set twice, in lines {seen[name]} and {line}"))
            seen.setdefault(name, line)
            errors += _repeated_keys(value, here, met)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            errors += _repeated_keys(value, f"{path}[{index}]", met)
    return errors


def _with_integers(value: Any) -> Any:
    """Return the data with 3.0 as 3: JSON has one kind of number, and so has a configuration."""
    if isinstance(value, Mapping):
        return {key: _with_integers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_integers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Fields that hold durations: whatever was given, Go writes 90s as 1m30s.
_DURATION_FIELDS = frozenset(
    (
        *("leaseDuration", "renewDeadline", "retryPeriod", "httpTimeout", "filterTimeout", "defaultTimeout"),
        *("delayEvictTime", "revokePodInterval", "quotaSnapshotUpdateInterval"),
    )
)
# Arguments that are written even when they say nothing.
_ALWAYS_WRITTEN: Mapping[str, Mapping[str, Any]] = {"InterPodAffinity": {"ignorePreferredTermsOfExistingPods": False}}


def dump_configuration(completed_config: CompletedConfig) -> str:
    """Return the effective configuration as YAML, as kube-scheduler's `--write-config-to` writes it."""
    return yaml.safe_dump(effective_configuration(completed_config), default_flow_style=False, sort_keys=True)


def effective_configuration(completed_config: CompletedConfig) -> dict[str, Any]:
    """Return the effective configuration as plain data."""
    return configuration_to_dict(completed_config.config)


def configuration_to_dict(config: configuration.KubeSchedulerConfiguration) -> dict[str, Any]:
    """Convert a defaulted, valid configuration to plain data."""
    tree: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": configuration.KIND,
        "clientConnection": _all_fields(config.client_connection),
        "leaderElection": _all_fields(config.leader_election),
        "enableProfiling": config.enable_profiling,
        "enableContentionProfiling": config.enable_contention_profiling,
        "parallelism": config.parallelism,
        "percentageOfNodesToScore": config.percentage_of_nodes_to_score,
        "podInitialBackoffSeconds": config.pod_initial_backoff_seconds,
        "podMaxBackoffSeconds": config.pod_max_backoff_seconds,
        "profiles": [_profile_to_dict(profile) for profile in config.profiles],
    }
    if config.delay_cache_until_active:
        tree["delayCacheUntilActive"] = True
    if config.extenders:
        tree["extenders"] = [_extender_to_dict(extender) for extender in config.extenders]
    plain = _plain(tree)
    assert isinstance(plain, dict)
    return plain


def _profile_to_dict(profile: configuration.KubeSchedulerProfile) -> dict[str, Any]:
    plugins = profile.plugins or configuration.SchedulerPlugins()
    tree: dict[str, Any] = {
        "schedulerName": profile.scheduler_name,
        "plugins": {
            field.encode_name: _plugin_set_to_dict(getattr(plugins, field.name))
            for field in msgspec.structs.fields(configuration.SchedulerPlugins)
        },
    }
    if profile.percentage_of_nodes_to_score is not None:
        tree["percentageOfNodesToScore"] = profile.percentage_of_nodes_to_score
    args = [{"name": name, "args": _args_to_dict(profile, name)} for name in sorted(enabled_plugins(plugins))]
    if any(entry["args"] for entry in args):
        tree["pluginConfig"] = [entry for entry in args if entry["args"]]
    return tree


def _args_to_dict(profile: configuration.KubeSchedulerProfile, name: str) -> Any:
    args = plugin_args(profile, name)
    if not isinstance(args, SchedulerPluginArgs):
        return args
    return {**_ALWAYS_WRITTEN.get(name, {}), **to_dict(args), "apiVersion": API_VERSION, "kind": f"{name}Args"}


def _plugin_set_to_dict(held: PluginSet) -> dict[str, Any]:
    tree = {}
    if held.enabled:
        tree["enabled"] = [{"name": plugin.name, "weight": plugin.weight or 0} for plugin in held.enabled]
    if held.disabled:
        tree["disabled"] = [{"name": plugin.name, "weight": 0} for plugin in held.disabled]
    return tree


def _extender_to_dict(extender: configuration.Extender) -> dict[str, Any]:
    tree = to_dict(extender)
    if extender.tls_config is not None:
        tree.setdefault("tlsConfig", {})
    return tree


def _all_fields(value: ClientConnectionConfiguration | LeaderElectionConfiguration) -> dict[str, Any]:
    return {field.encode_name: getattr(value, field.name) for field in msgspec.structs.fields(value)}


def _plain(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if key in _DURATION_FIELDS and isinstance(value, str):
        return duration.text(duration.parse(value))
    return int(value) if isinstance(value, float) and value.is_integer() else value
