"""This module is the koord-scheduler program: its command line, and what it serves beside every controller process."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from koord.cli.daemons import startup
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.lifecycle import report_errors, run_event_loop, run_program, set_verbosity
from koord.cli.daemons.scheduler_config import (
    SCHEDULER_PROGRAM,
    SchedulerConfigured,
    scheduler_configuration,
    scheduler_flags,
)
from koord.cli.daemons.serving_flags import FlagError, plain_addresses
from koord.kube.config.connection import BadConfig
from koord.kube.controller.process import ControllerProcess, ProcessSettings, process_identity
from koord.scheduler import resource_metrics
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import dump_configuration
from koord.scheduler.explain import http
from koord.scheduler.scheduler import Scheduler
from koord.scheduler.scheduler_monitor import AttemptDump, SchedulerMonitorSettings
from koord.scheduler.sync_barrier import SyncBarrierSettings
from koord.telemetry import component_server, metrics
from koord.telemetry.clock import WallClock
from koord.telemetry.component_server import ServiceRoutes
from koord.telemetry.http_routing import HttpCall, HttpReply
from koord.telemetry.logs import Logs

_NOT_LEADER = "the instance is not leader"


def main() -> None:
    """Run the console script."""
    sys.exit(run_program(scheduler_flags(), sys.argv[1:], lambda values, logs: run_scheduler(values, logs, os.environ)))


def run_scheduler(values: FlagValues, logs: Logs, environ: Mapping[str, str]) -> int:
    """Run the scheduler and return the exit code. What is wrong is printed, one line each."""
    ready = startup.settle_configuration(scheduler_flags(), values, scheduler_configuration)
    if isinstance(ready, int):
        return ready
    config = ready.assembly
    if values.text("write-config-to"):
        return startup.write_config(SCHEDULER_PROGRAM, dump_configuration(config), Path(values.text("write-config-to")))
    stand = startup.bootstrap(SCHEDULER_PROGRAM, values, environ, config.config.client_connection.kubeconfig)
    if isinstance(stand, FlagError):
        return report_errors(SCHEDULER_PROGRAM, [stand.message])
    settings = _process_settings(values, stand, config)
    return run_event_loop(lambda stop: serve_scheduler(settings, ready, values, logs, stop))


async def serve_scheduler(
    settings: ProcessSettings, configured: SchedulerConfigured, values: FlagValues, logs: Logs, stop: asyncio.Event
) -> int:
    process = ControllerProcess(settings, WallClock())
    try:
        scheduler = _make_scheduler(process, settings, configured, values)
    except BadConfig as bad:
        return report_errors(SCHEDULER_PROGRAM, [str(bad)])
    process.on_malformed = scheduler.report_malformed
    _serve_routes(process, scheduler, configured.assembly, logs)
    return await startup.run_process(process, scheduler, stop)


def _make_scheduler(
    process: ControllerProcess, settings: ProcessSettings, configured: SchedulerConfigured, values: FlagValues
) -> Scheduler:
    """Make the scheduler. Raise BadConfig for an extender whose certificates cannot be used."""
    config = configured.assembly
    return Scheduler(
        process.client,
        process.informers,
        process.clock,
        config,
        seed=secrets.randbits(32),
        instance=f"{SCHEDULER_PROGRAM}-{settings.identity}",
        registry=settings.registry,
        monitor=SchedulerMonitorSettings(
            period_s=values.seconds("scheduler-monitor-period"),
            timeout_s=values.seconds("scheduling-timeout"),
            drop_unhandled_s=values.seconds("scheduling-drop-unhandled-timeout"),
        ),
        max_unschedulable_s=values.seconds("pod-max-in-unschedulable-pods-duration"),
        controller_plugins=values.strings("controller-plugins"),
        network_topology_manager=values.switch("enable-network-topology-manager"),
        sync_barrier=sync_barrier_settings(values, config),
        dump=AttemptDump(
            top_scores=values.number("debug-scores"),
            filters=values.switch("debug-filters"),
            diagnosis=values.switch("debug-diagnosis"),
        ),
        auditor=configured.auditor,
    )


def sync_barrier_settings(values: FlagValues, config: CompletedConfig) -> SyncBarrierSettings:
    return SyncBarrierSettings(
        namespace=values.text("sync-barrier-pod-namespace"),
        name=values.text("sync-barrier-pod-name"),
        lease=config.config.leader_election.resource_name,
        timeout_s=values.seconds("sync-hard-timeout"),
    )


def _process_settings(values: FlagValues, stand: startup.Bootstrap, config: CompletedConfig) -> ProcessSettings:
    given, identity = config.config, process_identity()
    return ProcessSettings(
        name=SCHEDULER_PROGRAM,
        user_agent=SCHEDULER_PROGRAM,
        connection=stand.connection,
        qps=given.client_connection.qps,
        burst=given.client_connection.burst,
        identity=identity,
        lease=startup.lease_config(given.leader_election, identity),
        addresses=(*plain_addresses(values.text("address"), values.number("port")), *stand.secure_addresses),
        registry=stand.registry,
        delay_cache_until_leading=given.delay_cache_until_active,
    )


def _serve_routes(process: ControllerProcess, scheduler: Scheduler, config: CompletedConfig, logs: Logs) -> None:
    def synced() -> str | None:
        return None if scheduler.ready else "waiting for handlers to sync"

    async def resources(_: HttpCall) -> HttpReply:
        """Serve resource metrics; empty while another replica leads, so that a sum over replicas counts each once."""
        pods = scheduler.event_handlers.pods
        body = await resource_metrics.render_resource_metrics(pods.list()) if process.leads() else b""
        return HttpReply(body=body, content_type=metrics.TEXT_CONTENT_TYPE)

    server, elected = process.server, process.election_checks()
    server.health("healthz", elected or {"ping": component_server.ping})
    server.health("livez", {"ping": component_server.ping})
    server.health("readyz", {**elected, "shutdown": process.not_stopping, "sched-handler-sync": synced})
    server.metrics([process.settings.registry])
    server.routes.add("GET", "/metrics/resources", resources)
    server.config(lambda: yaml.safe_load(dump_configuration(config)))  # not at the start: it takes some milliseconds
    if config.config.enable_profiling is not False:
        server.debug()
    server.slis()
    server.flag("v", lambda text: set_verbosity(logs, text))
    server.flag("s", scheduler.dump.put_top_scores)
    server.flag("f", scheduler.dump.put_filters)
    server.flag("d", scheduler.dump.put_diagnosis)
    server.flag("db", scheduler.dump.put_blocking)
    services = ServiceRoutes(server, unavailable=lambda: None if process.leads() else _NOT_LEADER)
    for path, handler in http.explain_routes(scheduler, process.clock):
        services.add("GET", path, handler)


if __name__ == "__main__":
    main()
