"""This module is the scheduler of `koord up`: Kubernetes' and Koordinator's profiles side by side over one state."""

from __future__ import annotations

import yaml

from koord.api.koordinator.protocol import SCHEDULER
from koord.cli.scheduler_setup import scheduler_assembly
from koord.cli.up.local_program import LocalProgram
from koord.embedded.cluster import ComponentContext
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import dump_configuration
from koord.scheduler.explain import http
from koord.scheduler.scheduler import Scheduler
from koord.telemetry.component_server import ComponentServer, ServiceRoutes
from koord.telemetry.metrics import MetricRegistry


def make_scheduler(context: ComponentContext, assembly: CompletedConfig | None = None) -> LocalProgram[Scheduler]:
    if assembly is None:
        found = scheduler_assembly()
        if isinstance(found, str):
            raise ValueError(found)
        assembly = found
    registry = MetricRegistry()
    scheduler = Scheduler(
        context.client, context.informers, context.clock, assembly, seed=context.seed, registry=registry
    )
    endpoint = ComponentServer(context.clock)
    endpoint.metrics((registry,))
    shown = yaml.safe_load(dump_configuration(assembly))
    endpoint.config(lambda: shown)
    services = ServiceRoutes(endpoint)
    for path, handler in http.explain_routes(scheduler, context.clock):
        services.add("GET", path, handler)
    return LocalProgram(context, SCHEDULER, scheduler, endpoint)
