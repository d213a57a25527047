"""Make plugins with given methods, and completed configurations of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koord.api.config.field_error import FieldError
from koord.api.config.scheduler.args import API_VERSION
from koord.api.config.scheduler.configuration import KIND
from koord.scheduler.assembly import Assembly, load
from koord.scheduler.assembly.rehearsal import BlankHandle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import Profile
from koord.scheduler.plugins.registry import REGISTRY, Factory


def plugin_class(name: str, *methods: str) -> type[Plugin]:
    """Make a plugin class that has these methods, and answers None to everything."""

    def answer(self: Plugin, *asked: Any) -> None:
        return None

    return type(name, (Plugin,), {"name": name, **dict.fromkeys(methods, answer)})


def factories(plugins: Mapping[str, Iterable[str]]) -> dict[str, Factory]:
    return {**REGISTRY, **{name: plugin_class(name, *methods) for name, methods in plugins.items()}}


def assembled(document: Mapping[str, Any], made: Mapping[str, Factory] = REGISTRY) -> Assembly | list[FieldError]:
    config = load({"apiVersion": API_VERSION, "kind": KIND, **document})
    assert not isinstance(config, list), config
    return Assembly.of(config, made)


def profiles(document: Mapping[str, Any], made: Mapping[str, Factory] = REGISTRY) -> tuple[Profile, ...]:
    assembly = assembled(document, made)
    assert isinstance(assembly, Assembly), assembly
    return assembly.profiles(BlankHandle())


def profile(plugins: Mapping[str, Any], made: Mapping[str, Factory] = REGISTRY) -> Profile:
    (found,) = profiles({"profiles": [{"plugins": plugins}]}, made)
    return found


def names(found: Profile, point: str) -> list[str]:
    return [plugin.name for plugin in found.at(point)]
