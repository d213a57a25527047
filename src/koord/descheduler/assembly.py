"""The configuration of the descheduler: loading, building of profiles and plugins, field errors and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koord.api.config.descheduler.catalog import CATALOG, typed_args
from koord.api.config.descheduler.configuration import DeschedulerConfiguration, Plugins, defaulted, validate
from koord.api.config.descheduler.configuration import Profile as ProfileConfig
from koord.api.config.document import load as load_document
from koord.api.config.field_error import FieldError
from koord.descheduler.framework.limit import Limits
from koord.descheduler.framework.plugin import Plugin, overrides
from koord.descheduler.framework.profile import Profile
from koord.descheduler.plugins.choice import selector_of
from koord.descheduler.plugins.registry import REGISTRY, Factory
from koord.values import duration
from koord.values.selector import Selector

# Point -> its name in messages, and the methods that take part in it.
POINTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "deschedule": ("DeschedulePlugin", ("deschedule",)),
    "balance": ("BalancePlugin", ("balance",)),
    "evict": ("EvictPlugin", ("evicts",)),
    "filter": ("FilterPlugin", ("refuses", "refuses_now")),
}


class Assembly(msgspec.Struct, frozen=True, kw_only=True):
    """A completed configuration with the profiles of built plugins."""
    config: DeschedulerConfiguration  # completed
    profiles: tuple[Profile, ...]
    limits: Limits
    nodes: Selector | None
    interval_s: float  # 0: one pass, then only what runs in the background

    def plugins(self) -> tuple[Plugin, ...]:
        """Return every plugin instance once."""
        found: dict[int, Plugin] = {}
        for profile in self.profiles:
            for plugin in (profile.evict, *profile.filter, *profile.deschedule, *profile.balance):
                found[id(plugin)] = plugin
        return tuple(found.values())


def load(document: Any) -> DeschedulerConfiguration | list[FieldError]:
    """Load a configuration strictly from plain data, without defaults."""
    return load_document(document if document is not None else {}, DeschedulerConfiguration)


def assemble(
    given: DeschedulerConfiguration, factories: Mapping[str, Factory] = REGISTRY
) -> Assembly | list[FieldError]:
    config = defaulted(given)
    errors = validate(config)
    if errors:
        return errors
    interval_s = duration.parse_seconds(config.descheduling_interval)
    profiles = []
    for index, one in enumerate(config.profiles):
        made = _profile(one, f"profiles[{index}]", factories, interval_s)
        if isinstance(made, list):
            errors += made
        else:
            profiles.append(made)
    if errors:
        return errors
    return Assembly(
        config=config,
        profiles=tuple(profiles),
        limits=Limits(
            per_node=config.max_no_of_pods_to_evict_per_node,
            per_namespace=config.max_no_of_pods_to_evict_per_namespace,
            total=config.max_no_of_pods_to_evict_total,
        ),
        nodes=selector_of(config.node_selector),
        interval_s=interval_s,
    )


def _profile(
    config: ProfileConfig, path: str, factories: Mapping[str, Factory], interval_s: float
) -> Profile | list[FieldError]:
    plugins = config.plugins or Plugins()
    errors: list[FieldError] = []
    made: dict[str, Plugin] = {}
    held: dict[str, list[Plugin]] = {point: [] for point in POINTS}
    for point, (interface, methods) in POINTS.items():
        for index, named in enumerate(getattr(plugins, point).enabled):
            where = f"{path}.plugins.{point}.enabled[{index}].name"
            if named.name not in factories:
                rule = f'{interface} "{named.name}" does not exist; known are {", ".join(sorted(factories))}'
                errors.append(FieldError(where, named.name, rule))
                continue
            plugin = made.get(named.name) or _made(named.name, config, path, factories, interval_s)
            if isinstance(plugin, list):
                errors += plugin
                continue
            if not any(overrides(plugin, method) for method in methods):
                rule = f'plugin "{named.name}" does not extend {interface} plugin'
                errors.append(FieldError(where, named.name, rule))
                continue
            if plugin in held[point]:
                errors.append(FieldError(where, named.name, f'plugin "{named.name}" already registered as {interface}'))
                continue
            made[named.name] = plugin
            held[point].append(plugin)
    if errors:
        return errors
    return Profile(
        name=config.name,
        evict=held["evict"][0],
        filter=tuple(held["filter"]),
        deschedule=tuple(held["deschedule"]),
        balance=tuple(held["balance"]),
        nodes=selector_of(config.node_selector),
    )


def _made(
    name: str, config: ProfileConfig, path: str, factories: Mapping[str, Factory], interval_s: float
) -> Plugin | list[FieldError]:
    index, raw = next(
        ((i, entry.args) for i, entry in enumerate(config.plugin_config) if entry.name == name), (-1, None)
    )
    where = f"{path}.pluginConfig[{index}].args" if index >= 0 else f"{path}.plugins ({name})"
    args: Any = raw
    if name in CATALOG:
        args = typed_args(name, raw)
        if isinstance(args, list):
            return [FieldError(f"{where}.{error.field}", error.value, error.rule) for error in args]
        args = _lasting(args, interval_s)
    made = factories[name](args)
    return [FieldError(where, raw, words) for words in made] if isinstance(made, list) else made


def _lasting(args: Any, interval_s: float) -> Any:
    """Make marks of anomalies outlive the interval between rounds, or nothing would ever be moved."""
    kept = getattr(args, "detector_cache_timeout", None)
    if kept is None or duration.parse_seconds(kept) >= interval_s:
        return args
    return msgspec.structs.replace(args, detector_cache_timeout=duration.text(duration.from_seconds(interval_s)))
