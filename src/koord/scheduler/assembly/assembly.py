"""Complete a configuration."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.config.field_error import FieldError
from koord.api.config.scheduler.configuration import (
    KubeSchedulerConfiguration,
    Plugins,
    Profile,
    defaulted,
    validate,
)
from koord.scheduler.assembly.args import entry_of, plugin_args
from koord.scheduler.assembly.gated import gated, not_built
from koord.scheduler.assembly.point import POINTS
from koord.scheduler.assembly.rehearsal import BlankHandle
from koord.scheduler.assembly.roster import Roster, named, roster
from koord.scheduler.assembly.unbuilt import missing
from koord.scheduler.framework import profile as framework
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin, overrides
from koord.scheduler.plugins.registry import Factory


class Assembly:
    """Hold a valid configuration that profiles can be made from. Use `CompletedConfig.complete`.

    Whatever can be wrong with a configuration is found there, not when profiles are made.
    """

    def __init__(
        self,
        config: KubeSchedulerConfiguration,
        factories: Mapping[str, Factory],
        gates: Mapping[str, bool],
        rosters: tuple[Roster, ...],
    ) -> None:
        self.config = config
        self.gates = gates
        self.rosters = rosters
        self._factories = factories

    @classmethod
    def of(
        cls,
        given: KubeSchedulerConfiguration,
        factories: Mapping[str, Factory],
        gates: Mapping[str, bool] | None = None,
    ) -> Assembly | list[FieldError]:
        """Complete a configuration as a file has it, or with its defaults filled in; return all errors if it is invalid.

        Every plugin is made once over an empty cluster, to learn which points it has and what it says about its arguments.
        """
        config = defaulted(given)
        errors = validate(config) or not_built(config)
        factories = gated(factories, gates or {})
        for index, profile in enumerate(config.profiles):
            errors += missing(profile, f"profiles[{index}]", factories)
        if errors:
            return errors
        rosters: list[Roster] = []
        for index, profile in enumerate(config.profiles):
            path = f"profiles[{index}]"
            made = _rehearsed(profile, path, factories)
            found = roster(profile, path, made) if isinstance(made, dict) else made
            if isinstance(found, Roster):
                rosters.append(found)
            else:
                errors += found
        if not errors:
            errors = _one_queue(config, rosters)
        return errors or cls(config, factories, gates or {}, tuple(rosters))

    @property
    def unused(self) -> tuple[str, ...]:
        """Return the plugins whose arguments a profile states without enabling them: accepted, and without effect."""
        found = {
            entry.name
            for profile in self.config.profiles
            for entry in profile.plugin_config
            if entry.name not in named(profile.plugins or Plugins())
        }
        return tuple(sorted(found))

    def profiles(self, handle: Handle) -> tuple[framework.Profile, ...]:
        """Make the profiles, with one instance of each plugin per profile, shared by the points that it is enabled at.

        """
        return tuple(
            _running(profile, found, _made(profile, self._factories, handle))
            for profile, found in zip(self.config.profiles, self.rosters, strict=True)
        )


def _made(profile: Profile, factories: Mapping[str, Factory], handle: Handle) -> dict[str, Plugin]:
    return {name: factories[name](plugin_args(profile, name), handle) for name in named(profile.plugins or Plugins())}


def _rehearsed(profile: Profile, path: str, factories: Mapping[str, Factory]) -> dict[str, Plugin] | list[FieldError]:
    handle = BlankHandle()
    made: dict[str, Plugin] = {}
    errors: list[FieldError] = []
    for name, mention in named(profile.plugins or Plugins()).items():
        entry = entry_of(profile, name)
        where = f"{path}.plugins.{mention}"
        if entry is not None:
            where = f"{path}.pluginConfig[{profile.plugin_config.index(entry)}].args"
        try:
            plugin = factories[name](plugin_args(profile, name), handle)
        except ValueError as error:
            stated = entry.args if entry is not None else name
            errors.append(FieldError(where, stated, f'initializing plugin "{name}": {error}'))
            continue
        if plugin.name != name:
            rule = f"is registered under another name than the plugin's own, which is {plugin.name!r}"
            errors.append(FieldError(f"{path}.plugins.{mention}", name, rule))
        made[name] = plugin
    return errors or made


def _running(profile: Profile, found: Roster, made: Mapping[str, Plugin]) -> framework.Profile:
    points: dict[str, list[Plugin]] = {}
    for point in POINTS:
        here = [made[name] for name in found.points[point.name]]
        for method in point.methods:
            if method != "unreserve":
                points[method] = [p for p in here if overrides(p, method)]
        if point.name == "reserve":  # one list for both ways: undoing goes through it backwards
            points["reserve"] = [p for p in here if any(overrides(p, method) for method in point.methods)]
    for method in ("next_pod", "failed", "nominate"):  # asked wherever the plugin is enabled
        points[method] = [plugin for plugin in made.values() if overrides(plugin, method)]
    return framework.Profile(profile.scheduler_name or "", points, found.weights)


def _one_queue(config: KubeSchedulerConfiguration, rosters: list[Roster]) -> list[FieldError]:
    """Check that all profiles have the same queue sort plugin with the same arguments, since they share one queue."""
    (first,) = rosters[0].points["queue_sort"]
    args = plugin_args(config.profiles[0], first)
    errors = []
    for index, (profile, found) in enumerate(zip(config.profiles, rosters, strict=True)):
        (sort,) = found.points["queue_sort"]
        name = profile.scheduler_name
        if sort != first:
            rule = f'different queue sort plugins for profile "{name}": "{sort}", first: "{first}"'
            errors.append(FieldError(f"profiles[{index}].plugins.queueSort", [sort], rule))
        elif plugin_args(profile, sort) != args:
            entry = entry_of(profile, sort)
            rule = f'different queue sort plugin args for profile "{name}"; those of the first profile are {args}'
            errors.append(FieldError(f"profiles[{index}].pluginConfig", entry.args if entry else None, rule))
    return errors
