"""Select the plugins of one profile at each extension point, with order, weight and arguments, or say what is wrong."""

from __future__ import annotations

from typing import Any

from koord.api.config.plugin_set import PluginConfig
from koord.api.config.scheduler.catalog import CATALOG, typed_args
from koord.api.config.scheduler.configuration import Profile


def entry_of(profile: Profile, name: str) -> PluginConfig | None:
    return next((entry for entry in profile.plugin_config if entry.name == name), None)


def plugin_args(profile: Profile, name: str) -> Any:
    """Return a plugin's arguments, typed and complete where their type is known; else as in the file, None for none."""
    entry = entry_of(profile, name)
    if name not in CATALOG:
        return entry.args if entry is not None and entry.args else None
    args = typed_args(name, entry.args if entry is not None else None)
    if isinstance(args, list):
        raise ValueError("; ".join(map(str, args)))
    return args
