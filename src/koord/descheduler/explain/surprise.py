"""Warnings about a valid configuration, each with the field that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from koord.api.config.descheduler.configuration import Plugins
from koord.api.config.descheduler.configuration import Profile as ProfileConfig
from koord.descheduler.assembly import Assembly
from koord.values import duration

LOW_NODE_LOAD, MIGRATION_CONTROLLER = "LowNodeLoad", "MigrationController"


def surprises(assembly: Assembly) -> list[tuple[str, str]]:
    """Return the warnings about a setup that was built, so none of them is an error."""
    config = assembly.config
    found: list[tuple[str, str]] = []
    proposing = any(profile.deschedule or profile.balance for profile in assembly.profiles)
    if proposing and not assembly.interval_s:
        found.append(("deschedulingInterval", "is 0: there is one round after the start, and no other"))
    for field, limit in (
        ("maxNoOfPodsToEvictPerNode", config.max_no_of_pods_to_evict_per_node),
        ("maxNoOfPodsToEvictPerNamespace", config.max_no_of_pods_to_evict_per_namespace),
        ("maxNoOfPodsToEvictTotal", config.max_no_of_pods_to_evict_total),
    ):
        if limit == 0:
            found.append((field, "is 0: no pod is ever evicted; leave it out for no limit"))
    for index, profile in enumerate(config.profiles):
        found += _profile(profile, f"profiles[{index}]")
    return found


def _profile(profile: ProfileConfig, path: str) -> Iterator[tuple[str, str]]:
    plugins = profile.plugins or Plugins()
    points = (plugins.deschedule, plugins.balance, plugins.evict, plugins.filter)
    running = {one.name for point in points for one in point.enabled}
    for index, entry in enumerate(profile.plugin_config):
        where = f"{path}.pluginConfig[{index}]"
        if entry.name not in running:
            yield f"{where}.args", f"are of {entry.name}, which is not enabled: they have no effect"
        elif entry.name == LOW_NODE_LOAD:
            yield from _low_node_load(entry.args or {}, f"{where}.args")
            yield from _no_namespace_left(entry.args or {}, profile, f"{where}.args")
        elif entry.name == MIGRATION_CONTROLLER and _is_zero((entry.args or {}).get("defaultJobTTL")):
            yield f"{where}.args.defaultJobTTL", "is 0: jobs do not time out; they are cleared away after 30 minutes"


def _is_zero(given: Any) -> bool:
    return isinstance(given, str) and duration.parse_seconds(given) == 0


def _no_namespace_left(args: dict[str, Any], profile: ProfileConfig, path: str) -> Iterator[tuple[str, str]]:
    """Warn when the namespaces that the plugin may touch and those that the evictor accepts have nothing in
    common.
    """
    wanted = set((args.get("evictableNamespaces") or {}).get("include") or ())
    given = next((e.args for e in profile.plugin_config if e.name == MIGRATION_CONTROLLER), None) or {}
    theirs = given.get("namespaces") or {}
    include, exclude = set(theirs.get("include") or ()), set(theirs.get("exclude") or ())
    left = (wanted & include if include else wanted) - exclude
    if wanted and not left:
        yield f"{path}.evictableNamespaces", f"are all refused by {MIGRATION_CONTROLLER}: nothing moves"


def _low_node_load(args: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
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
