"""This module is the koord-manager program: controllers and webhooks against any API server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys

from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.lifecycle import report_errors, run_event_loop, run_program, set_verbosity
from koord.cli.daemons.manager_flags import MANAGER_FLAGS, MANAGER_PROGRAM, ManagerPlan, plan_manager
from koord.cli.daemons.startup import run_process
from koord.kube.config.connection import BadConfig, Connection
from koord.kube.config.loader import load_connection
from koord.kube.controller.process import ControllerProcess, ListenAddress, ProcessSettings, process_identity
from koord.kube.events.recorder import EventRecorder
from koord.kube.leader_election import LeaseConfig
from koord.manager import program
from koord.manager.feature_gates import manager_gate_warnings
from koord.manager.program import LEASE_NAME, Manager, register_transforms
from koord.manager.reconcile_loop import ManagerContext
from koord.telemetry import component_server
from koord.telemetry.clock import Clock, WallClock
from koord.telemetry.logs import Logs
from koord.telemetry.metrics import MetricRegistry

_LOG = logging.getLogger(__name__)

USER_AGENT = "koordinator-manager"
SYNC_TIMEOUT_S = 60.0


def run() -> None:
    sys.exit(run_program(MANAGER_FLAGS, sys.argv[1:], run_manager))


def run_manager(values: FlagValues, logs: Logs) -> int:
    hostname = socket.gethostname()
    plan = plan_manager(values, os.environ, hostname)
    if isinstance(plan, str):
        return report_errors(MANAGER_PROGRAM, [plan])
    for name, why in MANAGER_FLAGS.set_without_effect(values):
        _LOG.info("--%s has no effect: %s", name, why)
    for line in (*manager_gate_warnings(plan.settings.gates), *plan.wishes.plugins.warnings):
        _LOG.warning("--feature-gates: %s", line)
    try:
        connection = load_connection(os.environ, WallClock(), path=plan.kubeconfig)
    except BadConfig as wrong:
        return report_errors(MANAGER_PROGRAM, [str(wrong)])
    return run_event_loop(lambda stop: serve_manager(plan, connection, logs, stop))


async def serve_manager(
    plan: ManagerPlan, connection: Connection, logs: Logs, stop: asyncio.Event, clock: Clock | None = None
) -> int:
    process, manager = build_manager(plan, connection, clock or WallClock())
    _serve_routes(process, manager, logs)
    return await run_process(process, manager, stop)


def build_manager(plan: ManagerPlan, connection: Connection, clock: Clock) -> tuple[ControllerProcess, Manager]:
    process = ControllerProcess(_process_settings(plan, connection), clock)
    register_transforms(process.informers, plan.settings)
    recorder = EventRecorder(
        process.client, process.clock, controller=MANAGER_PROGRAM, instance=f"{MANAGER_PROGRAM}-{plan.hostname}"
    )
    context = ManagerContext(
        client=process.client,
        informers=process.informers,
        clock=process.clock,
        recorder=recorder,
        settings=plan.settings,
    )
    manager = Manager(
        context,
        plan.wishes,
        registry=process.settings.registry,
        webhook_client=process.unfenced_client(),
        serving=plan.serving,
        leads=process.may_write,
    )
    return process, manager


def _process_settings(plan: ManagerPlan, connection: Connection) -> ProcessSettings:
    identity = process_identity(plan.hostname)
    lease = LeaseConfig(name=LEASE_NAME, namespace=plan.lease_namespace, identity=identity) if plan.elects else None
    addresses = [ListenAddress(host=place[0], port=place[1]) for place in (plan.metrics,) if place is not None]
    if plan.health is not None:
        addresses.append(ListenAddress(host=plan.health[0], port=plan.health[1], is_health=True))
    return ProcessSettings(
        name=MANAGER_PROGRAM,
        user_agent=USER_AGENT,
        connection=connection,
        qps=plan.qps,
        burst=plan.burst,
        identity=identity,
        lease=lease,
        addresses=tuple(addresses),
        registry=MetricRegistry(),
        sync_timeout_s=SYNC_TIMEOUT_S,
    )


def _serve_routes(process: ControllerProcess, manager: Manager, logs: Logs) -> None:
    # Upstream has two registries and a merged view. There is one here, and every path shows all of it.
    for path in ("/metrics", "/internal-metrics", "/external-metrics", "/all-metrics"):
        process.server.metrics((manager.registry,), path)
    program.serve_explanations(process.server, manager, process.may_write)
    process.server.flag("v", lambda text: set_verbosity(logs, text))
    alive: dict[str, component_server.HealthCheck] = {"ping": component_server.ping}
    ready = {**alive, "informer-sync": process.informers_synced}
    if manager.webhook_serving is not None:
        ready["webhook-ready"] = manager.webhook_serving.check_ready
    process.health_server.health("healthz", alive)
    process.health_server.health("readyz", ready)


if __name__ == "__main__":
    run()
