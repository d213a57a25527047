"""This module loads what installed packages offer under a group of entry points, in the same way for every program.

An offer that cannot be used is never silent and never ends a program by itself: it is described in a sentence that
names it. Whoever asked for it decides whether that is an error (a profile that enables it) or a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class PluginEntryPoint(Protocol):
    """PluginEntryPoint is an entry point: its name is the plugin's, its value is where that is defined."""

    @property
    def name(self) -> str: ...

    @property
    def value(self) -> str: ...

    def load(self) -> Any: ...


class LoadedEntryPoints(msgspec.Struct, Generic[T], frozen=True):
    """LoadedEntryPoints holds what was loaded, by name, and by name what is wrong with the rest.

    `warnings` are sentences for the log: one about each offer that is not used.
    """

    loaded: Mapping[str, T]
    broken: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def load_entry_points(
    offers: Iterable[PluginEntryPoint], built_in: Collection[str] = (), kind: type[Any] | None = None
) -> LoadedEntryPoints[Any]:
    """Load all offers. Nobody can replace what is `built_in`, and two packages cannot offer one name.

    With `kind` what is loaded must be an object of it; else it must be callable.
    """
    loaded: dict[str, Any] = {}
    broken: dict[str, str] = {}
    warnings: list[str] = []
    for offer in offers:
        whose = f"plugin {offer.name} of {offer.value}"
        if offer.name in built_in:
            warnings.append(f"{whose} is not used: koord has a plugin of this name")
            continue
        problem = (
            "two installed packages offer a plugin of this name" if offer.name in loaded or offer.name in broken else ""
        )
        try:
            found = offer.load()
        except Exception as error:  # noqa: BLE001 - whatever a stranger's module raises when it is imported
            problem = f"{type(error).__name__}: {error}"
        else:
            problem = problem or _unfit(found, kind)
        if problem:
            broken[offer.name] = f"{whose} cannot be used: {problem}"
            warnings.append(broken[offer.name])
            loaded.pop(offer.name, None)
        else:
            loaded[offer.name] = found
    return LoadedEntryPoints(loaded, broken, tuple(warnings))


def make_plugins(loaded: Mapping[str, Any], kind: Any, unlike: str) -> tuple[dict[str, Any], list[str]]:
    """Call what was loaded; return what it made of this kind, by name, and a sentence about each that is not used.

    `unlike` words what an object lacks that is not of the kind.
    """
    made: dict[str, Any] = {}
    warnings: list[str] = []
    for name, make in loaded.items():
        try:
            plugin = make()
        except Exception as error:  # noqa: BLE001 - whatever a stranger's class raises
            warnings.append(f"plugin {name} is not used: {type(error).__name__}: {error}")
            continue
        if isinstance(plugin, kind):
            made[name] = plugin
        else:
            warnings.append(f"plugin {name} is not used: {unlike}")
    return made, warnings


def _unfit(found: Any, kind: type[Any] | None) -> str:
    if kind is None:
        return "" if callable(found) else f"it is a {type(found).__name__}, and must be a class or a function"
    return "" if isinstance(found, kind) else f"it is a {type(found).__name__}, and must be a {kind.__name__}"
