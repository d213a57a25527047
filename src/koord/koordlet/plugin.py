"""Strategies, runtime hooks and collectors of installed packages, which koordlet runs beside its own.

One that cannot be used, or that would write a file which another strategy owns, is named in the log and left out: a
node must not lose its agent over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from koord.api.config.entry_point import PluginEntryPoint, load_entry_points, make_plugins
from koord.koordlet.collect.collector import CollectorPlugin
from koord.koordlet.hooks.hook import HookSettings
from koord.koordlet.hooks.registry import HOOKS, HookEntry
from koord.koordlet.strategies import runtime_hooks
from koord.koordlet.strategies.registry import STRATEGIES, StrategyEntry

STRATEGY_GROUP = "koord.koordlet.strategies"
HOOK_GROUP = "koord.koordlet.hooks"
COLLECTOR_GROUP = "koord.koordlet.collect"


_NO_COLLECTOR = "it has no name, period_s and sample(now_s, pods, store)"


class KoordletPlugins(msgspec.Struct, frozen=True, kw_only=True):
    """KoordletPlugins is what other packages bring. `collectors` are those of one agent, made by `collector_makers`,
    which have names.
    """

    strategies: tuple[StrategyEntry, ...] = ()
    hooks: tuple[HookEntry, ...] = ()
    collectors: tuple[CollectorPlugin, ...] = ()
    collector_makers: Mapping[str, Callable[[], CollectorPlugin]] = {}

    def all_strategies(self) -> tuple[StrategyEntry, ...]:
        """Return koordlet's strategies and those of other packages. The one that reconciles hooks also undoes their
        hooks' files.
        """
        names = tuple(hook.name for hook in self.hooks if hook.files)
        files = tuple(file for hook in self.hooks for file in hook.files)
        own = (
            msgspec.structs.replace(one, restores=(*one.restores, *names), files=(*one.files, *files))
            if one.name == runtime_hooks.NAME and names
            else one
            for one in STRATEGIES
        )
        return (*own, *self.strategies)

    def with_hooks(self, settings: HookSettings) -> HookSettings:
        return msgspec.structs.replace(settings, plugins=self.hooks) if self.hooks else settings

    def for_another_agent(self) -> tuple[KoordletPlugins, tuple[str, ...]]:
        """Return the plugins for another agent of this process, and a sentence for each that is left out. A collector
        keeps what it saw of one node, so each agent has its own.
        """
        if not self.collector_makers:
            return self, ()
        made, warnings = make_plugins(self.collector_makers, CollectorPlugin, _NO_COLLECTOR)
        return msgspec.structs.replace(self, collectors=tuple(made.values())), tuple(warnings)


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
    collectors, unused = make_plugins(makers.loaded, CollectorPlugin, _NO_COLLECTOR)
    warnings += unused
    plugins = KoordletPlugins(
        strategies=tuple(kept_strategies),
        hooks=tuple(kept_hooks),
        collectors=tuple(collectors.values()),
        collector_makers={name: makers.loaded[name] for name in collectors},
    )
    return plugins, tuple(warnings)


def _name_problem(offered: str, own: str) -> str:
    return "" if offered == own else f"it is offered under another name than its own, which is {own}"


def _ownership_problem(files: Iterable[str], owned: dict[str, str]) -> str:
    taken = [f"{file} is written by {owned[file]}" for file in files if file in owned]
    return ", ".join(taken)
