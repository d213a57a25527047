"""This module selects the plugins of an extension point from defaults and a profile, and types plugins' arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.config.decode import decode_strict
from koord.api.config.field_error import FieldError, duplicate_errors, required_error
from koord.api.model import Model

ALL_PLUGINS = "*"
A = TypeVar("A", bound=Model)


class PluginEntry(Model, frozen=True, kw_only=True):
    name: str = ""
    weight: int | None = None  # score points only


class PluginSet(Model, frozen=True, kw_only=True):
    enabled: tuple[PluginEntry, ...] = ()
    disabled: tuple[PluginEntry, ...] = ()

    def disables(self, name: str) -> bool:
        return any(plugin.name in (name, ALL_PLUGINS) for plugin in self.disabled)


class PluginConfig(Model, frozen=True, kw_only=True):
    """PluginConfig is a plugin's arguments. They stay unstructured: their kind may be one that we do not know."""

    name: str = ""
    args: dict[str, Any] = {}


class PluginArgsKind(msgspec.Struct, Generic[A], frozen=True):
    """PluginArgsKind is the shape of a plugin's arguments: their model, defaults and validation."""

    model: type[A]
    defaulted: Callable[[Any], A] = lambda args: args
    validate: Callable[[Any], list[FieldError]] = lambda _: []

    def typed(
        self, plugin: str, raw: dict[str, Any] | None, api_version: str, mismatch: str = ""
    ) -> A | list[FieldError]:
        """Return the defaulted, validated arguments, or all errors. `mismatch` introduces that of another kind."""
        document = raw or {}
        errors = [
            FieldError(field, document[field], f"{mismatch}must be {wanted!r}")
            for field, wanted in (("apiVersion", api_version), ("kind", f"{plugin}Args"))
            if document.get(field, wanted) != wanted
        ]
        given = decode_strict(document, self.model)
        if isinstance(given, list):
            return errors + given
        args = self.defaulted(given)
        return (errors + self.validate(args)) or args


def enable_plugins(*names: str, **weights: int) -> PluginSet:
    """Make a set of enabled plugins in order, with weights where they matter."""
    return PluginSet(enabled=tuple(PluginEntry(name=name, weight=weights.get(name)) for name in names))


def merge_plugin_sets(defaults: PluginSet, custom: PluginSet) -> PluginSet:
    """Merge a custom set over the defaults: defaults that are not disabled keep their place, the rest follow.

    A name that is given twice stays twice, for validation to refuse.
    """
    replacing = {plugin.name: index for index, plugin in enumerate(custom.enabled)}
    kept = [p for p in defaults.enabled if not custom.disables(p.name)]
    placed = {replacing[p.name] for p in kept if p.name in replacing}
    return PluginSet(
        enabled=(
            *(custom.enabled[replacing[p.name]] if p.name in replacing else p for p in kept),
            *(plugin for index, plugin in enumerate(custom.enabled) if index not in placed),
        ),
        disabled=(*custom.disabled, *defaults.disabled),
    )


def expand_multi_point(
    multi_point: PluginSet, at_point: PluginSet, implements: Callable[[str], bool]
) -> tuple[PluginEntry, ...]:
    """Return the plugins of one extension point, in Kubernetes' order.

    First come those that both sets name, as the point orders them; then the others of the multi-point set that
    have this point and are not disabled at it; then the others that the point names. Where a point disables
    all, or disables a plugin that it names itself, the multi-point set has no say, not even about the order.
    """
    if at_point.disables(ALL_PLUGINS):
        return at_point.enabled
    spread = [p for p in multi_point.enabled if not at_point.disables(p.name) and implements(p.name)]
    everywhere = {plugin.name for plugin in spread}
    here = {plugin.name for plugin in at_point.enabled}
    return (
        *(plugin for plugin in at_point.enabled if plugin.name in everywhere),
        *(plugin for plugin in spread if plugin.name not in here),
        *(plugin for plugin in at_point.enabled if plugin.name not in everywhere),
    )


def validate_plugin_configs(configs: tuple[PluginConfig, ...], path: str) -> list[FieldError]:
    nameless = [required_error(f"{path}[{i}].name") for i, config in enumerate(configs) if not config.name]
    return nameless + duplicate_errors(path, (config.name for config in configs if config.name))
