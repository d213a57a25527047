"""This module is the scheduler of `koord up`: Kubernetes' and Koordinator's profiles side by side over one state."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from koord.api.config.field_error import FieldError
from koord.api.config.scheduler import shipped
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration, KubeSchedulerProfile, SchedulerPlugins
from koord.api.koordinator.protocol import SCHEDULER
from koord.cli.up.local_program import LocalProgram
from koord.embedded.cluster import ComponentContext
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import load_configuration
from koord.scheduler.configuration.unsupported import without_unsupported_plugins
from koord.scheduler.explain import http
from koord.scheduler.plugins.registry import ENTRY_POINT_GROUP, build_registry
from koord.scheduler.scheduler import Scheduler
from koord.telemetry.component_server import ComponentServer, ServiceRoutes

DEFAULT_SCHEDULER_NAME = "default-scheduler"


def default_configuration() -> KubeSchedulerConfiguration:
    """Return the default configuration: every schedulerName that a pod may have is served here."""
    given = shipped.configuration()
    same_queue = SchedulerPlugins(queue_sort=shipped.plugins().queue_sort)  # all profiles must say the same of it
    kubernetes = KubeSchedulerProfile(scheduler_name=DEFAULT_SCHEDULER_NAME, plugins=same_queue)
    return msgspec.structs.replace(given, profiles=(*given.profiles, kubernetes))


def scheduler_assembly(file: Path | None = None) -> CompletedConfig | str:
    """Assemble the scheduler from a file, taken as it is, or from the default without the plugins that are not
    built yet.
    """
    factories = build_registry(entry_points(group=ENTRY_POINT_GROUP))
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
    made = CompletedConfig.complete(config, factories)
    return _join_errors(file, made) if isinstance(made, list) else made


def missing_plugins() -> tuple[str, ...]:
    """Return Koordinator's plugins that the default configuration names and this version does not have."""
    return without_unsupported_plugins(default_configuration(), build_registry(entry_points(group=ENTRY_POINT_GROUP)))[
        1
    ]


def make_scheduler(context: ComponentContext, assembly: CompletedConfig | None = None) -> LocalProgram[Scheduler]:
    if assembly is None:
        found = scheduler_assembly()
        if isinstance(found, str):
            raise ValueError(found)
        assembly = found
    scheduler = Scheduler(context.client, context.informers, context.clock, assembly, seed=context.seed)
    endpoint = ComponentServer(context.clock)
    services = ServiceRoutes(endpoint)
    for path, handler in http.explain_routes(scheduler, context.clock):
        services.add("GET", path, handler)
    return LocalProgram(context, SCHEDULER, scheduler, endpoint)


def _join_errors(file: Path | None, errors: list[FieldError]) -> str:
    return "; ".join(f"{file}: {error}" if file is not None else str(error) for error in errors)
