"""This module is the koord-descheduler program: rounds and migrations against any API server."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import yaml

from koord.api.model import to_dict
from koord.cli.daemons import startup
from koord.cli.daemons.descheduler_config import (
    DESCHEDULER_PROGRAM,
    DeschedulerConfigured,
    descheduler_configuration,
    descheduler_flags,
)
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.lifecycle import report_errors, run_event_loop, run_program, set_verbosity
from koord.cli.daemons.serving_flags import FlagError, plain_addresses
from koord.descheduler.configuration import DeschedulerSetup
from koord.descheduler.context import DeschedulerContext, DeschedulerMetrics
from koord.descheduler.explain import service
from koord.descheduler.program import Descheduler
from koord.descheduler.snapshot_source import register_transforms
from koord.kube.controller.process import ControllerProcess, ListenAddress, ProcessSettings, process_identity
from koord.kube.events.recorder import EventRecorder
from koord.telemetry import component_server
from koord.telemetry.clock import WallClock
from koord.telemetry.logs import Logs


def main() -> None:
    """Run the console script."""
    sys.exit(
        run_program(descheduler_flags(), sys.argv[1:], lambda values, logs: run_descheduler(values, logs, os.environ))
    )


def run_descheduler(values: FlagValues, logs: Logs, environ: Mapping[str, str]) -> int:
    """Run the descheduler and return the exit code. What is wrong is printed, one line each."""
    ready = startup.settle_configuration(descheduler_flags(), values, descheduler_configuration)
    if isinstance(ready, int):
        return ready
    if values.text("write-config-to"):
        return startup.write_config(
            DESCHEDULER_PROGRAM, configuration_yaml(ready.assembly), Path(values.text("write-config-to"))
        )
    stand = startup.bootstrap(DESCHEDULER_PROGRAM, values, environ, ready.assembly.config.client_connection.kubeconfig)
    if isinstance(stand, FlagError):
        return report_errors(DESCHEDULER_PROGRAM, [stand.message])
    settings = _process_settings(stand, ready.assembly)
    return run_event_loop(lambda stop: serve_descheduler(settings, ready, logs, stop))


def configuration_yaml(assembly: DeschedulerSetup) -> str:
    return yaml.safe_dump(to_dict(assembly.config), sort_keys=False)


async def serve_descheduler(
    settings: ProcessSettings, configured: DeschedulerConfigured, logs: Logs, stop: asyncio.Event
) -> int:
    process = ControllerProcess(settings, WallClock())
    register_transforms(process.informers)
    recorder = EventRecorder(
        process.client,
        process.clock,
        controller=DESCHEDULER_PROGRAM,
        instance=f"{DESCHEDULER_PROGRAM}-{settings.identity}",
    )
    context = DeschedulerContext(
        client=process.client,
        informers=process.informers,
        clock=process.clock,
        recorder=recorder,
        metrics=DeschedulerMetrics(settings.registry),
        identity=str(uuid.uuid4()),
        gates=configured.gates,
    )
    descheduler = Descheduler(context, configured.assembly)
    _serve_routes(process, descheduler, logs)
    return await startup.run_process(process, descheduler, stop)


def _process_settings(stand: startup.Bootstrap, setup: DeschedulerSetup) -> ProcessSettings:
    given, identity = setup.config, process_identity()
    return ProcessSettings(
        name=DESCHEDULER_PROGRAM,
        user_agent=DESCHEDULER_PROGRAM,
        connection=stand.connection,
        qps=given.client_connection.qps,
        burst=given.client_connection.burst,
        identity=identity,
        lease=startup.lease_config(given.leader_election, identity),
        addresses=(*_plain_addresses(setup), *stand.secure_addresses),
        registry=stand.registry,
        delay_cache_until_leading=True,
    )


def _plain_addresses(setup: DeschedulerSetup) -> tuple[ListenAddress, ...]:
    found: list[ListenAddress] = []
    for place in dict.fromkeys((setup.config.healthz_bind_address or "", setup.config.metrics_bind_address or "")):
        host, _, port = place.rpartition(":")
        found += plain_addresses(host.strip("[]"), int(port))
    return tuple(found)


def _serve_routes(process: ControllerProcess, descheduler: Descheduler, logs: Logs) -> None:
    server = process.server
    server.health("healthz", process.election_checks() or {"ping": component_server.ping})
    server.metrics([process.settings.registry])
    shown = yaml.safe_load(configuration_yaml(descheduler.setup))
    server.config(lambda: shown)
    if descheduler.setup.config.enable_profiling is not False:
        server.debug()
    server.flag("v", lambda text: set_verbosity(logs, text))
    service.serve_explanations(server, descheduler, process.leads)


if __name__ == "__main__":
    main()
