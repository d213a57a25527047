"""Strategies, runtime hooks and collectors of installed packages, which koordlet runs beside its own.

One that cannot be used, or that would write a file which another strategy owns, is named in the log and left out: a
node must not lose its agent over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from koord.api.config.entry_point import PluginEntryPoint, load_entry_points, make_plugins
from koord.koordlet.collect.collector import CollectorPlugin
from koord.koordlet.hooks.registry import HOOKS, HookEntry
from koord.koordlet.strategies.registry import STRATEGIES, StrategyEntry

STRATEGY_GROUP = "koord.koordlet.strategies"
HOOK_GROUP = "koord.koordlet.hooks"
COLLECTOR_GROUP = "koord.koordlet.collect"


class KoordletPlugins(msgspec.Struct, frozen=True, kw_only=True):
    strategies: tuple[StrategyEntry, ...] = ()
    hooks: tuple[HookEntry, ...] = ()
    collectors: tuple[CollectorPlugin, ...] = ()


def load_koordlet_plugins(
    offers: Callable[[str], Iterable[PluginEntryPoint]],
) -> tuple[KoordletPlugins, tuple[str, ...]]:
    """Load the plugins of all groups. `offers` returns the entry points of a group. Return a sentence for each that is
    left out.
    """
    strategies = load_entry_points(offers(STRATEGY_GROUP), [one.name for one in STRATEGIES], StrategyEntry)
    hooks = load_entry_points(offers(HOOK_GROUP), [one.name for one in HOOKS], HookEntry)
    makers = load_entry_points(offers(COLLECTOR_GROUP))
    warnings = [*strategies.warnings, *hooks.warnings, *makers.warnings]
    owned = {file: one.name for one in STRATEGIES for file in one.files}
    kept_strategies: list[StrategyEntry] = []
    kept_hooks: list[HookEntry] = []
    kept: list[Any]
    for found, kept in ((strategies.loaded, kept_strategies), (hooks.loaded, kept_hooks)):
        for name, one in found.items():
            problem = _name_problem(name, one.name) or _ownership_problem(one.files, owned)
            if problem:
                warnings.append(f"plugin {name} is not used: {problem}")
            else:
                owned.update(dict.fromkeys(one.files, name))
                kept.append(one)
    collectors, unused = make_plugins(
        makers.loaded, CollectorPlugin, "it has no name, period_s and sample(now_s, pods, store)"
    )
    warnings += unused
    plugins = KoordletPlugins(
        strategies=tuple(kept_strategies), hooks=tuple(kept_hooks), collectors=tuple(collectors.values())
    )
    return plugins, tuple(warnings)


def _name_problem(offered: str, own: str) -> str:
    return "" if offered == own else f"it is offered under another name than its own, which is {own}"


def _ownership_problem(files: Iterable[str], owned: dict[str, str]) -> str:
    taken = [f"{file} is written by {owned[file]}" for file in files if file in owned]
    return ", ".join(taken)
