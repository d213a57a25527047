"""Select the plugins of one profile."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.config.field_error import FieldError
from koord.api.config.plugin_set import PluginSet, expanded
from koord.api.config.scheduler.configuration import Plugins, Profile
from koord.scheduler.assembly.point import POINTS, Point
from koord.scheduler.framework.plugin import MAX_SCORE, Plugin

_INT32 = 1 << 31
_MOST = (1 << 63) - 1  # what the sum of all weighted scores of a node may come to


class Roster(msgspec.Struct, frozen=True):
    """Hold the plugin names by extension point, and the weights. A plugin listed at a point need not be called there.

    """

    points: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, int]


def named(plugins: Plugins) -> dict[str, str]:
    """Return every plugin that is enabled somewhere, with the path of its first mention."""
    found: dict[str, str] = {}
    for path, held in _sets(plugins):
        for index, plugin in enumerate(held.enabled):
            found.setdefault(plugin.name, f"{path}.enabled[{index}].name")
    return found


def roster(profile: Profile, path: str, made: Mapping[str, Plugin]) -> Roster | list[FieldError]:
    """Select the plugins of a profile, or return its errors; `made` has every plugin that the profile enables."""
    plugins = profile.plugins or Plugins()
    here = f"{path}.plugins"
    errors = _twice(plugins, here) + _misplaced(plugins, here, made) + _weights_out_of_range(plugins, here)
    if errors:
        return errors
    points = {point.name: _at(point, plugins, made) for point in POINTS}
    name = profile.scheduler_name
    if len(points["queue_sort"]) != 1:
        rule = f'only one queue sort plugin required for profile with scheduler name "{name}"'
        found = list(points["queue_sort"])
        errors.append(FieldError(f"{here}.queueSort", found, f"{rule}, but got {len(found)}"))
    if not points["bind"]:
        rule = f'at least one bind plugin is needed for profile with scheduler name "{name}", such as DefaultBinder'
        errors.append(FieldError(f"{here}.bind", [], rule))
    weights = _weights(plugins, made)
    if _overflows(list(weights.values())):
        rule = "total score of Score plugins could overflow: weights must be positive and their sum within bounds"
        errors.append(FieldError(f"{here}.score", weights, rule))
    return errors or Roster(points, weights)


def _sets(plugins: Plugins) -> list[tuple[str, PluginSet]]:
    return [("multiPoint", plugins.multi_point), *((point.path, point.set_of(plugins)) for point in POINTS)]


def _at(point: Point, plugins: Plugins, made: Mapping[str, Plugin]) -> tuple[str, ...]:
    found = expanded(plugins.multi_point, point.set_of(plugins), lambda name: point.held_by(made[name]))
    return tuple(plugin.name for plugin in found)


def _twice(plugins: Plugins, path: str) -> list[FieldError]:
    errors = []
    for where, held in _sets(plugins):
        seen: set[str] = set()
        for index, plugin in enumerate(held.enabled):
            if plugin.name in seen:
                rule = "is enabled twice: a plugin can be enabled once at a point"
                errors.append(FieldError(f"{path}.{where}.enabled[{index}].name", plugin.name, rule))
            seen.add(plugin.name)
    return errors


def _misplaced(plugins: Plugins, path: str, made: Mapping[str, Plugin]) -> list[FieldError]:
    errors = []
    for point in POINTS:
        for index, plugin in enumerate(point.set_of(plugins).enabled):
            if not point.held_by(made[plugin.name]):
                has = ", ".join(p.path for p in POINTS if p.held_by(made[plugin.name])) or "none"
                rule = f'plugin "{plugin.name}" does not extend {point.interface} plugin; its points are: {has}'
                errors.append(FieldError(f"{path}.{point.path}.enabled[{index}].name", plugin.name, rule))
    return errors


def _weights_out_of_range(plugins: Plugins, path: str) -> list[FieldError]:
    return [
        FieldError(f"{path}.{where}.enabled[{index}].weight", plugin.weight, f"must be from {-_INT32} to {_INT32 - 1}")
        for where, held in _sets(plugins)
        for index, plugin in enumerate(held.enabled)
        if plugin.weight is not None and not -_INT32 <= plugin.weight < _INT32
    ]


def _weights(plugins: Plugins, made: Mapping[str, Plugin]) -> dict[str, int]:
    """Return the weights: the one at score wins over multiPoint's, even when it is left out there; none and 0 mean 1.

    """
    (score,) = (point for point in POINTS if point.name == "score")
    weights: dict[str, int] = {}
    for plugin in (*plugins.score.enabled, *plugins.multi_point.enabled):
        if score.held_by(made[plugin.name]):
            weights.setdefault(plugin.name, plugin.weight or 1)
    return weights


def _overflows(weights: list[int]) -> bool:
    """Return whether Kubernetes would refuse the weights.

    It adds up in 64 bits and refuses once the sum so far is negative or too large for the next weight.
    """
    total = 0
    for weight in weights:
        if total < 0 or weight * MAX_SCORE > _MOST - total:
            return True
        total += weight * MAX_SCORE
    return False
