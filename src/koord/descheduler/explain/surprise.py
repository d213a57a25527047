"""What a valid configuration does that its author may not expect, each with the field that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from koord.api.config.descheduler.configuration import Plugins
from koord.api.config.descheduler.configuration import Profile as ProfileConfig
from koord.descheduler.assembly import Assembly

LOW_NODE_LOAD = "LowNodeLoad"


def surprises(assembly: Assembly) -> list[tuple[str, str]]:
    """Of an assembly that was made, so nothing here is an error."""
    config = assembly.config
    found: list[tuple[str, str]] = []
    proposing = any(profile.deschedule or profile.balance for profile in assembly.profiles)
    if proposing and not assembly.interval_s:
        found.append(("deschedulingInterval", "is 0: there is one round after the start, and no other"))
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


def _low_node_load(args: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    thresholds = [key for key in args if key.lower().endswith("thresholds") and isinstance(args[key], dict)]
    if not thresholds and not args.get("nodePools"):
        yield path, "name no thresholds: no node is ever too full, and nothing moves"
    for low, high in (("lowThresholds", "highThresholds"), ("prodLowThresholds", "prodHighThresholds")):
        lows, highs = args.get(low) or {}, args.get(high) or {}
        for name in sorted(highs.keys() - lows.keys()):
            yield f"{path}.{high}.{name}", f"has no effect without {low}.{name}"
        for name in sorted(lows.keys() - highs.keys()):
            yield f"{path}.{low}.{name}", f"is alone: without {high}.{name} every node that uses any of it is too full"
    anomaly = args.get("anomalyCondition") or {}
    if anomaly.get("consecutiveAbnormalities") == 1:
        yield f"{path}.anomalyCondition.consecutiveAbnormalities", "is 1: a single reading is enough to move pods"
