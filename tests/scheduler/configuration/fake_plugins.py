"""Make plugins with given methods, and completed configurations of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koord.api.config.field_error import FieldError
from koord.api.config.scheduler.configuration import KIND
from koord.api.config.scheduler.in_tree_args import API_VERSION
from koord.scheduler.configuration.completed_config import CompletedConfig, ValidationHandle
from koord.scheduler.configuration.config_file import load_configuration
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.plugins.registry import REGISTRY, PluginFactory


def plugin_class(name: str, *methods: str) -> type[Plugin]:
    """Make a plugin class that has these methods, and answers None to everything."""

    def answer(self: Plugin, *asked: Any) -> None:
        return None

    return type(name, (Plugin,), {"name": name, **dict.fromkeys(methods, answer)})


def factories(plugins: Mapping[str, Iterable[str]]) -> dict[str, PluginFactory]:
    return {**REGISTRY, **{name: plugin_class(name, *methods) for name, methods in plugins.items()}}


def assembled(
    document: Mapping[str, Any], made: Mapping[str, PluginFactory] = REGISTRY
) -> CompletedConfig | list[FieldError]:
    config = load_configuration({"apiVersion": API_VERSION, "kind": KIND, **document})
    assert not isinstance(config, list), config
    return CompletedConfig.complete(config, made)


def profiles(document: Mapping[str, Any], made: Mapping[str, PluginFactory] = REGISTRY) -> tuple[SchedulerProfile, ...]:
    completed_config = assembled(document, made)
    assert isinstance(completed_config, CompletedConfig), completed_config
    return completed_config.make_profiles(ValidationHandle())


def profile(plugins: Mapping[str, Any], made: Mapping[str, PluginFactory] = REGISTRY) -> SchedulerProfile:
    (found,) = profiles({"profiles": [{"plugins": plugins}]}, made)
    return found


def names(found: SchedulerProfile, method: str) -> list[str]:
    return [plugin.name for plugin in found.plugins_at(getattr(Plugin, method))]
