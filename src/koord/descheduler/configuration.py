"""The configuration of the descheduler: loading, building of profiles and plugins, field errors and warnings.

The table of feature gates names the reader of each; it drives parsing, help and documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from koord.api.config.component import PluginConfig
from koord.api.config.decode import decode_strict as load_document
from koord.api.config.descheduler import configuration
from koord.api.config.descheduler.configuration import DESCHEDULER_PLUGIN_CATALOG, typed_args
from koord.api.config.descheduler.configuration import DeschedulerProfile as ProfileConfig
from koord.api.config.field_error import FieldError
from koord.api.config.gates import BETA, FeatureGate
from koord.descheduler.framework.plugin import DeschedulerPlugin, DeschedulingProfile, RoundLimits, overrides_method
from koord.descheduler.framework.pod_selection import build_selector
from koord.descheduler.plugins.registry import REGISTRY, PluginFactory
from koord.values import duration
from koord.values.selector import Selector

# Point -> its name in messages, and the methods that take part in it.
EXTENSION_POINTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "deschedule": ("DeschedulePlugin", ("deschedule",)),
    "balance": ("BalancePlugin", ("balance",)),
    "evict": ("EvictPlugin", ("evict",)),
    "filter": ("FilterPlugin", ("filter", "pre_eviction_filter")),
}


class DeschedulerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A completed configuration with the profiles of built plugins."""

    config: configuration.DeschedulerConfiguration  # completed
    profiles: tuple[DeschedulingProfile, ...]
    limits: RoundLimits
    node_selector: Selector | None
    interval_s: float  # 0: one pass, then only what runs in the background

    def plugins(self) -> tuple[DeschedulerPlugin, ...]:
        """Return every plugin instance once."""
        found: dict[int, DeschedulerPlugin] = {}
        for profile in self.profiles:
            for plugin in (profile.evict, *profile.filter, *profile.deschedule, *profile.balance):
                found[id(plugin)] = plugin
        return tuple(found.values())


def load_config(document: Any) -> configuration.DeschedulerConfiguration | list[FieldError]:
    """Load a configuration strictly from plain data, without defaults."""
    return load_document(document if document is not None else {}, configuration.DeschedulerConfiguration)


def build_setup(
    given: configuration.DeschedulerConfiguration, factories: Mapping[str, PluginFactory] = REGISTRY
) -> DeschedulerSetup | list[FieldError]:
    config = configuration.defaulted(given)
    errors = configuration.validate(config)
    if errors:
        return errors
    interval_s = duration.parse_seconds(config.descheduling_interval)
    profiles = []
    for index, one in enumerate(config.profiles):
        made = _build_profile(one, f"profiles[{index}]", factories, interval_s)
        if isinstance(made, list):
            errors += made
        else:
            profiles.append(made)
    if errors:
        return errors
    return DeschedulerSetup(
        config=config,
        profiles=tuple(profiles),
        limits=RoundLimits(
            per_node=config.max_no_of_pods_to_evict_per_node,
            per_namespace=config.max_no_of_pods_to_evict_per_namespace,
            total=config.max_no_of_pods_to_evict_total,
        ),
        node_selector=build_selector(config.node_selector),
        interval_s=interval_s,
    )


def _build_profile(
    config: ProfileConfig, path: str, factories: Mapping[str, PluginFactory], interval_s: float
) -> DeschedulingProfile | list[FieldError]:
    plugins = config.plugins or configuration.DeschedulerPlugins()
    errors: list[FieldError] = []
    made: dict[str, DeschedulerPlugin] = {}
    held: dict[str, list[DeschedulerPlugin]] = {point: [] for point in EXTENSION_POINTS}
    for point, (interface, methods) in EXTENSION_POINTS.items():
        for index, named in enumerate(getattr(plugins, point).enabled):
            where = f"{path}.plugins.{point}.enabled[{index}].name"
            if named.name not in factories:
                rule = f'{interface} "{named.name}" does not exist; known are {", ".join(sorted(factories))}'
                errors.append(FieldError(where, named.name, rule))
                continue
            plugin = made.get(named.name) or _build_plugin(named.name, config, path, factories, interval_s)
            if isinstance(plugin, list):
                errors += plugin
                continue
            if not any(overrides_method(plugin, method) for method in methods):
                rule = f'plugin "{named.name}" does not extend {interface} plugin'
                errors.append(FieldError(where, named.name, rule))
                continue
            if plugin in held[point]:
                errors.append(FieldError(where, named.name, f'plugin "{named.name}" already registered as {interface}'))
                continue
            made[named.name] = plugin
            held[point].append(plugin)
    if errors:
        return errors
    return DeschedulingProfile(
        name=config.name,
        evict=held["evict"][0],
        filter=tuple(held["filter"]),
        deschedule=tuple(held["deschedule"]),
        balance=tuple(held["balance"]),
        nodes=build_selector(config.node_selector),
    )


def _build_plugin(
    name: str, config: ProfileConfig, path: str, factories: Mapping[str, PluginFactory], interval_s: float
) -> DeschedulerPlugin | list[FieldError]:
    index, raw = next(
        ((i, entry.args) for i, entry in enumerate(config.plugin_config) if entry.name == name), (-1, None)
    )
    where = f"{path}.pluginConfig[{index}].args" if index >= 0 else f"{path}.plugins ({name})"
    args: Any = raw
    if name in DESCHEDULER_PLUGIN_CATALOG:
        args = typed_args(name, raw)
        if isinstance(args, list):
            return [FieldError(f"{where}.{error.field}", error.value, error.rule) for error in args]
        args = _outlive_interval(args, interval_s)
    made = factories[name](args)
    return [FieldError(where, raw, words) for words in made] if isinstance(made, list) else made


def _outlive_interval(args: Any, interval_s: float) -> Any:
    """Make marks of anomalies outlive the interval between rounds, or nothing would ever be moved."""
    kept = getattr(args, "detector_cache_timeout", None)
    if kept is None or duration.parse_seconds(kept) >= interval_s:
        return args
    return msgspec.structs.replace(args, detector_cache_timeout=duration.text(duration.from_seconds(interval_s)))


CUSTOM_PRIORITY = "CustomPriority"


def config_warnings(setup: DeschedulerSetup) -> list[tuple[str, str]]:
    """Return the warnings about a setup that was built, so none of them is an error."""
    config = setup.config
    found: list[tuple[str, str]] = []
    proposing = any(profile.deschedule or profile.balance for profile in setup.profiles)
    if proposing and not setup.interval_s:
        found.append(("deschedulingInterval", "is 0: there is one round after the start, and no other"))
    for field, limit in (
        ("maxNoOfPodsToEvictPerNode", config.max_no_of_pods_to_evict_per_node),
        ("maxNoOfPodsToEvictPerNamespace", config.max_no_of_pods_to_evict_per_namespace),
        ("maxNoOfPodsToEvictTotal", config.max_no_of_pods_to_evict_total),
    ):
        if limit == 0:
            found.append((field, "is 0: no pod is ever evicted; leave it out for no limit"))
    for index, profile in enumerate(config.profiles):
        found += _profile_warnings(profile, f"profiles[{index}]")
    return found


def _profile_warnings(profile: ProfileConfig, path: str) -> Iterator[tuple[str, str]]:
    plugins = profile.plugins or configuration.DeschedulerPlugins()
    points = (plugins.deschedule, plugins.balance, plugins.evict, plugins.filter)
    running = {one.name for point in points for one in point.enabled}
    for index, entry in enumerate(profile.plugin_config):
        where = f"{path}.pluginConfig[{index}]"
        if entry.name not in running:
            if _is_as_shipped(entry):
                continue  # they are there so that enabling it is one line
            yield f"{where}.args", f"are of {entry.name}, which is not enabled: they have no effect"
        elif entry.name == configuration.LOW_NODE_LOAD:
            yield from _low_node_load_warnings(entry.args or {}, f"{where}.args")
            yield from _namespace_warnings(entry.args or {}, profile, f"{where}.args")
        elif entry.name == configuration.MIGRATION_CONTROLLER:
            yield from _migration_warnings(entry.args or {}, f"{where}.args")
        elif entry.name == CUSTOM_PRIORITY:
            for level, one in enumerate((entry.args or {}).get("evictionOrder") or ()):
                for field in one.keys() & {"keepThreshold", "rejectThreshold"}:
                    yield f"{where}.args.evictionOrder[{level}].{field}", "has no effect, as in Koordinator"


def _migration_warnings(args: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    if _is_zero(args.get("defaultJobTTL")):
        yield f"{path}.defaultJobTTL", "is 0: jobs do not time out; they are cleared away after 30 minutes"
    if (args.get("arbitrationArgs") or {}).get("enabled") is False:
        yield f"{path}.arbitrationArgs.enabled", "is false, which has no effect: jobs are always arbitrated"
    if (args.get("priorityThreshold") or {}).get("name"):
        yield f"{path}.priorityThreshold.name", "has no effect here, as in Koordinator: give the value"
    options = args.get("defaultDeleteOptions") or {}
    if options.get("dryRun"):
        yield f"{path}.defaultDeleteOptions.dryRun", "is set: jobs without options of their own evict nobody"
    if options.get("preconditions"):
        yield f"{path}.defaultDeleteOptions.preconditions", "hold for one pod at most: jobs for all others fail"


def _is_as_shipped(entry: PluginConfig) -> bool:
    """Return whether the entry is that of the shipped configuration, whatever its namespaces."""
    if entry.name != configuration.LOW_NODE_LOAD:
        return False
    args, anywhere = entry.args or {}, {"evictableNamespaces": None}
    return {**args, **anywhere} == {**configuration.shipped_low_node_load_args(), **anywhere}


def _is_zero(given: Any) -> bool:
    return isinstance(given, str) and duration.parse_seconds(given) == 0


def _namespace_warnings(args: dict[str, Any], profile: ProfileConfig, path: str) -> Iterator[tuple[str, str]]:
    """Warn when the namespaces that the plugin may touch and those that the evictor accepts have nothing in common."""
    wanted = set((args.get("evictableNamespaces") or {}).get("include") or ())
    given = next((e.args for e in profile.plugin_config if e.name == configuration.MIGRATION_CONTROLLER), None) or {}
    theirs = given.get("namespaces") or {}
    include, exclude = set(theirs.get("include") or ()), set(theirs.get("exclude") or ())
    left = (wanted & include if include else wanted) - exclude
    if wanted and not left:
        yield f"{path}.evictableNamespaces", f"are all refused by {configuration.MIGRATION_CONTROLLER}: nothing moves"


def _low_node_load_warnings(args: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    thresholds = [key for key in args if key.lower().endswith("thresholds") and isinstance(args[key], dict)]
    if not thresholds and not args.get("nodePools"):
        yield path, "name no thresholds: no node is ever too full, and nothing moves"
    for low, high in (("lowThresholds", "highThresholds"), ("prodLowThresholds", "prodHighThresholds")):
        lows, highs = args.get(low) or {}, args.get(high) or {}
        for name in sorted(highs.keys() - lows.keys()):
            yield f"{path}.{high}.{name}", f"has no effect without {low}.{name}"
        for name in sorted(highs.keys() & lows.keys()):
            if not args.get("useDeviationThresholds") and isinstance(highs[name], int | float) and highs[name] >= 100:
                yield f"{path}.{high}.{name}", "is 100 or more: hardly any node is ever above it, and nothing moves"
        for name in sorted(lows.keys() - highs.keys()):
            yield f"{path}.{low}.{name}", f"is alone: without {high}.{name} every node that uses any of it is too full"
    if args.get("paused"):
        yield f"{path}.paused", "is true: the plugin does nothing"
    anomaly = args.get("anomalyCondition") or {}
    if anomaly.get("consecutiveAbnormalities") == 1:
        yield f"{path}.anomalyCondition.consecutiveAbnormalities", "is 1: a single reading is enough to move pods"


class DeschedulerGate(FeatureGate, frozen=True, kw_only=True):
    """A gate of koord-descheduler and its reader below koord.descheduler."""

    reader: str


DESCHEDULER_GATES: Mapping[str, DeschedulerGate] = {
    "DisablePVCReservation": DeschedulerGate(
        False, BETA, "reservations for migrated pods leave their volume claims out", reader="migration.writer"
    )
}
