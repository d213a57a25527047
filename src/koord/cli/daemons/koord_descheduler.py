"""This module is the koord-descheduler program: rounds and migrations against any API server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from koord.api.model import to_dict
from koord.cli.daemons.descheduler_config import (
    DESCHEDULER_PROGRAM,
    DeschedulerConfigured,
    descheduler_configuration,
    descheduler_flags,
)
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.lifecycle import report_errors, run_event_loop, run_program, set_verbosity
from koord.cli.daemons.serving_flags import FlagError, SecurePortGuard, guard_from_flags
from koord.cli.daemons.startup import bootstrap, lease_config, settle_configuration, write_config
from koord.descheduler.configuration import DeschedulerSetup
from koord.descheduler.context import DeschedulerContext, DeschedulerMetrics
from koord.descheduler.explain import service
from koord.descheduler.informer_transforms import register_transforms
from koord.descheduler.program import Descheduler
from koord.kube.client.typed_client import Client
from koord.kube.config.connection import Connection
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.leader.election import LeaderElector
from koord.kube.transport.http import HttpTransport
from koord.kube.transport.wrappers import FencedTransport
from koord.telemetry import component_server, gc_tuning
from koord.telemetry.clock import WallClock
from koord.telemetry.component_server import ComponentServer, HealthCheck
from koord.telemetry.logs import Logs
from koord.telemetry.metrics.process import register_process_metrics
from koord.telemetry.metrics.registry import MetricRegistry
from koord.telemetry.serving_certificate import ServingCertificate

_LOG = logging.getLogger("koord.cli.daemons.koord_descheduler")  # by name: as a script this module is called __main__

EXIT_LEASE_LOST = 1
SYNC_WARNING_INTERVAL_S = 30.0  # how often a start that gets no answers says so


class DeschedulerProcessPlan(msgspec.Struct, frozen=True, kw_only=True):
    """DeschedulerProcessPlan is everything that was settled before the first connection."""

    values: FlagValues
    logs: Logs
    configured: DeschedulerConfigured
    connection: Connection
    registry: MetricRegistry
    certificate: ServingCertificate | None
    environ: Mapping[str, str]


def main() -> None:
    """Run the console script."""
    sys.exit(
        run_program(descheduler_flags(), sys.argv[1:], lambda values, logs: run_descheduler(values, logs, os.environ))
    )


def run_descheduler(values: FlagValues, logs: Logs, environ: Mapping[str, str]) -> int:
    """Run the descheduler and return the exit code. What is wrong is printed, one line each."""
    ready = settle_configuration(descheduler_flags(), values, descheduler_configuration)
    if isinstance(ready, int):
        return ready
    if values.text("write-config-to"):
        return write_config(
            DESCHEDULER_PROGRAM, configuration_yaml(ready.assembly), Path(values.text("write-config-to"))
        )
    stand = bootstrap(DESCHEDULER_PROGRAM, values, environ, ready.assembly.config.client_connection.kubeconfig)
    if isinstance(stand, FlagError):
        return report_errors(DESCHEDULER_PROGRAM, [stand.message])
    plan = DeschedulerProcessPlan(
        values=values,
        logs=logs,
        configured=ready,
        connection=stand.connection,
        registry=stand.registry,
        certificate=stand.certificate,
        environ=environ,
    )
    return run_event_loop(lambda stop: DeschedulerProcess(plan).run(stop))


def configuration_yaml(assembly: DeschedulerSetup) -> str:
    return yaml.safe_dump(to_dict(assembly.config), sort_keys=False)


class DeschedulerProcess:
    """DeschedulerProcess is one run: ports, then the lease, then watching and work; a standby only waits."""

    def __init__(self, plan: DeschedulerProcessPlan) -> None:
        self._plan = plan
        self._clock = WallClock()
        self._leads = False
        hostname = socket.gethostname()
        self.identity = f"{hostname}_{uuid.uuid4()}"
        self._client = self._connect(fenced=True)
        self._lease_client = self._connect()  # renewals must not queue behind the work
        self._informers = InformerFactory(self._client, self._clock)
        register_transforms(self._informers)
        self._recorder = EventRecorder(
            self._client, self._clock, controller=DESCHEDULER_PROGRAM, instance=f"{DESCHEDULER_PROGRAM}-{self.identity}"
        )
        register_process_metrics(plan.registry)
        world = DeschedulerContext(
            client=self._client,
            informers=self._informers,
            clock=self._clock,
            recorder=self._recorder,
            metrics=DeschedulerMetrics(plan.registry),
            identity=str(uuid.uuid4()),
            gates=plan.configured.gates,
        )
        self._descheduler = Descheduler(world, plan.configured.assembly)
        self._election = self._build_elector()
        self._endpoint = self._build_endpoint()

    async def run(self, stop: asyncio.Event) -> int:
        guarded: SecurePortGuard | None = None
        ending = asyncio.create_task(stop.wait(), name="signal")
        try:
            listening = await self._listen()
            if isinstance(listening, str):
                return report_errors(DESCHEDULER_PROGRAM, [listening])
            guarded = listening
            working = asyncio.create_task(self._run_until_leadership_ends(), name=DESCHEDULER_PROGRAM)
            await asyncio.wait({ending, working}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return 0
        finally:
            ending.cancel()
            await self._close(guarded)

    async def _run_until_leadership_ends(self) -> int:
        if self._election is None:
            await self._lead()
            return EXIT_LEASE_LOST
        if await self._election.run() == "lost":
            _LOG.critical("lost lease")
        return EXIT_LEASE_LOST

    async def _lead(self) -> None:
        self._leads = True
        self._recorder.start()
        self._informers.start()
        try:
            while True:
                try:
                    await self._informers.wait_for_cache_sync(SYNC_WARNING_INTERVAL_S)
                    break
                except TimeoutError as late:
                    _LOG.warning("still waiting for first lists: %s", late)
            gc_tuning.freeze_after_startup()
            await self._descheduler.lead()
        finally:
            self._leads = False

    async def _close(self, guarded: SecurePortGuard | None) -> None:
        await self._informers.stop()
        await self._recorder.stop()
        await self._endpoint.close()
        if guarded is not None:
            await guarded.close()
        for client in (self._client, self._lease_client):
            await client.close()

    # Parts -------------------------------------------------------------------------------------------------------

    def _connect(self, *, fenced: bool = False) -> Client:
        given = self._plan.configured.assembly.config.client_connection
        inner = HttpTransport(self._plan.connection, self._clock)
        transport = FencedTransport(inner, self._may_write) if fenced else inner
        return Client(transport, clock=self._clock, qps=given.qps, burst=given.burst, user_agent=DESCHEDULER_PROGRAM)

    def _may_write(self) -> bool:
        return self._election is None or self._election.is_leading

    def _build_elector(self) -> LeaderElector | None:
        given = self._plan.configured.assembly.config.leader_election
        if not given.leader_elect:
            return None
        return LeaderElector(
            self._lease_client,
            self._clock,
            lease_config(given, self.identity),
            on_started=self._lead,
            on_new_leader=lambda who: _LOG.info("new leader elected: %s", who or "nobody"),
        )

    def _build_endpoint(self) -> ComponentServer:
        endpoint = ComponentServer(self._clock)
        elected: dict[str, HealthCheck] = {} if self._election is None else {"leaderElection": self._lease_is_fresh}
        endpoint.health("healthz", elected or {"ping": component_server.ping})
        endpoint.metrics([self._plan.registry])
        config = self._plan.configured.assembly.config
        shown = yaml.safe_load(configuration_yaml(self._plan.configured.assembly))
        endpoint.config(lambda: shown)
        if config.enable_profiling is not False:
            endpoint.debug()
        endpoint.flag("v", lambda text: set_verbosity(self._plan.logs, text))
        service.serve_explanations(endpoint, self._descheduler, lambda: self._leads)
        return endpoint

    def _lease_is_fresh(self) -> str | None:
        election = self._election
        if election is None or not self._leads or election.is_leading:
            return None
        return f"failed election to renew leadership on lease {election.config.name}"

    async def _listen(self) -> SecurePortGuard | str | None:
        """Return the guard of the secure port, if there is one; or why nothing can be served."""
        config, values = self._plan.configured.assembly.config, self._plan.values
        places = dict.fromkeys((config.healthz_bind_address or "", config.metrics_bind_address or ""))
        where, guarded = "", None
        try:
            for where in places:
                host, _, port = where.rpartition(":")
                if int(port):
                    await self._endpoint.listen(host.strip("[]"), int(port))
            if self._plan.certificate is not None:
                made = guard_from_flags(values, self._plan.environ, self._clock)
                if isinstance(made, FlagError):
                    return made.message
                guarded = made
                where = f"{values.text('bind-address')}:{values.number('secure-port')}"
                await self._endpoint.listen(
                    values.text("bind-address"),
                    values.number("secure-port"),
                    certificate=self._plan.certificate,
                    guard=guarded.guard,
                )
        except OSError as trouble:
            return f"cannot listen on {where}: {os.strerror(trouble.errno or 0).lower()}"
        return guarded


if __name__ == "__main__":
    main()
