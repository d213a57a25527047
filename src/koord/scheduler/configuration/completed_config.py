"""Complete a configuration: fill in defaults, validate it against the plugins at hand, and make profiles from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from koord.api.config.field_error import FieldError
from koord.api.config.gates import default_feature_gates
from koord.api.config.scheduler.configuration import (
    KubeSchedulerConfiguration,
    KubeSchedulerProfile,
    SchedulerPlugins,
    defaulted,
    validate,
)
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import PodTransform
from koord.scheduler.configuration.feature_gates import (
    SCHEDULER_GATES,
    SKIP_FILTER_WITH_NOMINATED_PODS,
    STORAGE_CAPACITY_SCORING,
    apply_feature_gates,
    hidden_kinds,
    pod_transform,
)
from koord.scheduler.configuration.plugin_selection import (
    PluginSelection,
    enabled_plugins,
    plugin_args,
    plugin_config_of,
    select_plugins,
    unknown_plugins,
    unsupported_settings,
)
from koord.scheduler.framework import profile as framework
from koord.scheduler.framework.attempt import describe_error
from koord.scheduler.framework.extension_points import EXTENSION_POINTS, METHODS_OF_ANY_POINT, PluginMethod, overrides
from koord.scheduler.framework.handle import Handle, Lister, SchedulerActions
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.registry import PluginFactory

O = TypeVar("O", bound=Object)  # noqa: E741 - an object


class EmptyLister(Generic[O]):
    """List nothing."""

    version = 0

    def get(self, namespace: str, name: str) -> O | None:
        return None

    def list(self, namespace: str | None = None) -> Sequence[O]:
        return ()

    def on_change(self, callback: Callable[[O | None, O | None], None]) -> None:
        """Never call back."""


class ValidationHandle:
    """Give plugins an empty cluster, to learn only their extension points and what they say about their arguments."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.actions = SchedulerActions()

    def lister(self, resource: Resource[O]) -> EmptyLister[O]:
        return EmptyLister()

    def now(self) -> float:
        return 0.0


class RestrictedHandle:
    """Give plugins another handle, without the objects of some kinds."""

    def __init__(self, handle: Handle, hidden_kinds: frozenset[str]) -> None:
        self._handle = handle
        self._hidden_kinds = hidden_kinds
        self.state = handle.state
        self.actions = handle.actions

    def lister(self, resource: Resource[O]) -> Lister[O]:
        return EmptyLister() if resource.kind in self._hidden_kinds else self._handle.lister(resource)

    def now(self) -> float:
        return self._handle.now()


class CompletedConfig:
    """Hold a valid configuration that profiles can be made from. Use `CompletedConfig.complete`.

    Whatever can be wrong with a configuration is found there, not when profiles are made.
    """

    def __init__(
        self,
        config: KubeSchedulerConfiguration,
        factories: Mapping[str, PluginFactory],
        gates: Mapping[str, bool],
        selections: tuple[PluginSelection, ...],
    ) -> None:
        self.config = config
        self.gates = gates
        self.selections = selections
        self._factories = factories

    @classmethod
    def complete(
        cls,
        given: KubeSchedulerConfiguration,
        factories: Mapping[str, PluginFactory],
        gates: Mapping[str, bool] | None = None,
    ) -> CompletedConfig | list[FieldError]:
        """Complete a configuration as a file has it, or with its defaults filled in; return all errors if it is
        invalid.

        Every plugin is made once over an empty cluster, to learn which points it has and what it says about its
        arguments.
        """
        config = defaulted(given)
        gates = {**default_feature_gates(SCHEDULER_GATES), **(gates or {})}
        errors = validate(config) or unsupported_settings(
            config, scores_storage_capacity=gates[STORAGE_CAPACITY_SCORING]
        )
        factories = apply_feature_gates(factories, gates)
        for index, profile in enumerate(config.profiles):
            errors += unknown_plugins(profile, f"profiles[{index}]", factories)
        if errors:
            return errors
        selections: list[PluginSelection] = []
        for index, profile in enumerate(config.profiles):
            path = f"profiles[{index}]"
            made = _validate_plugins(profile, path, factories)
            found = select_plugins(profile, path, made) if isinstance(made, dict) else made
            if isinstance(found, PluginSelection):
                selections.append(found)
            else:
                errors += found
        if not errors:
            errors = _check_common_queue_sort(config, selections)
        return errors or cls(config, factories, gates, tuple(selections))

    @property
    def pod_transform(self) -> PodTransform | None:
        """Return what is to be applied to every pod before any part of the scheduler sees it."""
        return pod_transform(self.gates)

    @property
    def unused_plugin_configs(self) -> tuple[str, ...]:
        """Return the plugins whose arguments a profile states without enabling them: accepted, and without effect."""
        found = {
            entry.name
            for profile in self.config.profiles
            for entry in profile.plugin_config
            if entry.name not in enabled_plugins(profile.plugins or SchedulerPlugins())
        }
        return tuple(sorted(found))

    def make_profiles(self, handle: Handle) -> tuple[framework.SchedulerProfile, ...]:
        """Make the profiles, with one instance of each plugin per profile, shared by the points it is enabled at."""
        hidden = hidden_kinds(self.gates)
        if hidden:
            handle = RestrictedHandle(handle, hidden)
        return tuple(
            _make_profile(profile, found, _make_plugins(profile, self._factories, handle), self.gates)
            for profile, found in zip(self.config.profiles, self.selections, strict=True)
        )


def _make_plugins(
    profile: KubeSchedulerProfile, factories: Mapping[str, PluginFactory], handle: Handle
) -> dict[str, Plugin]:
    return {
        name: factories[name](plugin_args(profile, name), handle)
        for name in enabled_plugins(profile.plugins or SchedulerPlugins())
    }


def _validate_plugins(
    profile: KubeSchedulerProfile, path: str, factories: Mapping[str, PluginFactory]
) -> dict[str, Plugin] | list[FieldError]:
    handle = ValidationHandle()
    made: dict[str, Plugin] = {}
    errors: list[FieldError] = []
    for name, mention in enabled_plugins(profile.plugins or SchedulerPlugins()).items():
        entry = plugin_config_of(profile, name)
        where = f"{path}.plugins.{mention}"
        if entry is not None:
            where = f"{path}.pluginConfig[{profile.plugin_config.index(entry)}].args"
        try:
            plugin = factories[name](plugin_args(profile, name), handle)
        except Exception as error:  # noqa: BLE001 - a plugin of another package may raise anything
            stated = entry.args if entry is not None else name
            words = str(error) if isinstance(error, ValueError) else describe_error(error)
            errors.append(FieldError(where, stated, f'initializing plugin "{name}": {words}'))
            continue
        if plugin.name != name:
            rule = f"is registered under another name than the plugin's own, which is {plugin.name!r}"
            errors.append(FieldError(f"{path}.plugins.{mention}", name, rule))
        made[name] = plugin
    return errors or made


def _make_profile(
    profile: KubeSchedulerProfile, found: PluginSelection, made: Mapping[str, Plugin], gates: Mapping[str, bool]
) -> framework.SchedulerProfile:
    points: dict[PluginMethod, list[Plugin]] = {}
    for point in EXTENSION_POINTS:
        here = [made[name] for name in found.points[point.name]]
        for method in point.methods:
            points[method] = [p for p in here if overrides(p, method)]
    for method in METHODS_OF_ANY_POINT:
        points[method] = [plugin for plugin in made.values() if overrides(plugin, method)]
    return framework.SchedulerProfile(
        profile.scheduler_name or "",
        points,
        found.weights,
        filters_without_nominated=not gates[SKIP_FILTER_WITH_NOMINATED_PODS],
        others=tuple(made.values()),
    )


def _check_common_queue_sort(config: KubeSchedulerConfiguration, selections: list[PluginSelection]) -> list[FieldError]:
    """Check that all profiles have the same queue sort plugin with the same arguments, since they share one queue."""
    (first,) = selections[0].points["queue_sort"]
    args = plugin_args(config.profiles[0], first)
    errors = []
    for index, (profile, found) in enumerate(zip(config.profiles, selections, strict=True)):
        (sort,) = found.points["queue_sort"]
        name = profile.scheduler_name
        if sort != first:
            rule = f'different queue sort plugins for profile "{name}": "{sort}", first: "{first}"'
            errors.append(FieldError(f"profiles[{index}].plugins.queueSort", [sort], rule))
        elif plugin_args(profile, sort) != args:
            entry = plugin_config_of(profile, sort)
            rule = f'different queue sort plugin args for profile "{name}"; those of the first profile are {args}'
            errors.append(FieldError(f"profiles[{index}].pluginConfig", entry.args if entry else None, rule))
    return errors
