"""This module assembles the scheduler of `koord up` and of dry runs, from a file or from Kubernetes' and Koordinator's
profiles.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from koord.api.config.field_error import FieldError
from koord.api.config.scheduler import configuration
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration, KubeSchedulerProfile
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import load_configuration
from koord.scheduler.configuration.plugin_selection import profiles_without_koordinator, without_unsupported_plugins
from koord.scheduler.plugins.registry import ENTRY_POINT_GROUP, PluginFactory, load_plugins

_LOG = logging.getLogger(__name__)
_WARNED: set[str] = set()

DEFAULT_SCHEDULER_NAME = "default-scheduler"


def default_configuration() -> KubeSchedulerConfiguration:
    """Return the default configuration: every schedulerName that a pod may have is served here."""
    given = configuration.configuration()
    kubernetes = KubeSchedulerProfile(
        scheduler_name=DEFAULT_SCHEDULER_NAME, plugins=configuration.reservation_plugins()
    )
    return msgspec.structs.replace(given, profiles=(*given.profiles, kubernetes))


def plugin_registry() -> Mapping[str, PluginFactory]:
    """Return the built-in plugins and those of installed packages; warn once of what cannot be used."""
    loaded = load_plugins(entry_points(group=ENTRY_POINT_GROUP))
    for warning in loaded.warnings:
        if warning not in _WARNED:
            _WARNED.add(warning)
            _LOG.warning("%s", warning)
    return loaded.factories


def scheduler_assembly(file: Path | None = None, gates: Mapping[str, bool] | None = None) -> CompletedConfig | str:
    """Assemble the scheduler from a file, taken as it is, or from the default without the plugins that are not
    built yet. A feature gate that `gates` does not name has its default.
    """
    factories = plugin_registry()
    if file is None:
        config, _ = without_unsupported_plugins(default_configuration(), factories)
    else:
        try:
            read = load_configuration(file.read_text())
        except OSError as error:
            return f"cannot read {file}: {error.strerror}"
        if isinstance(read, list):
            return _join_errors(file, read)
        config = read
    made = CompletedConfig.complete(config, factories, gates)
    if isinstance(made, list):
        return _join_errors(file, made)
    if file is not None:
        for warning in profiles_without_koordinator(config):
            _LOG.warning("%s", warning)
    return made


def missing_plugins() -> tuple[str, ...]:
    """Return Koordinator's plugins that the default configuration names and this version does not have."""
    return without_unsupported_plugins(default_configuration(), plugin_registry())[1]


def _join_errors(file: Path | None, errors: list[FieldError]) -> str:
    return "; ".join(f"{file}: {error}" if file is not None else str(error) for error in errors)
